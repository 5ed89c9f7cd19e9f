"""Copies of a block index in a file: checksummed, and put in the place of the one before at once.

A file is one line of JSON (what is where, with XXH3-128 of each part), zeros up to a page, and the
parts of the arena, each from a page on.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from xxhash import xxh3_128_hexdigest

FORMAT: Final = "nexuskv-index-2"
PAGE_BYTES: Final = 4096
MAX_HEAD_BYTES: Final = 64 << 20
# Of streams and names there is nothing that others may read.
_MODE: Final = 0o600


class SnapshotError(ValueError):
    """A file that is no whole copy of an index of this version; its text says why."""


class _Index(Protocol):
    def regions(self) -> list[tuple[int, memoryview]]: ...
    def memory(self, at: int, length: int) -> memoryview: ...
    def adopt(self) -> None: ...
    def stats(self) -> dict[str, int]: ...


def write_snapshot(index: _Index, path: Path | str, meta: bytes = b"") -> None:
    """`meta` comes back with the copy; at most some 30 MB. Raises OSError."""
    path = Path(path)
    stats = index.stats()
    regions = index.regions()
    parts: list[dict[str, Any]] = [
        {"at": at, "bytes": len(memory), "xxh3": xxh3_128_hexdigest(memory)}
        for at, memory in regions
    ]
    content = {
        "format": FORMAT,
        "max_blocks": stats["max_blocks"],
        "max_bytes": stats["max_bytes"],
        "parts": parts,
        "meta": meta.hex(),
    }
    text = json.dumps(content).encode()
    head = json.dumps({"xxh3": xxh3_128_hexdigest(text)}).encode() + b"\n" + text + b"\n"
    beside = path.with_name(path.name + ".new")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(beside, flags, _MODE), "wb") as file:
            file.write(head)
            for _, memory in regions:
                _pad(file)
                file.write(memory)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def read_snapshot(path: Path | str, make: Callable[[int, int], Any]) -> tuple[Any, bytes]:
    """The index and its `meta`; `make(max_blocks, max_bytes)` gives an empty one.

    Raises SnapshotError, OSError.
    """
    with Path(path).open("rb") as file:
        content = _head(file)
        index = make(content["max_blocks"], content["max_bytes"])
        for part in content["parts"]:
            file.seek(-file.tell() % PAGE_BYTES, os.SEEK_CUR)
            memory = _part(index, part)
            if file.readinto(memory) != len(memory):
                raise SnapshotError("the file ends early")
            if xxh3_128_hexdigest(memory) != part["xxh3"]:
                raise SnapshotError("a part of the file was changed")
    try:
        index.adopt()
    except ValueError as error:
        raise SnapshotError(str(error)) from error
    return index, bytes.fromhex(content["meta"])


def _part(index: _Index, part: dict[str, int]) -> memoryview:
    try:
        return index.memory(part["at"], part["bytes"])
    except ValueError as error:
        raise SnapshotError(str(error)) from error


def _head(file: Any) -> dict[str, Any]:
    try:
        check = json.loads(file.readline(MAX_HEAD_BYTES))
        text = file.readline(MAX_HEAD_BYTES).rstrip(b"\n")
        if check["xxh3"] != xxh3_128_hexdigest(text):
            raise SnapshotError("the file's first lines were changed")
        content = json.loads(text)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, SnapshotError):
            raise
        raise SnapshotError("not a copy of an index") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise SnapshotError("a copy of another version")
    return content


def _pad(file: Any) -> None:
    file.write(bytes(-file.tell() % PAGE_BYTES))


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
