"""The fields of one event as they came, read one by one: each is checked, and what nobody reads is
known."""

import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from app.engines.events import ENGINE_POOL, EngineHash, PackedHashes

# Also a guard against small frames that would take much memory.
MAX_HASHES: Final = 65_536
MAX_TOKENS: Final = 4 * 1024 * 1024
MAX_HASH_BYTES: Final = 64
MAX_TEXT_CHARS: Final = 512
MAX_DEPTH: Final = 6
TOKEN_BYTES: Final = 4
U64: Final = 1 << 64
_I64_LEAST: Final = -(1 << 63)
_U32: Final = 1 << 32
# Of a multimodal object in a block, as one of Dynamo's producers sends it.
_OBJECT_FIELDS: Final = frozenset({"mm_hash", "offsets"})


_decoder: Final = msgspec.msgpack.Decoder()


class WireError(ValueError):
    """A frame that is not of any known format; its text says what is wrong with it."""


class Fields:
    """A field that is absent is None, as one that is null.

    What is still msgpack is read when it is asked for.
    """

    def __init__(self, found: Mapping[Any, Any]) -> None:
        self._found = found
        self._read: set[str] = set()

    def value(self, *names: str) -> Any:
        """The first of these that is there and not null."""
        self._read.update(names)
        for name in names:
            value = plain(self._found.get(name))
            if value is not None:
                return value
        return None

    def unread(self) -> list[str]:
        """The names of what was not asked for."""
        return [str(name) for name in self._found if name not in self._read]

    def text(self, *names: str) -> str | None:
        value = self.value(*names)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
            raise WireError(f"{names[0]} is a text of at most {MAX_TEXT_CHARS} characters")
        return value

    def number(self, name: str, least: int, most: int) -> int | None:
        value = self.value(name)
        return None if value is None else whole_number(value, name, least, most)

    def medium(self) -> str:
        """In lower case: one engine writes `CPU` in its source and `cpu` on its wire."""
        return (self.text("medium") or ENGINE_POOL).lower()

    def hashes(self, *names: str) -> Sequence[EngineHash]:
        packed = self._packed(*names)
        if packed is not None and len(packed) <= MAX_HASHES:
            return PackedHashes(packed)
        found = self.value(*names)
        if not isinstance(found, list) or len(found) > MAX_HASHES:
            raise WireError(f"{names[0]} is a list of at most {MAX_HASHES} hashes")
        return tuple(engine_hash(each) for each in found)

    def tokens(self, name: str) -> tuple[bytes, int]:
        """Token ids as little-endian u32, and how many a position has: 2 where each is a pair."""
        packed = self._packed(name)
        if packed is not None and len(packed) <= MAX_TOKENS:
            return little_endian(packed), 1
        found = self.value(name)
        if found is None:
            return b"", 1
        if not isinstance(found, list) or len(found) > MAX_TOKENS:
            raise WireError(f"{name} is a list of at most {MAX_TOKENS} token ids")
        if not found or not isinstance(found[0], list):
            return _packed(found, name), 1
        if any(not isinstance(pair, list) or len(pair) != 2 for pair in found):
            raise WireError(f"{name} has pairs, and something else")
        return _packed([token for pair in found for token in pair], name), 2

    def _packed(self, *names: str) -> memoryview | None:
        """The numbers of a list that was read without an object for each."""
        self._read.update(names)
        for name in names:
            value = self._found.get(name)
            if value is not None:
                return value if isinstance(value, memoryview) else None
        return None

    def extra_keys(self) -> tuple[tuple[object, ...] | None, ...] | None:
        return entries(self.value("extra_keys"))


def entries(found: Any) -> tuple[tuple[object, ...] | None, ...] | None:
    """What `extra_keys` says, None where it says nothing. Raises WireError."""
    if found is None:
        return None
    if not isinstance(found, list) or len(found) > MAX_HASHES:
        raise WireError("extra_keys is a list with one entry a block")
    return tuple(None if each is None else _entry(each) for each in found)


def objects(found: Any, blocks: int) -> tuple[tuple[object, ...] | None, ...] | None:
    """What `block_mm_infos` says, as entries of `extra_keys`: for each block its multimodal objects
    in their order, None for a block that has none.

    None where that is not to be understood: what such blocks hold is not known.
    """
    if not isinstance(found, list) or len(found) != blocks:
        return None
    made: list[tuple[object, ...] | None] = []
    for block in found:
        if block is None:
            made.append(None)
            continue
        inside = block.get("mm_objects") if isinstance(block, dict) and len(block) == 1 else None
        if not isinstance(inside, list) or not all(isinstance(one, dict) for one in inside):
            return None
        try:
            made.append(tuple(_object(one) for one in inside) or None)
        except WireError:
            return None
    return tuple(made)


def beside(
    keys: Sequence[tuple[object, ...] | None] | None,
    others: Sequence[tuple[object, ...] | None],
) -> tuple[tuple[object, ...] | None, ...]:
    """The entries of both, block by block; `others` has as many as `keys`, where these are."""
    if keys is None:
        return tuple(others)
    return tuple(
        ((one or ()) + (other or ())) or None for one, other in zip(keys, others, strict=True)
    )


def plain(value: Any) -> Any:
    """Raises WireError for what is no msgpack."""
    if isinstance(value, memoryview):
        return value.tolist()
    if isinstance(value, tuple):
        # Of nulls alone.
        return list(value)
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise WireError(f"not msgpack: {error}") from error


def engine_hash(value: Any) -> EngineHash:
    """An integer is taken as unsigned, however it was sent. Raises WireError."""
    if isinstance(value, bytes):
        if not 1 <= len(value) <= MAX_HASH_BYTES:
            raise WireError(f"a hash of {len(value)} bytes, at most {MAX_HASH_BYTES}")
        return value
    return whole_number(value, "a hash", _I64_LEAST, U64 - 1) % U64


def whole_number(value: Any, name: str, least: int, most: int) -> int:
    """Raises WireError for anything but an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise WireError(f"{name} is an integer from {least} to {most}")
    return value


def _packed(found: Sequence[Any], name: str) -> bytes:
    try:
        packed = array("I", found)
    except (TypeError, OverflowError):
        packed = None
    # True is an integer to Python, and no token.
    if packed is None or any(each is True or each is False for each in found):
        raise WireError(f"{name} has integers from 0 to {_U32 - 1}")
    return little_endian(packed)


def little_endian(numbers: "memoryview | array[int]") -> bytes:
    """Without a copy where the numbers are in bytes already."""
    if sys.byteorder == "big":
        numbers = array("I", numbers)
        numbers.byteswap()
    elif isinstance(numbers, memoryview):
        whole = numbers.obj
        if isinstance(whole, bytes) and len(whole) == numbers.nbytes:
            return whole
    return numbers.tobytes()


def _entry(value: Any) -> tuple[object, ...]:
    frozen = _frozen(value, MAX_DEPTH)
    if not isinstance(frozen, tuple):
        raise WireError("an entry of extra_keys is a list")
    return frozen


def _frozen(value: Any, depth_left: int) -> object:
    if not depth_left:
        raise WireError(f"extra_keys is nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return tuple(_frozen(each, depth_left - 1) for each in value)
    if isinstance(value, Mapping):
        if "mm_hash" in value and set(value) <= _OBJECT_FIELDS:
            return _object(value)
        return tuple((str(name), _frozen(each, depth_left - 1)) for name, each in value.items())
    if isinstance(value, int) and not _I64_LEAST <= value < U64:
        raise WireError(f"an integer of extra_keys is from {_I64_LEAST} to {U64 - 1}")
    if value is None or isinstance(value, (str, bytes, int, float)):
        return value
    raise WireError("extra_keys has texts, numbers, bytes, lists and maps")


def _object(found: Mapping[Any, Any]) -> object:
    """A multimodal object: its hash, unsigned; with where it is in the block, if that is said."""
    if not set(found) <= _OBJECT_FIELDS:
        raise WireError("a multimodal object has mm_hash and offsets")
    mm_hash = whole_number(found.get("mm_hash"), "mm_hash", _I64_LEAST, U64 - 1) % U64
    offsets = found.get("offsets")
    if offsets is None or offsets == []:
        return mm_hash
    if not isinstance(offsets, list) or any(
        not isinstance(pair, list) or len(pair) != 2 for pair in offsets
    ):
        raise WireError("offsets has pairs")
    return mm_hash, tuple(
        tuple(whole_number(each, "an offset", 0, _U32 - 1) for each in pair) for pair in offsets
    )
