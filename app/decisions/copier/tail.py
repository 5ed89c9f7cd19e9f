"""Follows one writer's segments: what is in them beyond what is stored, in order and with gaps."""

import shutil
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import structlog

from app.db import copy_text
from app.decisions.lookup_lines import SeenLookup, lookup_line
from app.decisions.record import Decision, Outcome
from app.decisions.rows import LookupRow, decode, row_of
from app.decisions.spool.control import Control
from app.decisions.spool.frames import Frame
from app.decisions.spool.segment import SegmentError, SegmentReader, segment_numbers, segment_path

log = structlog.get_logger(__name__)

# Why a number has no row.
NO_ROOM: Final = "no_room"
TORN: Final = "torn"
UNREADABLE: Final = "unreadable"
# So often is it looked whether losses go on, before they are taken to have ended.
_STILL_READS: Final = 100


class Entry(NamedTuple):
    """Numbers in order: one with its row, or some without, and why."""

    first_seq: int
    last_seq: int
    row: SeenLookup | Decision | Outcome | None
    reason: str = ""
    # The row as COPY takes it.
    line: bytes = b""


class Tail:
    """One writer's directory. `committed`: through which number Postgres has everything."""

    def __init__(self, directory: Path, control: Control, committed: int) -> None:
        self.directory = directory
        self.writer_id = UUID(directory.name)
        self.control = control
        self.committed = committed
        self._readers: deque[SegmentReader] = deque()
        # Read and not stored: numbers beyond `committed`, up to `_read`.
        self._waiting: deque[Entry] = deque()
        self._waiting_bytes = 0
        self._read = committed
        self._lives = True
        # Up to which number a living writer has lost rows, and how often that was found since.
        self._last_lost = 0
        self._found_still = 0
        # Behind which number a living writer's frame is torn, and how often that was found since.
        self._torn_at = -1
        self._found_torn = 0
        # The last number that was met in a segment, stored or not, and whether bytes behind it were
        # passed over that may have been rows.
        self._seen = 0
        self._torn = False
        # Whether its writer is gone, and everything that it left was read.
        self._exhausted = False
        control.committed = committed

    @property
    def waiting(self) -> int:
        """Entries that were read and are not stored."""
        return len(self._waiting)

    @property
    def lives(self) -> bool:
        """Whether its writer was there at the last read."""
        return self._lives

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for what is not stored yet, or nothing more will come."""
        return not self._lives or self.control.wanted > self.committed

    def read(self, *, most_entries: int, most_bytes: int) -> None:
        """Read on, until that much waits or there is no more for now."""
        if self._exhausted:
            return
        if self._lives:
            # Before the segments: what is in them is then all there will be.
            self._lives = self.control.writer_lives()
        while self.waiting < most_entries and self._waiting_bytes < most_bytes:
            found = self._readers[-1].next() if self._readers else None
            if isinstance(found, Frame):
                self._take(found)
            elif not self._pass_over(torn=found is not None):
                if not self._lives:
                    self._end()
                elif found is None:
                    self._rest()
                break

    def _take(self, frame: Frame) -> None:
        torn, self._torn, self._seen = self._torn, False, frame.seq
        if frame.seq <= self._read:
            return
        if frame.seq > self._read + 1:
            reason = TORN if torn else NO_ROOM
            self._waiting.append(Entry(self._read + 1, frame.seq - 1, None, reason))
        try:
            row, line = self._decoded(frame)
            entry = Entry(frame.seq, frame.seq, row, "", line)
        except (ValueError, TypeError, AttributeError) as error:
            # Without its message, which may quote what the row holds.
            log.error("spooled_row_unreadable", writer_seq=frame.seq, error=type(error).__name__)  # noqa: TRY400
            entry = Entry(frame.seq, frame.seq, None, UNREADABLE)
        self._waiting.append(entry)
        self._waiting_bytes += len(frame.payload)
        self._read = frame.seq

    def _decoded(self, frame: Frame) -> tuple[SeenLookup | Decision | Outcome, bytes]:
        """Raises ValueError, TypeError or AttributeError for a payload that is no row."""
        found = decode(frame.payload)
        if isinstance(found, LookupRow):
            return lookup_line(found, self.writer_id, frame.seq)
        row = row_of(found)
        return row, copy_text.line((*row, self.writer_id, frame.seq))

    def _rest(self) -> None:
        """The writer lives, and nothing follows for now: losses that have ended are told.

        Those that go on are told as one, with the next row.
        """
        lost = self.control.recorded
        if lost <= self._read or not self._readers or self._readers[-1].ended:
            return
        if lost != self._last_lost:
            self._last_lost, self._found_still = lost, 0
        self._found_still += 1
        if self._found_still >= _STILL_READS:
            self._waiting.append(Entry(self._read + 1, lost, None, NO_ROOM))
            self._read = lost

    def _pass_over(self, *, torn: bool) -> bool:
        """Whether to read on, at the end of what is whole in this segment."""
        reader = self._readers[-1] if self._readers else None
        if reader is not None and not reader.ended:
            if self._lives and not (torn and self._stays_torn()):
                return False
            more_may_come = self._lives and not self._followed(reader.number)
            found = reader.skip_torn(self._read, more_may_come=more_may_come)
            if found or (torn and not more_may_come):
                self._torn = True
                log.warning("spool_torn", segment=reader.path.name, after_seq=self._read)
            if found or more_may_come:
                return found
        return self._open_next()

    def _followed(self, number: int) -> bool:
        """Whether its writer writes into a later segment; one is always made ahead of its use."""
        try:
            reader = SegmentReader(self.directory, number + 1, self.writer_id)
        except (SegmentError, FileNotFoundError):
            return False
        try:
            return reader.next() is not None
        finally:
            reader.close()

    def _stays_torn(self) -> bool:
        """Whether a living writer's frame is damaged, and not one that is being written."""
        self._found_torn = self._found_torn + 1 if self._torn_at == self._read else 1
        self._torn_at = self._read
        if self._found_torn < _STILL_READS:
            return False
        self._found_torn = 0
        return True

    def _open_next(self) -> bool:
        """Open the segment after the last one that is open; False where there is none."""
        after = self._readers[-1].number if self._readers else -1
        for number in segment_numbers(self.directory):
            if number <= after:
                continue
            try:
                self._readers.append(SegmentReader(self.directory, number, self.writer_id))
            except FileNotFoundError:
                # Its writer ended, and had not used it.
                return False
            except SegmentError as error:
                # One that is being made has another name.
                log.error("spool_segment_refused", cause=str(error), directory=str(self.directory))  # noqa: TRY400
                self._torn = True
                segment_path(self.directory, number).rename(
                    self.directory / f"{number:012d}.refused"
                )
                continue
            return True
        return False

    def _end(self) -> None:
        """The writer is gone: the numbers of its last losses are in no segment.

        Of what is torn at the end it is only known that there was something.
        """
        self._exhausted = True
        last = max(self.control.recorded, (self._seen or self._read) + self._torn)
        if last > self._read:
            reason = TORN if self._torn else NO_ROOM
            self._waiting.append(Entry(self._read + 1, last, None, reason))
            self._read = last

    def batch(self, most_entries: int) -> list[Entry]:
        """What waits longest; it stays until it is settled."""
        return list(islice(self._waiting, most_entries))

    def settle(self, through: int) -> None:
        """Postgres has everything up to this number. Segments that are stored whole are removed."""
        self.committed = max(self.committed, through)
        while self._waiting and self._waiting[0].last_seq <= through:
            self._waiting.popleft()
        if not self._waiting:
            self._waiting_bytes = 0
        self.control.committed = self.committed
        while len(self._readers) > 1 and self._stored_before_last():
            done = self._readers.popleft()
            done.close()
            done.path.unlink(missing_ok=True)

    def _stored_before_last(self) -> bool:
        """Whether all of the oldest open segment is stored: it is read, and nothing of it waits."""
        return self._readers[0].last_seq <= self.committed

    @property
    def finished(self) -> bool:
        """Whether its writer is gone and everything of it is stored."""
        return self._exhausted and not self._waiting and self._read <= self.committed

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        self.control.close()

    def remove(self) -> None:
        """Close it, and remove the directory of a writer that is finished; refused files stay."""
        self.close()
        if not list(self.directory.glob("*.refused")):
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        for path in self.directory.iterdir():
            if path.suffix != ".refused":
                path.unlink(missing_ok=True)
