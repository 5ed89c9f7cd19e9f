"""Turns the ids of a trace into tokens: the same id is the same block, here and on any machine.

A block's tokens are the output of SHAKE-128 over its id, two bytes a token, so a vocabulary of
65,536. Distinct ids therefore never share a whole block, and a body stays within six bytes a token.
"""

import hashlib
import sys
from array import array
from functools import lru_cache
from typing import NamedTuple

import msgspec

from app.cli.trace_format import TraceRequest

BYTES_PER_TOKEN = 2
CACHE_BYTES = 128 * 1024 * 1024
CACHED_BYTES_PER_TOKEN = 8  # two raw, at most six as JSON


class Prompt(NamedTuple):
    """Tokens ready for a body: a JSON array, how many they are, and the hash that names them."""

    tokens_json: bytes
    token_count: int
    fingerprint: str


class _Block(NamedTuple):
    raw: bytes
    json: bytes


class TokenSource:
    """Expands requests; blocks already made are kept in an LRU of at most CACHE_BYTES."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        kept = max(1, CACHE_BYTES // (block_tokens * CACHED_BYTES_PER_TOKEN))
        self._block = lru_cache(maxsize=kept)(self._make)

    def whole(self, request: TraceRequest) -> Prompt:
        """The whole input; the last block is cut to `input_length`."""
        return self._prompt(request, request.input_length)

    def full_blocks(self, request: TraceRequest) -> Prompt | None:
        """The leading whole blocks, which a cache can keep; None where the input has none."""
        count = request.full_blocks(self._block_tokens)
        return self._prompt(request, count * self._block_tokens) if count else None

    def tokens(self, request: TraceRequest) -> "array[int]":
        """The whole input as unsigned 32-bit integers."""
        raw, _ = self._parts(request, request.input_length)
        return array("I", _values(b"".join(raw)))

    def _prompt(self, request: TraceRequest, token_count: int) -> Prompt:
        raw, fragments = self._parts(request, token_count)
        digest = hashlib.blake2b(digest_size=16)
        for part in raw:
            digest.update(part)
        return Prompt(
            tokens_json=b"[" + b",".join(fragments) + b"]",
            token_count=token_count,
            fingerprint=f"nexuskv-replay-blake2b-v1:{digest.hexdigest()}",
        )

    def _parts(self, request: TraceRequest, token_count: int) -> tuple[list[bytes], list[bytes]]:
        whole, rest = divmod(token_count, self._block_tokens)
        blocks = [self._block(hash_id) for hash_id in request.hash_ids[:whole]]
        if rest:
            cut = self._block(request.hash_ids[whole]).raw[: rest * BYTES_PER_TOKEN]
            blocks.append(_Block(cut, _fragment(cut)))
        return [block.raw for block in blocks], [block.json for block in blocks]

    def _make(self, hash_id: int) -> _Block:
        seed = b"nexuskv-replay-block-v1:%d" % hash_id
        raw = hashlib.shake_128(seed).digest(self._block_tokens * BYTES_PER_TOKEN)
        return _Block(raw, _fragment(raw))


def _values(raw: bytes) -> list[int]:
    values = array("H", raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def _fragment(raw: bytes) -> bytes:
    return msgspec.json.encode(_values(raw))[1:-1]
