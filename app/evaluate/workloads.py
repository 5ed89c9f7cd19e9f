"""Requests that are made up: kinds of prompts, how much of them others share, and how they arrive.

Ids are as in a trace: equal ones mean equal blocks behind equal prefixes.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import log
from typing import Final, NamedTuple

from app.contract.enums import Word
from app.evaluate.requests import Chance, TraceLine

_PROMPTS: Final = 8
_CHATS: Final = 24
_MOST_TURNS: Final = 12
_DOCUMENTS: Final = 40
_DOCUMENTS_EACH: Final = 3
_TASKS: Final = 6
_BURST: Final = 16
_OUTPUT_TOKENS: Final = (64, 512)


class Kind(Word):
    """What prompts have in common."""

    # A system prompt of a few, and a question of one's own.
    SHARED_PROMPT = "shared prompt"
    # Each turn holds the one before it.
    MULTI_TURN = "multi-turn"
    # Some documents of a corpus, popular ones more often, in any order, and a question.
    RAG = "RAG"
    # A task's trunk, a branch of it, and what an agent adds there.
    AGENTS = "branching agents"
    # Nothing.
    CONTROL = "no reuse"


class Arrivals(Word):
    """How requests come."""

    POISSON = "poisson"
    # Sixteen at once.
    BURST = "burst"
    # With the gaps of the trace.
    TRACE = "trace"


class Workload(NamedTuple):
    """`reuse` is the part of a prompt that others have, as far as the kind lets it be chosen."""

    kind: Kind
    context_tokens: int
    reuse: float
    arrivals: Arrivals


class _Ids:
    """One for each content behind a prefix."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[object, ...]], int] = {}

    def of(self, segments: Sequence[tuple[object, int]]) -> tuple[int, ...]:
        """Of a prompt made of segments: what one is of, and its blocks."""
        found, before = [], -1
        for content, blocks in segments:
            for place in range(blocks):
                key = (before, (content, place))
                before = self._known.setdefault(key, len(self._known))
                found.append(before)
        return tuple(found)


Segments = list[tuple[object, int]]


def make(
    workload: Workload,
    count: int,
    block_tokens: int,
    chance: Chance,
    gaps_ms: Sequence[float] = (),
) -> list[TraceLine]:
    """So many requests. `gaps_ms` are those of a trace, for arrivals that have them. Prompts are a
    fifth longer or shorter than the context, in whole blocks."""
    ids, prompts = _Ids(), _PROMPTS_OF[workload.kind](workload, block_tokens, chance)
    lines: list[TraceLine] = []
    for at_ms in accumulate(_gaps_ms(workload.arrivals, count, chance, gaps_ms)):
        found = ids.of(prompts())
        output = _OUTPUT_TOKENS[0] + int(chance.random() * (_OUTPUT_TOKENS[1] - _OUTPUT_TOKENS[0]))
        lines.append((at_ms, len(found) * block_tokens, output, found))
    return lines


def _gaps_ms(
    arrivals: Arrivals, count: int, chance: Chance, gaps_ms: Sequence[float]
) -> list[float]:
    """In any unit: they are scaled to the load afterwards."""
    if arrivals is Arrivals.TRACE and gaps_ms:
        return [gaps_ms[place % len(gaps_ms)] for place in range(count)]
    every = _BURST if arrivals is Arrivals.BURST else 1
    return [
        -log(1 - chance.random()) * every if place % every == 0 else 0.0 for place in range(count)
    ]


def _blocks(workload: Workload, block_tokens: int, chance: Chance) -> int:
    tokens = workload.context_tokens * (0.8 + 0.4 * chance.random())
    return max(2, round(tokens / block_tokens))


def _pick(count: int, chance: Chance) -> int:
    """The first of them more often: half of the time from the first quarter."""
    return min(int(count * chance.random() ** 2), count - 1)


def _shared_prompts(
    workload: Workload, block_tokens: int, chance: Chance
) -> Callable[[], Segments]:
    number = iter(range(2**31))

    def prompt() -> Segments:
        blocks = _blocks(workload, block_tokens, chance)
        shared = round(blocks * workload.reuse)
        of = _pick(_PROMPTS, chance)
        return [(("system", of), shared), (("own", next(number)), blocks - shared)]

    return prompt


def _turns(workload: Workload, block_tokens: int, chance: Chance) -> Callable[[], Segments]:
    """So many turns that on average the part is reused: (turns - 1) / (turns + 1)."""
    turns = min(_MOST_TURNS, round((1 + workload.reuse) / max(1 - workload.reuse, 0.01)))
    chats: list[Segments] = [[] for _ in range(_CHATS)]
    number = iter(range(2**31))

    def prompt() -> Segments:
        of = int(chance.random() * _CHATS)
        if len(chats[of]) >= turns:
            chats[of] = []
        added = max(1, _blocks(workload, block_tokens, chance) // turns)
        chats[of] = [*chats[of], (("turn", next(number)), added)]
        return chats[of]

    return prompt


def _retrieved(workload: Workload, block_tokens: int, chance: Chance) -> Callable[[], Segments]:
    number = iter(range(2**31))
    each = round(workload.context_tokens * workload.reuse / block_tokens / _DOCUMENTS_EACH)

    def prompt() -> Segments:
        blocks = _blocks(workload, block_tokens, chance)
        documents = dict.fromkeys(_pick(_DOCUMENTS, chance) for _ in range(_DOCUMENTS_EACH))
        own = max(1, blocks - each * len(documents))
        return [*[(("document", one), each) for one in documents], (("own", next(number)), own)]

    return prompt


def _branches(workload: Workload, block_tokens: int, chance: Chance) -> Callable[[], Segments]:
    """A trunk of half of what is shared, one of four branches with the other half."""
    number = iter(range(2**31))

    def prompt() -> Segments:
        blocks = _blocks(workload, block_tokens, chance)
        half = round(workload.context_tokens * workload.reuse / block_tokens / 2)
        task, branch = int(chance.random() * _TASKS), _pick(4, chance)
        own = max(1, blocks - 2 * half)
        return [
            (("trunk", task), half),
            (("branch", task, branch), half),
            (("own", next(number)), own),
        ]

    return prompt


def _alone(workload: Workload, block_tokens: int, chance: Chance) -> Callable[[], Segments]:
    number = iter(range(2**31))
    return lambda: [(("own", next(number)), _blocks(workload, block_tokens, chance))]


_PROMPTS_OF: Final = {
    Kind.SHARED_PROMPT: _shared_prompts,
    Kind.MULTI_TURN: _turns,
    Kind.RAG: _retrieved,
    Kind.AGENTS: _branches,
    Kind.CONTROL: _alone,
}
