"""What readers of the index are to know of its engines, and what of it changed. No socket.

A scan compares what each view says with what was told last: a few comparisons an engine.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from app.engines.directory import Engine, EngineDirectory
from app.engines.port_wire import Facts, Pulse, encode_value
from app.engines.registration import EngineKey
from app.engines.shelves import Group, Lane
from app.engines.spaces import Spaces
from app.engines.views import EngineView, ViewState

# Of one message; one engine's facts have at most a megabyte or so.
_BATCH_BYTES: Final = 4 * 1024 * 1024
# A sign of life that was told longer ago than this is told at once, not with the next beat.
_OLD_US: Final = 1_000_000


class Batch(NamedTuple):
    """What goes into one message."""

    facts: list[msgspec.Raw]
    gone: list[EngineKey]


class _Told(NamedTuple):
    view: EngineView
    epoch: int
    state: ViewState
    groups: dict[int, Group]
    lanes: list[Lane]
    pulse: Pulse
    encoded: msgspec.Raw


class Ledger:
    """Follows a directory. On the event loop's thread."""

    def __init__(self, directory: EngineDirectory, spaces: Spaces) -> None:
        self._directory = directory
        self._spaces = spaces
        self._told: dict[EngineKey, _Told] = {}
        self._changes = -1

    def changes(self) -> list[Batch]:
        """What changed since the last call but for pulses; empty for nothing."""
        moved = self._spaces.changes != self._changes
        self._changes = self._spaces.changes
        engines = self._directory.engines()
        changed = [one for one in engines if self._differs(one, moved=moved)]
        gone: list[EngineKey] = []
        if len(engines) < len(self._told) + sum(one.spec.key not in self._told for one in changed):
            gone = [key for key in self._told if self._directory.get(key) is None]
        for key in gone:
            del self._told[key]
        for one in changed:
            self._told[one.spec.key] = _told(one)
        return list(_batches([self._told[one.spec.key].encoded for one in changed], gone))

    def whole(self) -> list[Batch]:
        """All that was told, for a reader that knows nothing; at least one."""
        return list(_batches([each.encoded for each in self._told.values()], [])) or [Batch([], [])]

    def known_pulses(self) -> list[Pulse]:
        """Of all engines, as they were told last: facts have that of when they changed."""
        return [told.pulse for told in self._told.values()]

    def pulses(self) -> list[Pulse]:
        """Of the engines that said something since the last call."""
        found = []
        for key, told in self._told.items():
            view, before = told.view, told.pulse
            if (view.heard_at_us, view.last_sequence) != (before.heard_at_us, before.last_sequence):
                pulse = _pulse(view)
                found.append(pulse)
                self._told[key] = told._replace(pulse=pulse)
        return found

    def refresh(self, key: EngineKey) -> None:
        """Tell of this one with the next changes if it was not heard of for long."""
        told = self._told.get(key)
        if told is None:
            return
        heard, before = told.view.heard_at_us, told.pulse.heard_at_us
        if heard is not None and (before is None or heard - before > _OLD_US):
            # No view has it.
            self._told[key] = told._replace(epoch=-1)

    def _differs(self, engine: Engine, *, moved: bool) -> bool:
        told, view = self._told.get(engine.spec.key), engine.view
        if told is None or told.view is not view:
            return True
        if told.epoch != view.epoch or told.state is not view.state:
            return True
        return moved and (told.lanes != view.lanes or told.groups != view.groups)


def _told(engine: Engine) -> _Told:
    view = engine.view
    facts = Facts(
        spec=engine.spec,
        registered_at=engine.registered_at,
        epoch=view.epoch,
        state=view.state,
        groups=dict(view.groups),
        lanes=view.lanes,
        pulse=_pulse(view),
    )
    return _Told(
        view, facts.epoch, facts.state, facts.groups, facts.lanes, facts.pulse,
        msgspec.Raw(encode_value(facts)),
    )  # fmt: skip


def _pulse(view: EngineView) -> Pulse:
    return Pulse(
        view.spec.instance_id,
        view.spec.dp_rank,
        view.last_sequence,
        view.last_frame_at_us,
        view.heard_at_us,
        view.lag_us,
    )


def _batches(facts: list[msgspec.Raw], gone: list[EngineKey]) -> Iterator[Batch]:
    batch: list[msgspec.Raw] = []
    held = 0
    for one in facts:
        batch.append(one)
        held += len(memoryview(one))
        if held >= _BATCH_BYTES:
            yield Batch(batch, gone)
            batch, gone, held = [], [], 0
    if batch or gone:
        yield Batch(batch, gone)
