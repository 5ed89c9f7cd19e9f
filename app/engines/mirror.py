"""What a reader of the index knows of the engines: the writer's catalogue, and what the index says.

It holds for as long as the writer's word does (`LEASE_US`); beyond that nothing is known here. A
stream that was closed since the catalogue came tells of a change that is not here yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.clock import Clock
from app.engines.plans import KnownView
from app.engines.port_wire import LEASE_US, Beat, Catalogue, Facts, Pulse, Sums
from app.engines.registration import EngineKey, EngineSpec
from app.engines.shelves import Group, Lane
from app.engines.totals import EngineTotals
from app.engines.views import ViewState
from app.errors import ErrorCode, NexusError
from nexuskv_core import BlockIndex, BusyError

_NO_STATS: Final = dict.fromkeys(
    ("blocks", "streams", "holders", "memory_bytes", "forgotten", "collisions"), 0
)
_STATES: Final = tuple(ViewState)


def index_away() -> NexusError:
    return NexusError(
        ErrorCode.INDEX_AWAY, "The process that writes the index is away; try again in a second"
    )


@dataclass(slots=True)
class _Turn:
    """A query, or another look at the engines that waits for nothing."""

    number: int = 1


class MirrorView:
    """One engine, as of the last catalogue, with what its streams say of themselves since.

    What they say is read once a turn, when it is first asked for: with a query, after its search.
    """

    def __init__(self, facts: Facts, core: BlockIndex, turn: _Turn) -> None:
        self.spec: EngineSpec = facts.spec
        self.epoch: int = facts.epoch
        self.lanes: list[Lane] = facts.lanes
        self.groups: Mapping[int, Group] = facts.groups
        self.pulse: Pulse = facts.pulse
        self._told = facts.state
        self._core = core
        self._turn = turn
        self._read_in = 0
        self._state = facts.state
        self._sequence: int | None = None
        self._frame_at_us: int | None = None

    @property
    def state(self) -> ViewState:
        if self._read_in != self._turn.number:
            self._read()
        return self._state

    @property
    def last_sequence(self) -> int | None:
        if self._read_in != self._turn.number:
            self._read()
        return self._sequence

    @property
    def last_frame_at_us(self) -> int | None:
        if self._read_in != self._turn.number:
            self._read()
        return self._frame_at_us

    @property
    def lag_us(self) -> int | None:
        return self.pulse.lag_us

    def state_at(self, now_us: int, stale_after_us: int) -> ViewState:
        """`state`, or STALE where nothing was heard for longer than that."""
        state = self.state
        if state is not ViewState.LIVE:
            return state
        frame, heard = self._frame_at_us, self.pulse.heard_at_us
        latest = max(frame or 0, heard or 0)
        return ViewState.STALE if latest and now_us - latest > stale_after_us else state

    def _read(self) -> None:
        """What its first stream says, or what was told of an engine that has none."""
        self._read_in = self._turn.number
        told = self.pulse
        self._state, self._sequence = self._told, told.last_sequence
        self._frame_at_us = told.last_frame_at_us
        if not self.lanes:
            return
        try:
            now = self._core.progress(self.lanes[0].stream)
        except (ValueError, BusyError):
            # It is closed, and why is yet to be told.
            self._state = ViewState.UNKNOWN
            return
        if now.at_us:
            self._state, self._sequence = _STATES[now.state], now.sequence
            self._frame_at_us = max(now.at_us, told.last_frame_at_us or 0)
        else:
            # Opened within a frame that is not at its end.
            self._state = ViewState.UNKNOWN


@dataclass(slots=True)
class _Known:
    engines: dict[EngineKey, MirrorView] = field(default_factory=dict)
    by_model: dict[str, list[MirrorView]] = field(default_factory=dict)


class EngineMirror:
    """The engines that the writer follows. On the event loop's thread.

    `follow` is told which index to read from now on. All that raises, raises INDEX_AWAY.
    """

    def __init__(self, clock: Clock, stale_after_us: int) -> None:
        self.stale_us = stale_after_us
        # Goes up whenever they may be other ones.
        self.registrations = 0
        self.follow: Callable[[BlockIndex], None] = lambda _: None
        self._clock = clock
        self._core: BlockIndex | None = None
        self._turn = _Turn()
        self._known = _Known()
        self._sums = Sums({}, EngineTotals(), {}, 0)
        # When what was told last was sent; 0 while nothing is known.
        self._told_us = 0
        self._complete = False

    # ---- what is told

    def attach(self, core: BlockIndex) -> None:
        """Another index, of which nothing is known yet."""
        self.lose()
        self._core = core
        self.follow(core)

    def lose(self) -> None:
        """Nothing holds any more; who was registered is remembered until a catalogue comes."""
        self._complete = False

    def take(self, message: Catalogue | Beat | Sums) -> None:
        """What the writer says, in the order in which it says it."""
        if isinstance(message, Sums):
            self._sums = message
            return
        if isinstance(message, Catalogue):
            self._change(message)
        else:
            for pulse in message.pulses:
                view = self._known.engines.get(EngineKey(pulse.instance_id, pulse.dp_rank))
                if view is not None:
                    view.pulse = pulse
        self._told_us = message.sent_us

    def _change(self, message: Catalogue) -> None:
        assert self._core is not None
        if message.begins:
            self._known = _Known()
        engines = self._known.engines
        touched: set[str] = set()
        others = message.begins or message.complete > self._complete
        for key in message.gone:
            before = engines.pop(key, None)
            if before is not None:
                touched.add(before.spec.model)
                others = True
        for facts in message.facts:
            before = engines.get(facts.spec.key)
            if before is None or before.spec != facts.spec:
                others = True
            if before is not None:
                touched.add(before.spec.model)
            engines[facts.spec.key] = MirrorView(facts, self._core, self._turn)
            touched.add(facts.spec.model)
        self._sort(touched)
        self.registrations += others
        self._complete = message.complete or (self._complete and not message.begins)

    def _sort(self, models: set[str]) -> None:
        found: dict[str, list[MirrorView]] = {model: [] for model in models}
        for view in self._known.engines.values():
            if view.spec.model in found:
                found[view.spec.model].append(view)
        for model, views in found.items():
            if views:
                self._known.by_model[model] = views
            else:
                self._known.by_model.pop(model, None)

    # ---- what is known

    def away(self) -> bool:
        """Whether what is known here holds no longer, or is not all there yet."""
        return not self._complete or self._clock.monotonic_us() - self._told_us > LEASE_US

    def views_of(self, model: str) -> Sequence[KnownView]:
        """The views of the engines that run a model, empty for none; the last ones while away."""
        self._turn.number += 1
        return self._known.by_model.get(model, ())

    def views(self) -> Sequence[KnownView]:
        """Of every engine."""
        return self.engines()

    def get(self, key: EngineKey) -> MirrorView | None:
        """None where nothing is registered under the key."""
        return self._here().engines.get(key)

    def engines(self) -> list[MirrorView]:
        """All of them, by key."""
        found = self._here().engines
        return [found[key] for key in sorted(found)]

    def _here(self) -> _Known:
        if self.away():
            raise index_away()
        self._turn.number += 1
        return self._known

    # ---- counts, as the writer told them last

    def counts(self) -> Mapping[str, int]:
        return self._sums.counts

    def totals(self) -> EngineTotals:
        return self._sums.totals

    def replays(self) -> Mapping[str, int]:
        return self._sums.replays

    @property
    def readers_cut(self) -> int:
        return self._sums.readers_cut

    def stats(self) -> dict[str, int]:
        """Of the index; zeros while it is not there."""
        return _NO_STATS if self._core is None else self._core.stats()
