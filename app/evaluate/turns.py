"""When a conversation's next turn comes, and how likely it does: learnt from those that came."""

from collections import deque
from typing import Final, NamedTuple

# Nothing is said before so many turns have come; so many of the last ones are remembered.
_LEAST_TURNS: Final = 20
_MOST_TURNS: Final = 256
_EARLY, _LATE = 0.25, 0.9


class Expectation(NamedTuple):
    """Of a turn that was just answered: from when on its next one is looked for, until when, and
    how likely it comes in between, if it has not come before."""

    early_us: float
    late_us: float
    p_use: float


class Turns:
    """Of one run. Only the past is looked at."""

    def __init__(self) -> None:
        # When the last turn of each was answered. Turns that come too late are waited for still:
        # else only short waits would ever be learnt.
        self._open: dict[int, float] = {}
        self._waits_us: deque[float] = deque(maxlen=_MOST_TURNS)
        # Answers in order, each to be looked at once its next turn would be late.
        self._answers: deque[tuple[float, int]] = deque()
        self._came: deque[bool] = deque(maxlen=_MOST_TURNS)
        self._late_us = float("inf")

    def asked(self, conversation: int, now_us: float) -> None:
        """A turn of it came."""
        answered_us = self._open.pop(conversation, None)
        if answered_us is None:
            return
        self._waits_us.append(now_us - answered_us)
        if now_us <= answered_us + self._late_us:
            self._came.append(True)

    def answered(self, conversation: int, now_us: float) -> Expectation | None:
        """A turn of it was answered; None where too little is known yet."""
        self._open[conversation] = now_us
        self._answers.append((now_us, conversation))
        if len(self._waits_us) < _LEAST_TURNS:
            return None
        ordered = sorted(self._waits_us)
        early_us = ordered[int(_EARLY * len(ordered))]
        self._late_us = ordered[int(_LATE * len(ordered))]
        while self._answers and self._answers[0][0] + self._late_us < now_us:
            answered_us, one = self._answers.popleft()
            if self._open.get(one) == answered_us:
                self._came.append(False)
        comes = sum(self._came) / max(len(self._came), 1)
        p_use = comes * (_LATE - _EARLY) / (1 - comes * _EARLY)
        return Expectation(now_us + early_us, now_us + self._late_us, p_use)

    def waits(self, conversation: int) -> bool:
        """Whether its last turn was answered and no other has come."""
        return conversation in self._open
