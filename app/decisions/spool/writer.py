"""Where the pipeline leaves its rows: appended to this process's segments before the answer leaves.

Recording is a copy into mapped memory. What needs the disk to answer (making the next segment,
syncing) is done by a thread of its own, so that no request waits for it.
"""

import asyncio
import errno
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import structlog

from app.clock import Clock
from app.decisions.record import Decision, Outcome
from app.decisions.rows import NO_ROW, encode_decision, encode_outcome
from app.decisions.spool.control import Control
from app.decisions.spool.frames import HEAD_BYTES, frame_bytes, seal
from app.decisions.spool.segment import HEADER_BYTES, NewSegment, make_segment, segment_path
from nexuskv_core import make_writable, write_frame

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.002
_LOSS_LOG_INTERVAL_US: Final = 10_000_000
_KEEPER_INTERVAL_S: Final = 0.05
# Pages are made ready ahead of the rows: the kernel takes microseconds for each.
_READY_BYTES: Final = 256 * 1024
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# Room that a seal takes.
_SEAL_BYTES: Final = HEAD_BYTES


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """`max_bytes` bounds what waits for the copier, with the segment that is being written; at
    least two segments. `sync_interval_s`: what a crash of the machine may take with it.
    """

    max_bytes: int = 1024 * 1024 * 1024
    segment_bytes: int = 16 * 1024 * 1024
    sync_interval_s: float = 1.0


@dataclass(slots=True)
class _Written:
    """A segment that the copier has not removed yet, and its last number."""

    number: int
    last_seq: int


class _Ready(NamedTuple):
    """Up to where pages of a segment were made ready."""

    number: int
    through: int


