"""Segments: files of one size, each with the frames of one writer in their order."""

import mmap
import os
import re
import struct
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from app.decisions.spool.frames import HEAD_BYTES, Frame, Torn, is_sealed, read_frame

_MAGIC: Final = b"NKVSPOOL"
_VERSION: Final = 2
_HEADER: Final = struct.Struct("<8sII16s")
HEADER_BYTES: Final = 64
_SUFFIX: Final = ".seg"
_NAME: Final = re.compile(r"([0-9]{12})\.seg")


class SegmentError(ValueError):
    """A file that is no segment of this format and writer."""


def segment_path(directory: Path, number: int) -> Path:
    return directory / f"{number:012d}{_SUFFIX}"


def segment_numbers(directory: Path) -> list[int]:
    """Of the segments in a writer's directory, in their order; files of other names are none."""
    found = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(name[1]) for name in found if name is not None)


class NewSegment(NamedTuple):
    """One that is empty, with its space taken from the disk, and mapped."""

    number: int
    descriptor: int
    data: mmap.mmap

    def close(self) -> None:
        self.data.close()
        os.close(self.descriptor)


def sync_directory(directory: Path) -> None:
    """Let the names in it outlive a crash of the machine. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_segment(directory: Path, number: int, writer_id: UUID, segment_bytes: int) -> NewSegment:
    """Raises OSError where the disk has no room: the space is taken here, and not when a row comes.

    A file that could not be filled is removed. It has its name once it is whole, also on the disk:
    whoever finds one finds a segment, whenever this process or the machine went.
    """
    path = segment_path(directory, number)
    made = path.with_suffix(".new")
    descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, segment_bytes)
        os.pwrite(descriptor, _HEADER.pack(_MAGIC, _VERSION, 0, writer_id.bytes), 0)
        data = mmap.mmap(descriptor, segment_bytes)
        os.fsync(descriptor)
        made.rename(path)
        sync_directory(directory)
    except OSError:
        os.close(descriptor)
        made.unlink(missing_ok=True)
        raise
    return NewSegment(number, descriptor, data)


class SegmentReader:
    """Reads the frames of one segment, also while they are written."""

    def __init__(self, directory: Path, number: int, writer_id: UUID) -> None:
        """Raises SegmentError, FileNotFoundError."""
        self.number = number
        self.path = segment_path(directory, number)
        with self.path.open("rb") as opened:
            file_bytes = os.fstat(opened.fileno()).st_size
            if file_bytes < HEADER_BYTES + HEAD_BYTES:
                raise SegmentError(f"{self.path.name} is too short")
            self._data = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        magic, version, _, writer = _HEADER.unpack_from(self._data, 0)
        if (magic, version, writer) != (_MAGIC, _VERSION, writer_id.bytes):
            self._data.close()
            raise SegmentError(f"{self.path.name} is no segment of this writer and version")
        self._at = HEADER_BYTES
        self._given_up = False
        # The number of the last frame that was read; 0 for none.
        self.last_seq = 0

    def next(self) -> Frame | Torn | None:
        """The next frame; None or Torn as `read_frame`, and the same place is read again then."""
        if self._given_up:
            return None
        found = read_frame(self._data, self._at)
        if isinstance(found, Frame):
            self._at = found.end
            self.last_seq = found.seq
        return found

    def skip_torn(self, after_seq: int, *, more_may_come: bool) -> bool:
        """Go on behind what is torn: to the next whole frame of a higher number.

        A crash of the machine may lose pages in the middle. False where there is no such frame:
        then this segment has ended, unless its writer lives.
        """
        begin = self._at + 8
        rest = self._data[begin:]
        written_bytes = len(rest.rstrip(b"\0"))
        empty_bytes = len(rest) - len(rest.lstrip(b"\0"))
        for at in range(begin + (empty_bytes & ~7), begin + written_bytes, 8):
            found = read_frame(self._data, at)
            if isinstance(found, Frame) and found.seq > after_seq:
                self._at = at
                return True
        self._given_up = not more_may_come
        return False

    @property
    def ended(self) -> bool:
        """Whether the writer has gone on to another segment, and this one was read to its end."""
        return self._given_up or is_sealed(self._data, self._at)

    def close(self) -> None:
        self._data.close()
