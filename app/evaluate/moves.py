"""Moves ahead of their use: state is brought to where a conversation's next turn will be placed.

No request ever waits for one. A move begins on an idle link only, within a part of the device, and
gives way to any transfer that a request asks for; if the next turn comes before it has ended it is
cancelled, and what is not used by its deadline leaves the device again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from app.contract.enums import TierKind
from app.evaluate.caches import Caches
from app.evaluate.fleet import Fleet
from app.evaluate.requests import Request
from app.planner.links import Links
from app.planner.profile import Profile

# The part of a device that moves may hold at a time, on their way and unused.
_DEVICE_PART: Final = 1 / 16


class Ahead(NamedTuple):
    """The leading blocks of a conversation, from (engine, tier) to `engine`, to be used by
    `deadline_us`."""

    engine: int
    source: tuple[int, TierKind]
    blocks: tuple[int, ...]
    deadline_us: float


class World(Protocol):
    """What moves see of the simulated fleet."""

    fleet: Fleet
    profile: Profile
    caches: Caches
    links: Links
    now_us: float

    def node(self, engine: int, /) -> str: ...

    def at(self, time_us: float, happens: Callable[[], None], /) -> None: ...


@dataclass(slots=True)
class Counts:
    """What became of moves. Each that began was `used`, `cancelled` or `demoted`, or its blocks
    were displaced before; those that found no room or no idle link were `refused`."""

    begun: int = 0
    used: int = 0
    cancelled: int = 0
    demoted: int = 0
    refused: int = 0
    moved_bytes: float = 0.0


@dataclass(slots=True, eq=False)
class _Move:
    wanted: Ahead
    began_us: float
    ends_us: float
    moved_bytes: float
    blocks: int
    # What it brought that was not there before; None while it is on its way.
    brought: list[int] | None = None
    over: bool = False


class Moves:
    """Those of one run, on their way or not used yet."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.counts = Counts()
        # By the last block that they bring: it is what the next turn is known by.
        self._pending: dict[int, _Move] = {}
        self._most_blocks = int(world.fleet.device_tokens * _DEVICE_PART / world.fleet.block_tokens)

    def begin(self, request: Request, wanted: Ahead) -> None:
        """It starts now, or is refused."""
        world = self._world
        origin, tier = wanted.source
        here = world.caches.device_prefix(wanted.engine, wanted.blocks)
        missing = len(wanted.blocks) - here
        one, two = world.node(origin), world.node(wanted.engine)
        held = sum(move.blocks for move in self._of(wanted.engine))
        busy = world.links.get(one, two).in_flight or self._on_link(one, two)
        full = held + missing > self._most_blocks
        if missing <= 0 or busy or full or wanted.blocks[-1] in self._pending:
            self.counts.refused += 1
            return
        path = world.profile.path(tier, remote=one != two)
        tokens = missing * world.fleet.block_tokens
        if path is None:
            self.counts.refused += 1
            return
        moved_bytes = tokens * world.profile.default_bytes_per_token
        took_us = path.latency_us + moved_bytes / path.bytes_per_us
        link = world.links.get(one, two)
        if link.bytes_per_us:
            took_us = max(took_us, link.latency_us + moved_bytes / link.bytes_per_us)
        took_us *= request.transfer_factor
        move = _Move(wanted, world.now_us, world.now_us + took_us, moved_bytes, missing)
        self._pending[wanted.blocks[-1]] = move
        self.counts.begun += 1
        world.at(move.ends_us, partial(self._ended, move))

    def arrived(self, request: Request, engine: int) -> None:
        """A request is there, and where it runs: a move for it is used, or was too late."""
        if not self._pending:
            return
        for block in request.blocks:
            move = self._pending.get(block)
            if move is None:
                continue
            if move.brought is None:
                self._cancel(move)
            elif engine == move.wanted.engine:
                self.counts.used += 1
                self._forget(move)

    def give_way(self, origin: str, target: str) -> None:
        """A request's transfer begins on the link: moves on it are cancelled."""
        for move in self._on_link(origin, target):
            self._cancel(move)

    def _on_link(self, origin: str, target: str) -> list[_Move]:
        return [
            move
            for move in self._pending.values()
            if move.brought is None
            and self._world.node(move.wanted.source[0]) == origin
            and self._world.node(move.wanted.engine) == target
        ]

    def _of(self, engine: int) -> list[_Move]:
        return [move for move in self._pending.values() if move.wanted.engine == engine]

    def _cancel(self, move: _Move) -> None:
        spent = (self._world.now_us - move.began_us) / max(move.ends_us - move.began_us, 1.0)
        self.counts.moved_bytes += move.moved_bytes * min(spent, 1.0)
        self.counts.cancelled += 1
        self._forget(move)

    def _ended(self, move: _Move) -> None:
        if move.over:
            return
        world = self._world
        if world.now_us > move.wanted.deadline_us:
            self._cancel(move)
            return
        self.counts.moved_bytes += move.moved_bytes
        move.brought = world.caches.add(move.wanted.engine, move.wanted.blocks)
        world.at(move.wanted.deadline_us, partial(self._expired, move))

    def _expired(self, move: _Move) -> None:
        if move.over:
            return
        assert move.brought is not None
        self._world.caches.demote(move.wanted.engine, move.brought)
        self.counts.demoted += 1
        self._forget(move)

    def _forget(self, move: _Move) -> None:
        move.over = True
        del self._pending[move.wanted.blocks[-1]]
