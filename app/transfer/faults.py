"""Why a worker could not be asked, or what it said when it would not do what it was asked."""

from enum import StrEnum


class WorkerFault(StrEnum):
    """The closed list of what can go wrong between the API and a worker."""

    UNREACHABLE = "unreachable"  # unknown, no connection, or the connection broke
    TIMEOUT = "timeout"  # no whole answer within the time there was
    REFUSED = "refused"  # the worker said no, or failed
    GARBAGE = "garbage"  # an answer that is not of this protocol
    OVERLOADED = "overloaded"  # too many calls to it already, here or there
    UNAUTHORIZED = "unauthorized"  # the worker does not honour our tokens


class WorkerCallError(Exception):
    """A call that brought no answer to act on. `detail` is for logs and operators.

    After `unreachable`, `timeout` and `garbage` the worker may have done it all the same; the same
    call may be made again.
    """

    def __init__(self, kind: WorkerFault, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
