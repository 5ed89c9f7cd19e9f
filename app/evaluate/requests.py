"""The requests of a run: a trace at the load that the fleet asks for, with what chance adds."""

from collections.abc import Sequence
from itertools import pairwise
from math import exp
from typing import Final, NamedTuple, Protocol

from app.errors import ErrorCode, NexusError
from app.evaluate.fleet import Fleet

# A thousand years.
_MAX_SPAN_MS: Final = 3.2e13
# ms from the start, input and output tokens, and one id for each block of the input.
TraceLine = tuple[float, int, int, Sequence[int]]


class Request(NamedTuple):
    """One of the trace, at its simulated time; `blocks` are its whole ones. The factors are what
    chance makes of true times. Requests of one `conversation` continue one another."""

    number: int
    arrival_us: float
    tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    prefill_factor: float
    transfer_factor: float
    conversation: int = 0
    tenant: int = 0


class Chance(Protocol):
    """Where random numbers come from; seeded, so that a run can be repeated."""

    def gauss(self, mu: float, sigma: float) -> float: ...

    def random(self) -> float: ...


class Conversations:
    """Which requests continue one another, from their blocks alone: one continues the request whose
    last whole block it holds as the deepest. A first block is no evidence: prompts share theirs.
    """

    def __init__(self) -> None:
        self._ended: dict[int, int] = {}

    def of(self, number: int, blocks: Sequence[int]) -> int:
        """The number of the first request of its conversation: its own, where it begins one."""
        found = number
        for block in reversed(blocks[1:]):
            if block in self._ended:
                found = self._ended[block]
                break
        if len(blocks) > 1:
            self._ended[blocks[-1]] = found
        return found


def draw(fleet: Fleet, trace: Sequence[TraceLine], chance: Chance) -> list[Request]:
    """The requests of a trace, with arrivals scaled to the utilisation. A trace names no tenant:
    conversations are dealt to `tenants` ones in turn. Raises NexusError for times that do not rise,
    or are too far apart to be told in microseconds."""
    prefill = fleet.profile.prefill
    trace = [line for line in trace if line[1] > 0]
    if not trace:
        return []
    _check_times(trace)
    work_us = sum(
        prefill.schedule_us + prefill.recompute_us(tokens, 0) for _, tokens, _, _ in trace
    )
    span_us = max((trace[-1][0] - trace[0][0]) * 1e3, 1.0)
    scale = work_us / (fleet.engines * fleet.utilisation * span_us)
    conversations, dealt = Conversations(), dict[int, int]()
    requests = []
    for number, (at_ms, tokens, output, ids) in enumerate(trace):
        blocks = tuple(ids[: tokens // fleet.block_tokens])
        conversation = conversations.of(number, blocks)
        requests.append(
            Request(
                number,
                (at_ms - trace[0][0]) * 1e3 * scale,
                tokens,
                output,
                blocks,
                exp(chance.gauss(0, fleet.prefill_noise)),
                exp(chance.gauss(0, fleet.transfer_noise)),
                conversation,
                dealt.setdefault(conversation, len(dealt) % fleet.tenants),
            )
        )
    return requests


def _check_times(trace: Sequence[TraceLine]) -> None:
    for number, (before, after) in enumerate(pairwise(trace), start=2):
        if after[0] < before[0]:
            raise NexusError(
                ErrorCode.INVALID_FIELD,
                f"request {number} has the timestamp {after[0]:g}, before {before[0]:g} of the one"
                " before it; sort the trace by its timestamps",
            )
    if trace[-1][0] - trace[0][0] > _MAX_SPAN_MS:
        raise NexusError(ErrorCode.INVALID_FIELD, f"the trace spans more than {_MAX_SPAN_MS:g} ms")
