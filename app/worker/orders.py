"""`POST /v1/transfers`: an order, and the facts of its transfer when it ended."""

from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from app.contract.findings import Shape
from app.errors import ErrorCode, FieldError, NexusError
from app.http_limits import ClientDisconnectedError, read_body, refuse_body, send_response
from app.problem import problem_for
from app.transfer.tokens import Direction, require
from app.transfer.wire import NewTransfer, TransferFacts
from app.worker.access import Access
from app.worker.transfers import Transfers

ORDERS: Final = "/v1/transfers"
MAX_BODY_BYTES: Final = 64 * 1024
_new_transfer: Final = Shape(NewTransfer, "transfer")


class Orders:
    """The endpoint, as an ASGI application: the one that is called once for every transfer."""

    def __init__(self, transfers: Transfers, access: Access) -> None:
        self._transfers = transfers
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, MAX_BODY_BYTES)
        except NexusError as error:
            await refuse_body(scope, receive, send, problem_for(error, scope))
            return
        except ClientDisconnectedError:
            return
        try:
            facts = await self._take(scope, body)
        except NexusError as error:
            await send_response(send, problem_for(error, scope))
            return
        answer = msgspec.json.encode(facts)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(answer)).encode()),
        ]
        await send_response(send, (200, headers, answer))

    async def _take(self, scope: Scope, body: bytes) -> TransferFacts:
        grant = self._access.grant(scope["headers"])
        order = _new_transfer.accept(body)
        require(
            grant,
            Direction.TRANSFER,
            payload_id=order.source.payload_id,
            sink_id=order.target_sink_id or "",
        )
        if (order.target_sink_id is None) == (order.target_payload_id is None):
            message = "give either target_sink_id or target_payload_id"
            finding = FieldError("/target_sink_id", ErrorCode.INVALID_FIELD, message)
            raise NexusError(ErrorCode.INVALID_FIELD, message, errors=[finding])
        return await self._transfers.order(grant.tenant, order)
