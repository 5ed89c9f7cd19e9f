"""What a writer and the copier tell each other: words of a mapped file beside the segments.

Each word has one side that writes it. They outlive both, as the segments do; losing them loses
nothing, as Postgres has what is stored and the segments what was recorded.
"""

import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import Final

_WORD: Final = struct.Struct("<Q")
_FILE_BYTES: Final = 4096
_NAME: Final = "control"
# By the copier: through which number all rows are stored, or known to be lost.
_COMMITTED: Final = 0
# By the writer: the newest number that was recorded when rows were lost, and how many were.
_RECORDED: Final = 64
_LOST: Final = 72
# By the writer: through which number somebody waits for.
_WANTED: Final = 128
# By the copier: when it last found Postgres well, in microseconds since the epoch.
_WELL_AT: Final = 192


class Control:
    """One writer's file. The writer locks it for as long as it lives."""

    def __init__(self, directory: Path, *, writer: bool) -> None:
        """Raises OSError. Whoever is not its writer opens what is there."""
        # Its writer has locked it before anybody finds it: nobody takes the writer for dead.
        path = directory / (f"{_NAME}.new" if writer else _NAME)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if writer else 0)
        self._descriptor = os.open(path, flags, 0o600)
        try:
            if writer:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._descriptor).st_size < _FILE_BYTES:
                # Also of one that a crash of the machine cut short: what is in it is not needed.
                os.posix_fallocate(self._descriptor, 0, _FILE_BYTES)
            self._data = mmap.mmap(self._descriptor, _FILE_BYTES)
            if writer:
                path.rename(directory / _NAME)
        except OSError:
            os.close(self._descriptor)
            if writer:
                path.unlink(missing_ok=True)
            raise

    def writer_lives(self) -> bool:
        """Whether another process, or this one, still has it as its writer."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    @property
    def committed(self) -> int:
        return self._get(_COMMITTED)

    @committed.setter
    def committed(self, seq: int) -> None:
        _WORD.pack_into(self._data, _COMMITTED, seq)

    @property
    def recorded(self) -> int:
        return self._get(_RECORDED)

    @property
    def wanted(self) -> int:
        return self._get(_WANTED)

    @wanted.setter
    def wanted(self, seq: int) -> None:
        _WORD.pack_into(self._data, _WANTED, seq)

    @property
    def well_at_us(self) -> int:
        return self._get(_WELL_AT)

    @well_at_us.setter
    def well_at_us(self, now_us: int) -> None:
        _WORD.pack_into(self._data, _WELL_AT, now_us)

    @property
    def lost(self) -> int:
        return self._get(_LOST)

    def note_lost(self, recorded: int, lost: int) -> None:
        """`recorded` numbers were given out, `lost` of them to rows that are in no segment."""
        _WORD.pack_into(self._data, _RECORDED, recorded)
        _WORD.pack_into(self._data, _LOST, lost)

    def _get(self, at: int) -> int:
        (word,) = _WORD.unpack_from(self._data, at)
        return int(word)

    def close(self) -> None:
        """The lock goes with it."""
        self._data.close()
        os.close(self._descriptor)
