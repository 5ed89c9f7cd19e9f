"""Why a transfer ends without its bytes."""

from app.transfer.wire import TransferFailure


class TransferFailedError(Exception):
    """One of the documented failures; `detail` says more to whoever ordered the transfer."""

    def __init__(self, failure: TransferFailure, detail: str) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail
