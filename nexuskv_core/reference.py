"""The same index in plain Python by brute force: the oracle the compiled one is tested against.

Every match compares the query with every entry of the scope, token by token.
"""

import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from typing_extensions import Buffer

from nexuskv_core.rules import (
    BLOCK_TOKENS,
    CLASS_EXACT,
    CLASS_PARTIAL,
    CLASS_PREFIX,
    MAX_CANDIDATES,
    RULE_CHECKPOINT,
    RULE_EXACT_ONLY,
    RULE_PREFIX_CLOSED,
)

U32_MAX: Final = 0xFFFF_FFFF
U64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
SCOPE_KEY_BYTES: Final = 16
KEY_BYTES: Final = 16
FRAME_HEAD: Final = struct.Struct("<IIQ")
NO_PARENT: Final = bytes(KEY_BYTES)
MAX_BLOCK_TOKENS: Final = 1 << 20
_SPACE: Final = r"[ \t\r\n]*"
_NUMBER: Final = re.compile(r"[0-9]+")
_TOKEN_ARRAY: Final = re.compile(
    rf"{_SPACE}\[({_SPACE}(?:(?:0|[1-9][0-9]{{0,9}}){_SPACE}"
    rf"(?:,{_SPACE}(?:0|[1-9][0-9]{{0,9}}){_SPACE})*)?)\]{_SPACE}"
)


def msgpack_u32(data: Buffer) -> bytes | None:
    """A msgpack array of numbers from 0 to 2^32 - 1 as native uint32; None for anything else."""
    return _packed(data, "I", 0, U32_MAX)


def msgpack_u64(data: Buffer) -> bytes | None:
    """A msgpack array of numbers from -2^63 to 2^64 - 1, modulo 2^64, as native uint64; None for
    anything else."""
    return _packed(data, "Q", -(1 << 63), U64_MAX)


def frame_check(payload: bytes, seq: int) -> int:
    """The checksum of a frame, 32 bits: SipHash-1-3-128 of the payload under the number."""
    digest = siphash_128(struct.pack("<QQ", seq, 0), payload)
    return int.from_bytes(digest[:4], "little")


def write_frame(into: Any, at: int, seq: int, payload: bytes) -> int:
    """Write a frame at a multiple of 8; returns where the next one begins.

    ValueError where it has no room, or the place is none.
    """
    start = at + FRAME_HEAD.size
    end = start + (len(payload) + 7 & ~7)
    if at < 0 or at % 8 or end > len(into):
        raise ValueError("a frame has no room there")
    into[start : start + len(payload)] = payload
    FRAME_HEAD.pack_into(into, at, len(payload), frame_check(payload, seq), seq)
    return end


def make_writable(_data: Buffer, _at: int, _length: int) -> int:
    """Does nothing."""
    return 0


def msgpack_batch(_data: Buffer, _max_events: int) -> None:
    """Never reads one; whoever calls it reads the frame in another way then."""


def _packed(data: Buffer, code: str, least: int, most: int) -> bytes | None:
    try:
        numbers = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    if not isinstance(numbers, list) or any(
        type(number) is not int or not least <= number <= most for number in numbers
    ):
        return None
    return array(code, (number % (most + 1) for number in numbers)).tobytes()


def chain(
    scope_key: bytes,
    tokens: Iterable[int],
    block_tokens: int,
    *,
    parent: bytes | None = None,
    extras: Sequence[bytes | None] | None = None,
) -> bytes:
    """The 16-byte keys of a list's whole blocks, one after the other.

    A key is SipHash-1-3-128 under the scope's key of the block's tokens as little-endian u32 (with
    zeros up to a multiple of 8 bytes), its extra digest (16 bytes, where it has one) and the key of
    its parent (zeros for the first block).
    """
    packed = array("I", tokens)
    if not 1 <= block_tokens <= MAX_BLOCK_TOKENS:
        raise ValueError(f"block_tokens is from 1 to {MAX_BLOCK_TOKENS}")
    blocks = len(packed) // block_tokens
    if extras is not None and len(extras) != blocks:
        raise ValueError("extras has one entry a block")
    previous = NO_PARENT if parent is None else parent
    keys = []
    for block in range(blocks):
        extra = b"" if extras is None else extras[block] or b""
        text = packed[block * block_tokens : (block + 1) * block_tokens].tobytes()
        text += bytes(-len(text) % 8)
        previous = siphash_128(scope_key, text + extra + previous)
        keys.append(previous)
    return b"".join(keys)


class TokenText:
    """A JSON array of tokens; the compiled one is a uint32 buffer, this one goes by `tolist`."""

    def __init__(self, text: bytes | bytearray | memoryview) -> None:
        self._text = bytes(text).decode("ascii", "replace")
        found = _TOKEN_ARRAY.fullmatch(self._text)
        numbers = [] if found is None else [int(n) for n in _NUMBER.findall(found.group(1))]
        if found is None or any(number > U32_MAX for number in numbers):
            raise ValueError("not a JSON array of integers from 0 to 4294967295")
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def tolist(self) -> list[int]:
        return list(self._numbers)

    def json_prefix(self, count: int) -> bytes:
        """The text of the first `count` tokens, without brackets; ValueError beyond the last."""
        if not 0 <= count <= len(self._numbers):
            raise ValueError("there are not so many tokens")
        inside = self._text[self._text.index("[") + 1 : self._text.rindex("]")]
        return ",".join(inside.split(",")[:count]).encode()


Tokens = list[int] | tuple[int, ...] | memoryview | TokenText  # or another buffer of uint32


class Entry(NamedTuple):
    scope_key: bytes
    tokens: tuple[int, ...]
    rule: int
    unit_tokens: int
    partial: bool
    order: int


class MatchSet:
    """`candidates` are (entry, classification, units), best first; `truncated` more were cut."""

    __slots__ = ("candidates", "identity", "truncated")

    def __init__(
        self, identity: bytes, candidates: list[tuple[int, int, int]], truncated: int
    ) -> None:
        self.identity = identity
        self.candidates = candidates
        self.truncated = truncated


def siphash_128(key: bytes, message: bytes, c_rounds: int = 1, d_rounds: int = 3) -> bytes:
    """SipHash-c-d with 128-bit output; `key` is 16 bytes."""
    k0, k1 = struct.unpack("<QQ", _checked_key(key))
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]
    whole = len(message) // 8 * 8
    last = message[whole:].ljust(7, b"\0") + bytes([len(message) % 256])
    for (word,) in struct.iter_unpack("<Q", message[:whole] + last):
        v[3] ^= word
        _sip_rounds(v, c_rounds)
        v[0] ^= word
    v[2] ^= 0xEE
    _sip_rounds(v, d_rounds)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    _sip_rounds(v, d_rounds)
    return struct.pack("<QQ", low, v[0] ^ v[1] ^ v[2] ^ v[3])


def _sip_rounds(v: list[int], rounds: int) -> None:
    a, b, c, d = v
    for _ in range(rounds):
        a = (a + b) & U64_MAX
        c = (c + d) & U64_MAX
        b = _rotate(b, 13) ^ a
        d = _rotate(d, 16) ^ c
        a = _rotate(a, 32)
        c = (c + b) & U64_MAX
        a = (a + d) & U64_MAX
        b = _rotate(b, 17) ^ c
        d = _rotate(d, 21) ^ a
        c = _rotate(c, 32)
    v[:] = a, b, c, d


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & U64_MAX


def _checked_key(scope_key: bytes) -> bytes:
    if not isinstance(scope_key, bytes):
        raise TypeError("a scope key is bytes")
    if len(scope_key) != SCOPE_KEY_BYTES:
        raise ValueError("a scope key is 16 bytes")
    return scope_key


def _checked_number(number: int, name: str, limit: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name} is an integer")
    if not 0 <= number <= limit:
        raise ValueError(f"{name} is from 0 to {limit}")
    return number


def _checked_tokens(tokens: Tokens) -> tuple[int, ...]:
    if isinstance(tokens, list | tuple):
        return tuple(
            _checked_number(token, f"token {position}", U32_MAX)
            for position, token in enumerate(tokens)
        )
    if isinstance(tokens, TokenText):
        return tuple(tokens)
    view = memoryview(tokens)  # TypeError for what is no buffer
    if (
        view.ndim != 1
        or not view.c_contiguous
        or view.itemsize != 4
        or view.format.lstrip("@=<") not in ("I", "L")
    ):
        raise ValueError("a token buffer has one dimension of contiguous native uint32")
    return struct.unpack(f"={len(view)}I", view.tobytes())


