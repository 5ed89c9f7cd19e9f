"""`PUT /v1/payloads/{id}`: a body straight into the arena, visible once it is verified."""

import asyncio
import re
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send
from xxhash import xxh3_128

from app.errors import ErrorCode, NexusError
from app.http_limits import (
    ClientDisconnectedError,
    announced_bytes,
    refuse_body,
    send_response,
)
from app.problem import problem_for
from app.transfer.tokens import Direction
from app.transfer.wire import CHECKSUM_HEADER, PayloadFacts, PayloadId
from app.worker.access import Access
from app.worker.arena import Block
from app.worker.payloads import Payloads

# Uploads at a time: each holds memory that nothing else can use.
MAX_UPLOADS: Final = 32
# The next piece of a body has to come within this, and all of it within the other.
PIECE_S: Final = 30.0
UPLOAD_S: Final = 600.0
_CHECKSUM: Final = re.compile(rb"[0-9a-f]{32}")


class Upload:
    """The endpoint, as an ASGI application: it has to see the body as it comes."""

    def __init__(self, payloads: Payloads, access: Access) -> None:
        self._payloads = payloads
        self._access = access
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            facts, created = await self._receive(scope, receive)
        except NexusError as error:
            await refuse_body(scope, receive, send, problem_for(error, scope))
        except ClientDisconnectedError:
            return
        else:
            headers = [
                (b"content-type", b"application/json"),
                (CHECKSUM_HEADER.encode(), facts.checksum.encode()),
            ]
            body = msgspec.json.encode(facts)
            headers.append((b"content-length", str(len(body)).encode()))
            await send_response(send, (201 if created else 200, headers, body))

    async def _receive(self, scope: Scope, receive: Receive) -> tuple[PayloadFacts, bool]:
        """The payload, and whether its id is new. Whatever is raised, no memory is kept."""
        payload_id = valid_id(scope["path_params"]["payload_id"])
        headers = scope["headers"]
        tenant = self._access.tenant(headers, Direction.PUT_PAYLOAD, payload_id=payload_id)
        payload_bytes = _length(scope)
        stated = _stated_checksum(headers)
        if self.running >= MAX_UPLOADS:
            raise NexusError(ErrorCode.OVERLOADED, f"{MAX_UPLOADS} uploads run; try again")
        block = self._payloads.reserve(payload_bytes)
        kept = False
        self.running += 1
        try:
            checksum = await self._fill(block, receive)
            if stated not in (None, checksum):
                raise NexusError(
                    ErrorCode.CHECKSUM_MISMATCH,
                    f"the body has the checksum {checksum}, the header says {stated}",
                )
            created = self._payloads.keep(tenant, payload_id, block, checksum)
            kept = True
        finally:
            self.running -= 1
            if not kept:
                self._payloads.arena.retire(block)
        return self._payloads.facts(tenant, payload_id), created

    async def _fill(self, block: Block, receive: Receive) -> str:
        view = self._payloads.arena.view(block)
        digest = xxh3_128()
        place, more = 0, True
        try:
            async with asyncio.timeout(UPLOAD_S):
                while more:
                    async with asyncio.timeout(PIECE_S):
                        message = await receive()
                    if message["type"] != "http.request":
                        raise ClientDisconnectedError
                    piece = message.get("body", b"")
                    more = message.get("more_body", False)
                    # The server holds a body to its Content-Length; this holds the server to it.
                    if place + len(piece) > len(view):
                        raise _other_length()
                    view[place : place + len(piece)] = piece
                    digest.update(view[place : place + len(piece)])
                    place += len(piece)
        except TimeoutError:
            raise NexusError(
                ErrorCode.INVALID_BODY,
                f"the body stopped for {PIECE_S:g} s, or took {UPLOAD_S:g} s; send it again",
            ) from None
        if place != len(view):
            raise _other_length()
        return digest.hexdigest()


def valid_id(text: str) -> str:
    """A payload id. Raises INVALID_FIELD."""
    try:
        return msgspec.convert(text, PayloadId)
    except msgspec.ValidationError:
        raise NexusError(
            ErrorCode.INVALID_FIELD,
            "a payload id has 1 to 255 letters, digits and any of . _ ~ -",
        ) from None


def _length(scope: Scope) -> int:
    found = announced_bytes(scope["headers"])
    if found is None:
        raise NexusError(
            ErrorCode.LENGTH_REQUIRED, "send Content-Length; a chunked body is refused"
        )
    if found < 1:
        raise NexusError(ErrorCode.INVALID_CONTENT_LENGTH, "a payload has at least one byte")
    return found


def _stated_checksum(headers: list[tuple[bytes, bytes]]) -> str | None:
    found = [value for name, value in headers if name == CHECKSUM_HEADER.encode()]
    if not found:
        return None
    if len(found) > 1 or _CHECKSUM.fullmatch(found[0]) is None:
        raise NexusError(
            ErrorCode.INVALID_FIELD, f"{CHECKSUM_HEADER} is one text of 32 lower-case hex digits"
        )
    return found[0].decode()


def _other_length() -> NexusError:
    return NexusError(ErrorCode.INVALID_BODY, "the body is not as long as its Content-Length says")
