"""What the rest of a process asks of engines, whether it writes the index itself or reads it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from app.engines.directory import EngineStatus
from app.engines.intake import Pushed, Registered
from app.engines.plans import KnownView
from app.engines.registration import EngineKey, EngineSpec
from app.engines.totals import EngineTotals


class KnownEngine(Protocol):
    """A registration."""

    @property
    def spec(self) -> EngineSpec: ...


class Engines(Protocol):
    """The engines that are registered. All but `views_of` and counts may raise INDEX_AWAY."""

    @property
    def registrations(self) -> int:
        """Goes up whenever they may be other ones."""

    def views_of(self, model: str) -> Sequence[KnownView]:
        """The views of the engines that run a model, empty for none."""

    def views(self) -> Iterable[KnownView]:
        """Of every engine."""

    def get(self, key: EngineKey) -> KnownEngine | None:
        """None where nothing is registered under the key."""

    def engines(self) -> Sequence[KnownEngine]:
        """All of them, by key."""

    def counts(self) -> Mapping[str, int]:
        """How many engines are in each state."""

    def totals(self) -> EngineTotals:
        """What was counted since the writer began."""

    def replays(self) -> Mapping[str, int]:
        """Replays that engines were asked for, by how they ended."""


class EngineService(Protocol):
    """What operators and pushers do to engines; INDEX_AWAY where the writer is away."""

    async def register(
        self, spec: EngineSpec, *, replace: bool = False, tenants: frozenset[str] | None = None
    ) -> Registered:
        """As EngineIntake."""

    async def forget(self, key: EngineKey, *, tenants: frozenset[str] | None = None) -> bool:
        """As EngineIntake."""

    async def take(
        self,
        key: EngineKey,
        number: int,
        payload: bytes,
        *,
        lost: bool,
        tenants: frozenset[str] | None = None,
    ) -> Pushed:
        """As EngineIntake."""

    async def statuses(self, keys: Sequence[EngineKey]) -> list[EngineStatus]:
        """As EngineIntake."""
