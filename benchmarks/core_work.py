"""What the systems under test are asked to hold and to find. Standard library only.

Each of them runs in an environment of its own and makes the work again from these rules, so that
nothing but figures and answers crosses a pipe. A block is a number; the tokens of a piece (blocks
in a row with one parent) follow from the piece, and a chain is one or more pieces.
"""

import json
import random
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

BLOCK_TOKENS: Final = 16
TRACE_BLOCK_TOKENS: Final = 512
WORKERS: Final = 8
# What an engine tells at once of a prompt that it takes in 8,192 tokens at a time.
STORE_BLOCKS: Final = 512
SLICE_BLOCKS: Final = 65_536
QUERY_BLOCKS: Final = (1, 16, 128, 1_024, 8_192)
CHAIN_BLOCKS: Final = (8_192, 1_024, 128, 32)
KINDS: Final = ("hit", "part", "miss")
_ENDINGS: Final = 7
# One chain of so many is at another worker than the rest of its family.
_AWAY: Final = 4
# Numbers of blocks that no store has.
_FRESH: Final = 1 << 40
_SPREAD: Final = 0x9E37_79B9_7F4A_7C15
_U64: Final = (1 << 64) - 1


class Piece(NamedTuple):
    start: int
    blocks: int


class Store(NamedTuple):
    """Blocks `begin` to `end` of a chain that a worker has now."""

    worker: int
    begin: int
    end: int


class Request(NamedTuple):
    chain: tuple[Piece, ...]
    stores: tuple[Store, ...]

    @property
    def blocks(self) -> int:
        return sum(piece.blocks for piece in self.chain)


class Query(NamedTuple):
    chain: tuple[Piece, ...]
    blocks: int


# ---- tokens and names


@lru_cache(maxsize=64)
def _vocabulary_mask(tokens: int) -> int:
    return int.from_bytes((131_071).to_bytes(4, "little") * tokens, "little")


def piece_tokens(piece: Piece, block_tokens: int) -> array:
    """Random tokens of a vocabulary of 131,072, the same ones whenever asked.

    Those of a shorter piece with the same start are the first of them.
    """
    count = piece.blocks * block_tokens
    wide = random.Random(piece.start).getrandbits(32 * count) & _vocabulary_mask(count)
    return array("I", wide.to_bytes(4 * count, sys.byteorder))


def chain_tokens(chain: Sequence[Piece], block_tokens: int) -> array:
    tokens = array("I")
    for piece in chain:
        tokens.extend(piece_tokens(piece, block_tokens))
    return tokens


def chain_blocks(chain: Sequence[Piece]) -> list[int]:
    """The numbers of its blocks."""
    return [number for piece in chain for number in range(piece.start, piece.start + piece.blocks)]


def names_of(numbers: Sequence[int]) -> array:
    """What an engine calls these blocks: u64, spread like hashes, each another one."""
    return array("Q", [number * _SPREAD & _U64 for number in numbers])


# ---- the synthetic work


def synthetic(blocks: int) -> list[Request]:
    """About so many distinct blocks, equally many in families of each length that fits.

    A family shares the first half of its chains. Three of four are at the family's worker and the
    fourth somewhere else, so that most shared parts are at several workers. A worker is told of
    what it does not have yet.
    """
    draw = random.Random(1)
    chains: list[tuple[int, tuple[Piece, ...]]] = []
    lengths = [length for length in CHAIN_BLOCKS if 2 * length * len(CHAIN_BLOCKS) <= blocks]
    lengths = lengths or [CHAIN_BLOCKS[-1]]
    start = 0
    for length in lengths:
        half, end = length // 2, start + blocks // len(lengths)
        while start + length <= end:
            shared, home = Piece(start, half), draw.randrange(WORKERS)
            start += half
            for _ in range(_ENDINGS):
                if start + half > end:
                    break
                away = draw.randrange(_AWAY) == 0
                worker = draw.randrange(WORKERS) if away else home
                chains.append((worker, (shared, Piece(start, half))))
                start += half
    draw.shuffle(chains)
    known: set[tuple[int, int]] = set()
    requests = []
    for worker, chain in chains:
        has = (worker, chain[0].start) in known
        known.add((worker, chain[0].start))
        begin, end = has * chain[0].blocks, chain[0].blocks + chain[1].blocks
        requests.append(Request(chain, _stores(worker, begin, end)))
    return requests


def _stores(worker: int, begin: int, end: int) -> tuple[Store, ...]:
    return tuple(
        Store(worker, at, min(at + STORE_BLOCKS, end)) for at in range(begin, end, STORE_BLOCKS)
    )


def totals(requests: Sequence[Request]) -> tuple[int, int]:
    """Distinct blocks, and blocks at workers (a block at two of them counts twice)."""
    distinct = {piece for request in requests for piece in request.chain}
    held = sum(store.end - store.begin for request in requests for store in request.stores)
    return sum(piece.blocks for piece in distinct), held


def slices(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Runs of requests with about `SLICE_BLOCKS` stored blocks: what is prepared at once."""
    part: list[Request] = []
    blocks = 0
    for request in requests:
        part.append(request)
        blocks += sum(store.end - store.begin for store in request.stores)
        if blocks >= SLICE_BLOCKS:
            yield part
            part, blocks = [], 0
    if part:
        yield part


def queries(requests: Sequence[Request], blocks: int, kind: str) -> list[Query]:
    """Of so many blocks; none where no chain is so long, or where a kind says nothing new."""
    fitting = [request.chain for request in requests if request.blocks >= blocks]
    if not fitting or (kind == "part" and blocks < 4):
        return []
    count = min(max(65_536 // blocks, 32), 1_024, len(fitting))
    chosen = random.Random(blocks).sample(fitting, count)
    found = {"hit": blocks, "part": blocks - blocks // 4, "miss": 0}[kind]
    fresh = [Piece(_FRESH + number * 2 * blocks, blocks - found) for number in range(count)]
    return [
        Query((*_first(chain, found), *([tail] if tail.blocks else [])), blocks)
        for chain, tail in zip(chosen, fresh, strict=True)
    ]


def _first(chain: Sequence[Piece], blocks: int) -> list[Piece]:
    """The chain's first blocks; a piece's tokens begin with those of a shorter one."""
    kept = []
    for piece in chain:
        taken = min(piece.blocks, blocks)
        if taken:
            kept.append(Piece(piece.start, taken))
        blocks -= taken
    return kept


# ---- the trace


def trace(path: Path, block_tokens: int, limit: int) -> list[Request]:
    """The requests of a file in Mooncake's format, each at the worker of its conversation.

    Only whole blocks of 512 tokens are taken. With smaller blocks each of them is split.
    """
    per_block = TRACE_BLOCK_TOKENS // block_tokens
    held: dict[int, set[int]] = {worker: set() for worker in range(WORKERS)}
    requests = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            content = json.loads(line)
            ids = content["hash_ids"][: content["input_length"] // TRACE_BLOCK_TOKENS]
            if not ids:
                continue
            worker = ids[min(1, len(ids) - 1)] % WORKERS
            known = held[worker]
            has = next((at for at, number in enumerate(ids) if number not in known), len(ids))
            known.update(ids)
            chain = tuple(Piece(number * per_block, per_block) for number in ids)
            stores = _stores(worker, has * per_block, len(ids) * per_block)
            requests.append(Request(chain, stores))
            if len(requests) == limit:
                break
    return requests
