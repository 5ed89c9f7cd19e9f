"""What a run has counted so far, and the figures that follow from it."""

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field

from app.cli.replay_client import ReplayError
from app.cli.trace_format import TraceItem

KEPT_MESSAGES = 10


@dataclass(slots=True)
class Tally:
    """Counters of one run. Latencies and decision ids are kept whole: under 200 bytes a request."""

    requests: int = 0
    input_tokens: int = 0
    matched_tokens: int = 0
    reusable_tokens: int = 0
    hits: int = 0
    estimates: int = 0
    states_registered: int = 0
    lookup_us: "array[int]" = field(default_factory=lambda: array("Q"))
    decision_ids: set[str] = field(default_factory=set)
    error_codes: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)

    def count(self, item: TraceItem) -> None:
        """Add a request that has been answered or has failed: both rates are over these."""
        self.requests += 1
        self.input_tokens += item.request.input_length
        self.reusable_tokens += item.reusable_tokens

    def fail(self, line_number: int, error: ReplayError) -> None:
        self.error_codes[error.code] += 1
        if len(self.messages) < KEPT_MESSAGES:
            self.messages.append(f"line {line_number}: {error.code}: {error.message}")

    def note_decision(self, decision_id: str | None) -> None:
        if decision_id is not None:
            self.decision_ids.add(decision_id)

    @property
    def errors(self) -> int:
        return self.error_codes.total()

    @property
    def token_hit_rate(self) -> float:
        """Matched tokens over input tokens; 0 before the first request."""
        return self.matched_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def token_hit_rate_bound(self) -> float:
        """What a cache that keeps every whole block would reach on the same requests."""
        return self.reusable_tokens / self.input_tokens if self.input_tokens else 0.0

    def lookup_ms(self, percentile: int) -> float | None:
        """Nearest-rank percentile of the successful lookups; None where there was none."""
        if not self.lookup_us:
            return None
        ordered = sorted(self.lookup_us)
        return ordered[math.ceil(len(ordered) * percentile / 100) - 1] / 1000