def _shared_length(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return position
    return min(len(a), len(b))


def _classify(entry: Entry, query: tuple[int, ...]) -> tuple[int, int] | None:
    """(classification, units), or None where the entry is of no use."""
    shared = _shared_length(entry.tokens, query)
    if shared == len(entry.tokens):
        found = CLASS_EXACT if shared == len(query) else CLASS_PREFIX
    else:
        found = CLASS_PARTIAL
    if found == CLASS_PREFIX and entry.rule == RULE_EXACT_ONLY:
        return None
    if found == CLASS_PARTIAL and not entry.partial:
        return None
    units = shared - shared % entry.unit_tokens if entry.unit_tokens else shared
    return (found, units) if units else None


class PrefixIndex:
    def __init__(self, *, block_tokens: int = 16) -> None:
        if block_tokens not in BLOCK_TOKENS:
            raise ValueError("block_tokens is 2, 4, 8 or 16")
        self._block_tokens = block_tokens
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def identity(self, scope_key: bytes, tokens: Tokens) -> bytes:
        listed = _checked_tokens(tokens)
        return siphash_128(scope_key, struct.pack(f"<{len(listed)}I", *listed))

    def add(
        self,
        scope_key: bytes,
        tokens: Tokens,
        entry: int,
        *,
        rule: int,
        unit_tokens: int,
        partial: bool,
        order: int,
    ) -> None:
        _checked_number(entry, "entry", U32_MAX)
        _checked_number(unit_tokens, "unit_tokens", U32_MAX)
        _checked_number(rule, "rule", RULE_EXACT_ONLY)
        _checked_number(order, "order", U64_MAX)
        if not isinstance(partial, bool):
            raise TypeError("partial is a bool")
        _checked_key(scope_key)
        listed = _checked_tokens(tokens)
        if not listed:
            raise ValueError("an entry has at least one token")
        if entry in self._entries:
            raise ValueError(f"entry {entry} is already present")
        unit = 0 if rule == RULE_CHECKPOINT else unit_tokens
        may_be_partial = partial and rule == RULE_PREFIX_CLOSED and unit > 0
        self._entries[entry] = Entry(scope_key, listed, rule, unit, may_be_partial, order)

    def remove(self, entry: int) -> bool:
        return self._entries.pop(_checked_number(entry, "entry", U32_MAX), None) is not None

    def match(
        self,
        scope_key: bytes,
        tokens: Tokens,
        *,
        max_candidates: int = MAX_CANDIDATES,
    ) -> MatchSet:
        if _checked_number(max_candidates, "max_candidates", 1 << 20) == 0:
            raise ValueError("max_candidates is at least 1")
        query = _checked_tokens(tokens)
        found: list[tuple[int, int, int, int]] = []
        for number, entry in self._entries.items():
            if entry.scope_key == scope_key:
                match _classify(entry, query):
                    case classification, units:
                        found.append((-units, classification, entry.order, number))
        found.sort()
        candidates = [(number, found_as, -units) for units, found_as, _, number in found]
        return MatchSet(
            self.identity(scope_key, tokens),
            candidates[:max_candidates],
            max(0, len(candidates) - max_candidates),
        )

    def stats(self) -> dict[str, int]:
        prefixes = {
            (entry.scope_key, entry.rule, entry.unit_tokens, entry.partial, entry.tokens[:end])
            for entry in self._entries.values()
            for end in range(self._block_tokens, len(entry.tokens) + 1, self._block_tokens)
        }
        return {
            "entries": len(self._entries),
            "blocks": len(prefixes),
            "scopes": len({entry.scope_key for entry in self._entries.values()}),
            "memory_bytes": sum(8 * len(entry.tokens) for entry in self._entries.values()),
        }

    def dump(self) -> list[tuple[bytes, int, int, bool, int, int, int]]:
        return sorted(
            (e.scope_key, e.rule, e.unit_tokens, e.partial, len(e.tokens), e.order, number)
            for number, e in self._entries.items()
        )

    def check_invariants(self) -> None:
        assert all(entry.tokens for entry in self._entries.values()), "an entry has tokens"
