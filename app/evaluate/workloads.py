"""Made-up workloads, as traces: what prompts have in common, how long they are, when they come.

A request is (arrival in ms, input tokens, output tokens, ids of its blocks), as in a trace; equal
ids are equal blocks behind equal ones.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import count
from typing import Final, NamedTuple, Protocol, TypeVar

Listed = tuple[float, int, int, tuple[int, ...]]
_OUTPUT_TOKENS: Final = 200
_BURST: Final = 16
_MEAN_GAP_MS: Final = 1_000.0


_T = TypeVar("_T")


class Chance(Protocol):
    """Where random numbers come from; seeded, so that a workload can be repeated."""

    def gauss(self, mu: float, sigma: float) -> float: ...
    def randrange(self, start: int, stop: int | None = None) -> int: ...
    def expovariate(self, lambd: float) -> float: ...
    def choice(self, seq: Sequence[_T]) -> _T: ...
    def choices(self, population: Sequence[_T], weights: Sequence[float]) -> list[_T]: ...


class Kind(StrEnum):
    """What prompts of a workload have in common."""

    SHARED_PROMPT = "shared prompt"  # one of four system prompts, then a question of its own
    MULTI_TURN = "multi-turn"  # conversations, each turn behind all earlier ones
    RAG = "rag"  # a head, documents of a pool by popularity, a question
    BRANCHING = "branching agents"  # eight ways on from one context each
    NO_REUSE = "no reuse"  # nothing


class Arrivals(StrEnum):
    """When requests come; their mean rate follows from the fleet's utilisation."""

    POISSON = "poisson"
    BURST = "burst"  # sixteen at a time
    TRACE = "trace"  # with the gaps of the given trace


class Workload(NamedTuple):
    """One cell of the matrix. `reuse` is about which part of a prompt was there before."""

    kind: Kind
    context_tokens: int
    reuse: float
    arrivals: Arrivals

    @property
    def name(self) -> str:
        tokens = self.context_tokens
        size = f"{tokens // 1_000_000}M" if tokens >= 1_000_000 else f"{tokens // 1_000}K"
        return f"{self.kind}, {size}, {self.reuse:.0%} reuse, {self.arrivals} arrivals"


def made(
    workload: Workload,
    *,
    requests: int,
    block_tokens: int,
    chance: Chance,
    gaps_ms: Sequence[float] = (),
) -> list[Listed]:
    """So many requests; `gaps_ms` of a trace are used in turn. The same chance, the same list."""
    prompts = _PROMPTS[workload.kind](workload, block_tokens, chance)
    times = _times(workload.arrivals, chance, gaps_ms)
    listed = []
    for at_ms, ids in zip((next(times) for _ in range(requests)), prompts, strict=False):
        # Not all of the last block: the end of a prompt is its own.
        tokens = len(ids) * block_tokens + chance.randrange(1, block_tokens)
        listed.append((at_ms, tokens, _OUTPUT_TOKENS, ids))
    return listed


def _times(arrivals: Arrivals, chance: Chance, gaps_ms: Sequence[float]) -> Iterator[float]:
    at_ms = 0.0
    for number in count():
        yield at_ms
        if arrivals is Arrivals.TRACE and gaps_ms:
            at_ms += gaps_ms[number % len(gaps_ms)]
        elif arrivals is not Arrivals.BURST:
            at_ms += chance.expovariate(1 / _MEAN_GAP_MS)
        elif (number + 1) % _BURST == 0:
            at_ms += chance.expovariate(1 / (_BURST * _MEAN_GAP_MS))


def _blocks(workload: Workload, block_tokens: int) -> tuple[int, int]:
    """Of a prompt: all of its blocks, and those that are to be reused."""
    blocks = max(1, workload.context_tokens // block_tokens)
    return blocks, min(blocks, round(blocks * workload.reuse))


def _shared(workload: Workload, block_tokens: int, chance: Chance) -> Iterator[tuple[int, ...]]:
    blocks, common = _blocks(workload, block_tokens)
    fresh = count()
    prompts = [[next(fresh) for _ in range(common)] for _ in range(4)]
    while True:
        head = chance.choice(prompts)
        yield (*head, *(next(fresh) for _ in range(blocks - common)))


def _turns(workload: Workload, block_tokens: int, chance: Chance) -> Iterator[tuple[int, ...]]:
    """Ten conversations at a time, each turn as much longer as is not to be reused; one that is
    much longer than it should be is followed by a new one.
    """
    blocks, common = _blocks(workload, block_tokens)
    fresh, step = count(), max(1, blocks - common)
    talks: list[list[int]] = [[] for _ in range(10)]
    while True:
        place = chance.randrange(len(talks))
        if not talks[place] or len(talks[place]) + step > 1.6 * blocks:
            talks[place] = [next(fresh) for _ in range(max(0, common - 5 * step))]
        talks[place] = [*talks[place], *(next(fresh) for _ in range(step))]
        yield tuple(talks[place])


def _documents(workload: Workload, block_tokens: int, chance: Chance) -> Iterator[tuple[int, ...]]:
    blocks, common = _blocks(workload, block_tokens)
    fresh = count()
    each = max(1, blocks // 8)
    pool = [[next(fresh) for _ in range(each)] for _ in range(50)]
    weights = [1 / (rank + 1) for rank in range(len(pool))]
    # A block stands for all before it, too: behind another document it is another one.
    known: dict[tuple[int, ...], int] = {}
    while True:
        ids: list[int] = []
        while len(ids) < common:
            for block in chance.choices(pool, weights)[0]:
                key = (ids[-1] if ids else -1, block)
                ids.append(known.setdefault(key, 1_000_000_000 + len(known)))
        ids = ids[:common]
        yield (*ids, *(next(fresh) for _ in range(blocks - len(ids))))


def _branches(workload: Workload, block_tokens: int, chance: Chance) -> Iterator[tuple[int, ...]]:
    """Four contexts at a time."""
    blocks, common = _blocks(workload, block_tokens)
    fresh = count()
    roots: list[tuple[list[int], int]] = []
    while True:
        while len(roots) < 4:
            roots.append(([next(fresh) for _ in range(common)], 8))
        place = chance.randrange(len(roots))
        root, left = roots[place]
        yield (*root, *(next(fresh) for _ in range(blocks - common)))
        roots[place] = root, left - 1
        if left == 1:
            del roots[place]


def _nothing(workload: Workload, block_tokens: int, _: Chance) -> Iterator[tuple[int, ...]]:
    blocks, _common = _blocks(workload, block_tokens)
    fresh = count()
    while True:
        yield tuple(next(fresh) for _ in range(blocks))


_PROMPTS: Final[dict[Kind, Callable[[Workload, int, Chance], Iterator[tuple[int, ...]]]]] = {
    Kind.SHARED_PROMPT: _shared,
    Kind.MULTI_TURN: _turns,
    Kind.RAG: _documents,
    Kind.BRANCHING: _branches,
    Kind.NO_REUSE: _nothing,
}
