"""The block index in plain Python by sets and dictionaries: the oracle of the compiled one."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from nexuskv_core.reference import KEY_BYTES, chain

MAX_LABEL_BYTES: Final = 4096
U64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
Segment = tuple[int, int, int]


class BusyError(RuntimeError):
    """The writer did not finish a change; never raised here."""


class IndexFullError(RuntimeError):
    """Nothing can be forgotten to make room; never raised here."""


class Progress(NamedTuple):
    """How far a stream was applied; `state` is the caller's."""

    sequence: int
    at_us: int
    state: int


class _Stream:
    def __init__(self, label: bytes) -> None:
        self.label = label
        self.open = True
        self.names: dict[int, bytes] = {}
        self.name_of: dict[bytes, int] = {}
        self.progress = Progress(0, 0, 0)


class _Holder:
    def __init__(self, stream: int, label: bytes) -> None:
        self.stream = stream
        self.label = label
        self.open = True
        self.held: set[bytes] = set()


class BlockIndex:
    """Which holder has which blocks of which chains. Compiled: see `_blocks.pyx`.

    A stream is what one publisher said in one epoch; a holder is a place of it (a medium and a
    group). Both are numbers from 1, never used again. Keys are 16 bytes, chained: equal keys are
    equal chains.

    Names are u64, and mean something within their stream only, as long as one of its holders has
    the block. Most engines of a fleet give a block the same name, so the first name that a block
    gets is kept once, for every stream that calls it so; a stream that calls the block otherwise,
    or means another block by that name, has a name of its own for it.
    """

    def __init__(self) -> None:
        self._streams: list[_Stream | None] = [None]
        self._holders: list[_Holder | None] = [None]
        # Key -> its parent's, for every block that is held or has such a descendant.
        self._parents: dict[bytes, bytes | None] = {}
        self._children: dict[bytes, set[bytes]] = {}
        self._shared: dict[int, bytes] = {}
        self._shared_of: dict[bytes, int] = {}
        self.collisions = 0

    # ---- streams and holders

    def open_stream(self, label: bytes = b"") -> int:
        """A new number for what a publisher says from now on."""
        self._streams.append(_Stream(_label(label)))
        return len(self._streams) - 1

    def open_holder(self, stream: int, label: bytes = b"") -> int:
        """A new number for a place of an open stream; ValueError when it is none."""
        self._open_stream(stream)
        self._holders.append(_Holder(stream, _label(label)))
        return len(self._holders) - 1

    def close_stream(self, stream: int) -> bool:
        """Forget its names and all that its holders have, at once. False when it is not open."""
        found = self._streams[stream] if 0 < stream < len(self._streams) else None
        if found is None or not found.open:
            return False
        found.open = False
        found.names.clear()
        found.name_of.clear()
        for number, holder in enumerate(self._holders):
            if holder is not None and holder.stream == stream:
                self.close_holder(number)
        return True

    def close_holder(self, holder: int) -> bool:
        """Nothing is there any more, at once. False when it is not open."""
        found = self._holders[holder] if 0 < holder < len(self._holders) else None
        if found is None or not found.open:
            return False
        found.open = False
        held = sorted(found.held, key=self._depth, reverse=True)
        found.held.clear()
        for key in held:
            self._settle(key)
        return True

    def sweep(self, blocks: int = U64_MAX) -> bool:
        """Give back memory of what was closed, at most so many blocks; True when all is done."""
        return blocks >= 0

    def label(self, holder: int) -> bytes:
        """What an open holder was opened with; ValueError when it is none."""
        return self._open_holder(holder).label

    def stream_of(self, holder: int) -> int:
        """The stream of an open holder; ValueError when it is none."""
        return self._open_holder(holder).stream

    def set_progress(self, stream: int, sequence: int, at_us: int, state: int) -> None:
        """Say how far an open stream was applied; ValueError when it is none."""
        self._open_stream(stream).progress = Progress(sequence, at_us, state)

    def progress(self, stream: int) -> Progress:
        """What was said last, zeros before; ValueError when it is no open stream."""
        return self._open_stream(stream).progress

    # ---- writing

    def store(
        self, holder: int, names: Sequence[int], keys: bytes, *, parent: int | None = None
    ) -> int | None:
        """Blocks that are there now, each the child of the one before; how many were not before.

        `keys` has 16 bytes a name. `parent`: the name of the first one's parent in this stream, to
        whose key the first key is chained.
        None, and nothing is stored, when no block has that name. A name that meant another block
        means this one from now on, and the other one is no longer there.
        """
        found = self._open_holder(holder)
        if len(keys) != KEY_BYTES * len(names):
            raise ValueError("keys has 16 bytes for each name")
        above: bytes | None = None
        if parent is not None:
            above = self._held_name(found.stream, parent)
            if above is None:
                return None
        new = 0
        for number, name in enumerate(names):
            key = keys[number * KEY_BYTES : (number + 1) * KEY_BYTES]
            if key not in self._parents:
                self._parents[key] = above
                if above is not None:
                    self._children.setdefault(above, set()).add(key)
            new += key not in found.held
            found.held.add(key)
            self._name(found.stream, name, key)
            above = key
        return new

    def store_tokens(
        self,
        holder: int,
        scope_key: bytes,
        names: Sequence[int],
        tokens: Iterable[int],
        block_tokens: int,
        *,
        parent: int | None = None,
        extras: Sequence[bytes | None] | None = None,
    ) -> int | None:
        """`store` with the keys made from the tokens, chained to the parent's key."""
        above = None
        if parent is not None:
            above = self.key_of(self._open_holder(holder).stream, parent)
            if above is None:
                return None
        keys = chain(scope_key, tokens, block_tokens, parent=above, extras=extras)
        return self.store(holder, names, keys, parent=parent)

    def hold(self, holder: int, names: Sequence[int]) -> int:
        """Blocks of known names are at this holder, too; how many names are not known."""
        found = self._open_holder(holder)
        unknown = 0
        for name in names:
            key = self._held_name(found.stream, name)
            if key is None:
                unknown += 1
            else:
                found.held.add(key)
        return unknown

    def remove(self, holder: int, names: Sequence[int]) -> int:
        """Blocks that are not there any more; how many of them were."""
        found = self._open_holder(holder)
        removed = 0
        for name in names:
            key = self._held_name(found.stream, name)
            if key is not None and key in found.held:
                removed += 1
                found.held.discard(key)
                self._settle(key)
        return removed

    # ---- reading

    def key_of(self, stream: int, name: int) -> bytes | None:
        """The key of the block that an open stream has and calls so; None when there is none."""
        self._open_stream(stream)
        return self._held_name(stream, name)

    def find(self, keys: bytes) -> list[Segment]:
        """(holder, start, end) for every stretch of the chain that is at an open holder, in blocks.

        In no order. `keys`: 16 bytes a block, from the first block on.
        """
        path = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
        return self._segments(path, range(1, len(self._holders)))

    def find_names(self, stream: int, names: Sequence[int]) -> list[Segment]:
        """Likewise within one stream, for a chain by its names there, from the first block on."""
        self._open_stream(stream)
        path: list[bytes] = []
        for name in names:
            key = self._known_name(stream, name)
            if key is None or self._parents[key] != (path[-1] if path else None):
                break
            path.append(key)
        mine = [
            number
            for number, holder in enumerate(self._holders)
            if holder is not None and holder.stream == stream
        ]
        return self._segments(path, mine)

    def reach(self, keys: bytes) -> dict[int, int]:
        """How many leading blocks each open holder has; those that have none are absent."""
        return {holder: end for holder, start, end in self.find(keys) if start == 0}

    def reach_many(self, queries: Sequence[bytes]) -> list[dict[int, int]]:
        """`reach` for each of them."""
        return [self.reach(keys) for keys in queries]

    # ---- looking inside

    def stats(self) -> dict[str, int]:
        """blocks, streams, holders (open ones), forgotten, collisions, memory_bytes."""
        return {
            "blocks": len(self._parents),
            "streams": sum(one is not None and one.open for one in self._streams),
            "holders": sum(one is not None and one.open for one in self._holders),
            "forgotten": 0,
            "collisions": self.collisions,
            "memory_bytes": 0,
        }

    def held(self, holder: int) -> int:
        """How many blocks an open holder has."""
        return len(self._open_holder(holder).held)

    def dump(self) -> Iterator[bytes]:
        """One JSON line a fact: what `replay` needs to say it all again."""
        for number, holder in enumerate(self._holders):
            if holder is not None and holder.open:
                for key in sorted(holder.held):
                    yield json.dumps({"holder": number, "key": key.hex()}).encode()

    def check_invariants(self) -> None:
        """AssertionError when something does not add up."""
        for key, parent in self._parents.items():
            assert parent is None or parent in self._parents
            assert self._children.get(key) or self._is_held(key)

    # ---- inside

    def _open_stream(self, number: int) -> _Stream:
        found = self._streams[number] if 0 < number < len(self._streams) else None
        if found is None or not found.open:
            raise ValueError(f"no open stream {number}")
        return found

    def _open_holder(self, number: int) -> _Holder:
        found = self._holders[number] if 0 < number < len(self._holders) else None
        if found is None or not found.open:
            raise ValueError(f"no open holder {number}")
        return found

    def _holders_of(self, stream: int) -> Iterator[_Holder]:
        return (one for one in self._holders if one is not None and one.stream == stream)

    def _known_name(self, number: int, name: int) -> bytes | None:
        stream = self._open_stream(number)
        key = stream.names.get(name)
        if key is not None:
            return key
        key = self._shared.get(name)
        return None if key in stream.name_of else key

    def _held_name(self, number: int, name: int) -> bytes | None:
        key = self._known_name(number, name)
        held = any(key in holder.held for holder in self._holders_of(number))
        return key if held else None

    def _name(self, number: int, name: int, key: bytes) -> None:
        stream = self._open_stream(number)
        before = self._held_name(number, name)
        if before is not None and before != key:
            self.collisions += 1
            self._unname(stream, name)
            for holder in self._holders_of(number):
                holder.held.discard(before)
            self._settle(before)
        if stream.names.get(name, key) != key:
            self._unname(stream, name)
        mine, common = stream.name_of.get(key), self._shared_of.get(key)
        if mine == name:
            return
        if mine is not None:
            self._unname(stream, mine)
        if common is None and name not in self._shared:
            self._shared[name], self._shared_of[key] = key, name
        elif common != name:
            stream.names[name], stream.name_of[key] = key, name

    @staticmethod
    def _unname(stream: _Stream, name: int) -> None:
        key = stream.names.pop(name, None)
        if key is not None:
            del stream.name_of[key]

    def _is_held(self, key: bytes) -> bool:
        return any(one is not None and key in one.held for one in self._holders)

    def _depth(self, key: bytes) -> int:
        depth = 0
        above = self._parents.get(key)
        while above is not None:
            depth += 1
            above = self._parents.get(above)
        return depth

    def _settle(self, key: bytes | None) -> None:
        """A block that nobody has and nothing hangs on leaves, and so upwards."""
        while key is not None and key in self._parents:
            if self._children.get(key) or self._is_held(key):
                return
            above = self._parents.pop(key)
            self._children.pop(key, None)
            if above is not None:
                self._children[above].discard(key)
            for stream in self._streams:
                if stream is not None and key in stream.name_of:
                    del stream.names[stream.name_of.pop(key)]
            if key in self._shared_of:
                del self._shared[self._shared_of.pop(key)]
            key = above

    def _segments(self, path: Sequence[bytes], holders: Iterable[int]) -> list[Segment]:
        found: list[Segment] = []
        for number in holders:
            holder = self._holders[number]
            if holder is None or not holder.open:
                continue
            start: int | None = None
            for at, key in enumerate(path):
                if key in holder.held:
                    start = at if start is None else start
                elif start is not None:
                    found.append((number, start, at))
                    start = None
            if start is not None:
                found.append((number, start, len(path)))
        return found


def _label(label: bytes) -> bytes:
    if len(label) > MAX_LABEL_BYTES:
        raise ValueError(f"a label has at most {MAX_LABEL_BYTES} bytes")
    return bytes(label)
