"""Request traces: one JSON object a line, read as a stream, with the hit rate they could reach.

A line holds `timestamp` (ms from start), `input_length` and `output_length` (tokens), and
`hash_ids`, one integer for each `block_tokens` tokens of the input, in order; the last block may be
partial. Equal ids mean equal content *and* equal prefix position, so a shared leading run of ids is
a shared prefix.

**The infinite-cache bound.** A prefix cache keeps whole blocks, so a block counts as reusable only
when it is full in the request that asks and was full in an earlier request. With `n` the number of
leading full blocks of a request whose ids were all seen so before, the bound is
`sum(n * block_tokens) / sum(input_length)`. A partial last block never counts, not even where an
identical request repeats it; replay registers whole blocks only, so both rates count the same.
"""

from collections.abc import Iterator
from typing import Annotated, BinaryIO, NamedTuple

import msgspec
from msgspec import Meta

MAX_INPUT_TOKENS = 700_000  # a registration holds its tokens twice, and a body at most 8 MiB
MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_HASH_ID = 2**63 - 1

Tokens = Annotated[int, Meta(ge=0, le=MAX_INPUT_TOKENS)]
HashId = Annotated[int, Meta(ge=0, le=MAX_HASH_ID)]


class TraceError(ValueError):
    """A line is not of the format; the message names the line number and what is wrong."""

    def __init__(self, line_number: int, detail: str) -> None:
        super().__init__(f"line {line_number}: {detail}")
        self.line_number = line_number


class TraceRequest(msgspec.Struct, frozen=True):
    """One line. Fields that the format does not name are ignored."""

    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Tokens
    output_length: Annotated[int, Meta(ge=0)]
    hash_ids: tuple[HashId, ...]

    def full_blocks(self, block_tokens: int) -> int:
        """How many leading blocks are whole: the part of the input that a cache can keep."""
        return self.input_length // block_tokens


class TraceItem(NamedTuple):
    """A request, the line it stood on, and the tokens that an infinite cache would have served."""

    line_number: int
    request: TraceRequest
    reusable_tokens: int


def read_trace(
    lines: BinaryIO, *, block_tokens: int, limit: int | None = None
) -> Iterator[TraceItem]:
    """Yield the requests in order, one line in memory at a time; blank lines are skipped.

    Raises TraceError at the first line that is not a request, whose `hash_ids` do not number
    ceil(input_length / block_tokens) or contradict an earlier line, or that is longer than
    MAX_LINE_BYTES.
    """
    decoder = msgspec.json.Decoder(TraceRequest)
    ledger = PrefixLedger(block_tokens)
    line_number = 0
    yielded = 0
    while limit is None or yielded < limit:
        line = lines.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        line_number += 1
        if len(line) > MAX_LINE_BYTES:
            raise TraceError(line_number, f"longer than {MAX_LINE_BYTES} bytes")
        if line.isspace():
            continue
        request = _parse(decoder, line, line_number, block_tokens)
        try:
            reusable_tokens = ledger.observe(request)
        except ValueError as error:
            raise TraceError(line_number, str(error)) from error
        yield TraceItem(line_number, request, reusable_tokens)
        yielded += 1


def _parse(
    decoder: msgspec.json.Decoder[TraceRequest], line: bytes, line_number: int, block_tokens: int
) -> TraceRequest:
    try:
        request = decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(line_number, str(error)) from error
    if request.input_length == 0:
        raise TraceError(line_number, "`input_length` must be at least 1")
    wanted = -(-request.input_length // block_tokens)
    if len(request.hash_ids) != wanted:
        raise TraceError(
            line_number,
            f"{request.input_length} tokens in blocks of {block_tokens} need {wanted} `hash_ids`, "
            f"found {len(request.hash_ids)}; if the trace has another block size, "
            "name it with --block-tokens",
        )
    return request


class PrefixLedger:
    """What an infinite cache of whole blocks would have served, request by request.

    Memory grows with the distinct ids of the trace, as the cache that it stands for would.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._parents: dict[int, int | None] = {}
        self._full: set[int] = set()

    def observe(self, request: TraceRequest) -> int:
        """Return the tokens of `request` that were reusable, then add its whole blocks.

        O(blocks). Raises ValueError where an id stands behind another block than before, which
        the format rules out: then equal ids would not mean equal prefixes.
        """
        full_ids = request.hash_ids[: request.full_blocks(self._block_tokens)]
        reusable = 0
        for hash_id in full_ids:
            if hash_id not in self._full:
                break
            reusable += 1
        self._check_positions(request.hash_ids)
        self._full.update(full_ids)
        return reusable * self._block_tokens

    def _check_positions(self, hash_ids: tuple[int, ...]) -> None:
        parent: int | None = None
        for hash_id in hash_ids:
            known = self._parents.setdefault(hash_id, parent)
            if known != parent:
                raise ValueError(
                    f"hash id {hash_id} follows {_named(parent)} here and "
                    f"{_named(known)} in an earlier request: equal ids must mean equal prefixes"
                )
            parent = hash_id


def _named(parent: int | None) -> str:
    return "nothing" if parent is None else f"id {parent}"