class Spool:
    """The sink of one API process. All calls but the keeper's come from its event loop's thread.

    Rows have consecutive numbers, also those that found no room: the number of such a row is in no
    segment, which is how the copier knows that it is lost.
    """

    def __init__(self, writer_id: UUID, clock: Clock, limits: SpoolLimits | None = None) -> None:
        self.writer_id = writer_id
        self._limits = limits or SpoolLimits()
        self._clock = clock
        self._most_segments = max(2, self._limits.max_bytes // self._limits.segment_bytes)
        self._seq = 0
        self._lost = 0
        self._loss_logged = 0
        self._loss_logged_us: int | None = None
        self._written: deque[_Written] = deque()
        self._retired: deque[NewSegment] = deque()
        self._next: NewSegment | None = None
        self._no_room: str | None = None
        self._opened = self._closed = False
        self._wake = threading.Event()
        self._making = threading.Lock()
        self.directory: Path | None = None
        self._control: Control | None = None
        self._current: NewSegment | None = None
        self._data: mmap.mmap
        # Until there is a segment there is no room for anything, nor when it is closed.
        self._at = self._end = 0
        self._committed = 0
        self._ready = _Ready(0, 0)

    def open(self, directory: Path) -> None:
        """Make the writer's directory and its first segment. Raises OSError.

        Where the disk is full it begins without one: rows are lost and counted until there is room,
        which what is waiting here for its copier may make.
        """
        self.directory = directory / self.writer_id.hex
        self._opened = True
        try:
            self._next = self._made(1)
        except OSError as error:
            if error.errno not in _FULL:
                self._opened = False
                raise
            self._note_no_room(error)
        else:
            self._go_on(0)
        self._keeper = threading.Thread(target=self._keep, name="spool", daemon=True)
        self._keeper.start()

    # ---- what happened, in numbers

    @property
    def recorded(self) -> int:
        """Rows handed in so far: also the number of the newest one."""
        return self._seq

    @property
    def committed(self) -> int:
        """Through which number every row is in Postgres, or known to be lost."""
        control = self._control
        return control.committed if control is not None else self._committed

    @property
    def well_at_us(self) -> int:
        """When the copier last found Postgres well, in microseconds since the epoch; 0: never."""
        control = self._control
        return control.well_at_us if control is not None else 0

    @property
    def pending(self) -> int:
        return max(0, self._seq - self.committed)

    @property
    def lost_rows(self) -> int:
        """Rows for which there was no room."""
        return self._lost

    @property
    def lost(self) -> dict[str, int]:
        """The same by reason."""
        return {"no_room": self._lost}

    @property
    def stored(self) -> int:
        """Rows that are in Postgres, or that it refused."""
        return max(0, min(self._seq, self.committed) - self._lost)

    @property
    def pending_bytes(self) -> int:
        """Of disk, by segments that are not removed yet."""
        made = (self._current is not None) + (self._next is not None)
        return (len(self._written) + made) * self._limits.segment_bytes

    @property
    def full(self) -> bool:
        """Whether the next row is likely to be refused: then nothing that must be kept is begun."""
        return self._at + frame_bytes(64 * 1024) > self._end and not self._may_go_on()

    # ---- recording

    def record(self, decision: Decision) -> bool:
        """Append a decision; False where there was no room, and the row is lost and counted."""
        return self._encoded(encode_decision, decision)

    def record_outcome(self, outcome: Outcome) -> bool:
        """Likewise an outcome; its decision was recorded before."""
        return self._encoded(encode_outcome, outcome)

    def _encoded(self, encode: Callable[[Any], bytes], row: Decision | Outcome) -> bool:
        try:
            payload = encode(row)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this row's
            # Without its traceback, which may quote what the row holds.
            log.error("decision_row_refused", error=type(error).__name__)  # noqa: TRY400
            payload = NO_ROW
        return self.append(payload)

    def append(self, payload: bytes) -> bool:
        """Likewise a row in the encoding of `app.decisions.rows`. Never raises, never waits."""
        self._seq = seq = self._seq + 1
        at = self._at
        # As `frame_bytes`, spelt out: every call costs every request.
        if at + HEAD_BYTES + (len(payload) + 7 & ~7) > self._end:
            if not self._go_on(len(payload)):
                self._lose()
                return False
            at = self._at
        self._at = write_frame(self._data, at, seq, payload)
        return True

    def _may_go_on(self) -> bool:
        if not self._opened or self._closed:
            return False
        if self._next is None and self._no_room is None:
            # The keeper was not quick enough: better a request waits than that its row is lost.
            self._make_next()
        if self._next is None:
            return False
        committed = self.committed
        while self._written and self._written[0].last_seq <= committed:
            self._written.popleft()
        return len(self._written) + 2 <= self._most_segments

    def _go_on(self, payload_bytes: int) -> bool:
        """Continue in the next segment; False where there is none, or the bound is reached."""
        room_bytes = self._limits.segment_bytes - HEADER_BYTES - _SEAL_BYTES
        if frame_bytes(payload_bytes) > room_bytes or not self._may_go_on():
            return False
        following = self._next
        assert following is not None
        if self._current is not None:
            seal(self._data, self._at)
            self._written.append(_Written(self._current.number, self._seq - 1))
            self._retired.append(self._current)
        self._current, self._next = following, None
        self._data, self._at = following.data, HEADER_BYTES
        self._end = len(following.data) - _SEAL_BYTES
        self._wake.set()
        return True

    def _lose(self) -> None:
        self._lost += 1
        if self._control is not None:
            self._control.note_lost(self._seq, self._lost)
        now_us = self._clock.monotonic_us()
        last_us = self._loss_logged_us
        if last_us is None or now_us - last_us >= _LOSS_LOG_INTERVAL_US:
            self._log_losses(now_us)

    def _log_losses(self, now_us: int) -> None:
        if self._lost > self._loss_logged:
            log.error(
                "decisions_lost",
                lost_rows=self._lost - self._loss_logged,
                lost_rows_total=self._lost,
                pending_rows=self.pending,
                cause=self._no_room or "the spool is full",
            )
        self._loss_logged, self._loss_logged_us = self._lost, now_us

    # ---- waiting

    async def wait_committed(self, seq: int, *, wait_s: float) -> bool:
        """Until every row up to `seq` is in Postgres; False when that takes longer."""
        control = self._control
        if self._closed or control is None or control.committed >= seq:
            return not self._closed and self.committed >= seq
        control.wanted = max(control.wanted, seq)
        for _ in range(max(1, round(wait_s / _POLL_S))):
            if self._closed or control.committed >= seq:
                break
            await asyncio.sleep(_POLL_S)
        return not self._closed and control.committed >= seq

    def close(self) -> None:
        """Take no more rows, and leave what is there to the copier. The lock goes with it."""
        if self._closed or not self._opened or self.directory is None:
            return
        self._log_losses(self._clock.monotonic_us())
        self._closed = True
        self._wake.set()
        self._keeper.join()
        self._end = 0
        if self._current is not None:
            seal(self._data, self._at)
            with suppress(OSError):
                os.fdatasync(self._current.descriptor)
            self._current.close()
        if self._next is not None:
            # Nothing is in it.
            segment_path(self.directory, self._next.number).unlink(missing_ok=True)
            self._next.close()
        if self._control is not None:
            self._committed = self._control.committed
            self._control.close()
            self._control = None

    def left(self) -> int:
        """How many rows are not known to be stored, after `close` and the copier's time."""
        if self.directory is None or not self.directory.exists():
            return 0
        with suppress(OSError):
            control = Control(self.directory, writer=False)
            self._committed = control.committed
            control.close()
        return self.pending

    # ---- the keeper's thread

    def _made(self, number: int) -> NewSegment:
        """With the writer's directory, where there was no room for it before."""
        assert self.directory is not None
        if self._control is None:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            control = Control(self.directory, writer=True)
            if self._lost:
                control.note_lost(self._seq, self._lost)
            self._control = control
        return make_segment(self.directory, number, self.writer_id, self._limits.segment_bytes)

    def _keep(self) -> None:
        """Makes the next segment ahead of need, syncs, and closes what is written."""
        synced_us = self._clock.monotonic_us()
        sync_us = round(self._limits.sync_interval_s * 1e6)
        while not self._closed:
            self._wake.wait(_KEEPER_INTERVAL_S)
            self._wake.clear()
            self._make_next()
            self._make_ready()
            while self._retired:
                done = self._retired.popleft()
                self._synced(done)
                done.close()
            now_us = self._clock.monotonic_us()
            if now_us - synced_us >= sync_us:
                synced_us = now_us
                if self._current is not None:
                    self._synced(self._current)

    def _make_ready(self) -> None:
        """The next pages; for nothing where rows go on into another segment meanwhile."""
        segment, begin = self._current, self._at
        if segment is None:
            return
        if self._ready.number == segment.number:
            begin = max(begin, self._ready.through)
        end = min(self._at + _READY_BYTES, self._limits.segment_bytes)
        if end > begin:
            make_writable(segment.data, begin, end - begin)
            self._ready = _Ready(segment.number, end)

    def _make_next(self) -> None:
        with self._making:
            if self._next is not None or self._closed:
                return
            try:
                current = self._current
                self._next = self._made(1 if current is None else current.number + 1)
            except OSError as error:
                self._note_no_room(error)
            else:
                self._no_room = None

    def _note_no_room(self, error: OSError) -> None:
        if self._no_room is None:
            log.error("spool_cannot_grow", cause=str(error), directory=str(self.directory))
        self._no_room = str(error)

    def _synced(self, segment: NewSegment) -> None:
        try:
            os.fdatasync(segment.descriptor)
        except OSError as error:
            log.error("spool_not_synced", cause=str(error))  # noqa: TRY400
