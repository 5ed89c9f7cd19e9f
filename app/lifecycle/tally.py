"""Counts what the pipeline decides and does, in plain numbers that a scrape reads.

Every label is a member of a closed set: kinds of decision, backends, reasons, limits, statuses.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import product
from typing import Final, Literal

from app.contract.enums import FallbackReason, TransferBackend, TransferStatus
from app.decisions.record import DecisionKind
from app.execution.catalog import Rejection, Selection
from app.policy.document import QuotaMode
from app.quota.decision import QuotaLimit

Choice = Literal["selected", "degraded"]
QuotaResult = Literal["denied", "advisory"]

_MOVING: Final = tuple(
    kind.value for kind in (DecisionKind.MATERIALIZE, DecisionKind.PREFETCH, DecisionKind.STORE)
)
_CHOOSING: Final = (DecisionKind.ESTIMATE.value, *_MOVING)
_CHOICES: Final[tuple[Choice, ...]] = ("selected", "degraded")
_QUOTA_RESULTS: Final[tuple[QuotaResult, ...]] = ("denied", "advisory")


class Tally:
    """The counts of one process, for its event loop's thread alone. They only grow.

    Keys begin with the kind of decision: selections go on with the backend and whether it was the
    wanted one, rejections with the backend and why, quota with the result and the limit, transfers
    with their status, executions with how they ended or why nothing was executed.
    """

    def __init__(self) -> None:
        self.selections = _zeroes(_CHOOSING, TransferBackend, _CHOICES)
        self.rejections = _zeroes(_CHOOSING, TransferBackend, FallbackReason)
        self.quota = _zeroes(_MOVING, _QUOTA_RESULTS, QuotaLimit)
        self.transfers = _zeroes(_MOVING, TransferStatus)
        self.executions: Counter[tuple[str, ...]] = Counter()
        self.moved_bytes: Counter[str] = Counter(dict.fromkeys(_MOVING, 0))

    def chose(
        self, kind: DecisionKind, selection: Selection | None, rejected: Iterable[Rejection]
    ) -> None:
        """One choice of a backend: what was taken if anything was, and what was not."""
        # Members are looked up as the text that they are: `.value` would cost a call each.
        if selection is not None:
            wanted = selection.degraded_from is None
            backend = selection.registration.backend
            self.selections[kind, backend, "selected" if wanted else "degraded"] += 1
        for one in rejected:
            # A registration is named after its worker, which is no label, and its backend.
            at = (kind, one.registration.rpartition("/")[2], one.reason)
            if at in self.rejections:
                self.rejections[at] += 1

    def exceeded(self, kind: DecisionKind, mode: QuotaMode, limits: Iterable[QuotaLimit]) -> None:
        """A charge that goes beyond these limits of its tenant."""
        result = "denied" if mode is QuotaMode.ENFORCED else "advisory"
        for limit in limits:
            self.quota[kind.value, result, limit.value] += 1

    def executed(
        self, kind: DecisionKind, result: str, status: TransferStatus, bytes_transferred: int
    ) -> None:
        """One movement that was tried: how it ended. What could not even be priced is none."""
        if kind is DecisionKind.ESTIMATE:
            return
        self.executions[kind.value, result] += 1
        self.transfers[kind.value, status.value] += 1
        self.moved_bytes[kind.value] += bytes_transferred

    def cancelled(self, kind: DecisionKind) -> None:
        """The caller of a movement went away before its end."""
        if kind.value in _MOVING:
            self.transfers[kind.value, TransferStatus.CANCELLED.value] += 1


def _zeroes(*labels: Iterable[str]) -> dict[tuple[str, ...], int]:
    """A series for each combination, from the start: a rate needs the first one, too."""
    texts = [[str(label) for label in each] for each in labels]
    return dict.fromkeys(product(*texts), 0)
