"""Answers that take long: few at a time, and none held open by a client that reads nothing."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Final

import structlog
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.errors import ErrorCode, NexusError

# What is sent has to be taken within this.
SEND_S: Final = 60.0
log = structlog.get_logger("nexuskv.http")


class Places:
    """How many answers of one kind may be on their way at once, in this process."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._taken = 0

    @property
    def taken(self) -> int:
        return self._taken

    def take(self) -> None:
        """Raises OVERLOADED when all are taken."""
        if self._taken >= self._most:
            raise NexusError(
                ErrorCode.OVERLOADED,
                f"All {self._most} {self._what} of this process are in use; try again in a moment",
            )
        self._taken += 1

    def free(self) -> None:
        self._taken -= 1


class LongAnswer(StreamingResponse):
    """Sends pieces as they are made; gives its place back at the end, whatever ended it.

    An answer that cannot be finished is cut: the client sees that its end is missing.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        places: Places,
        *,
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        """Takes one of `places`; raises OVERLOADED."""
        places.take()
        super().__init__(pieces, media_type=media_type, headers=headers)
        self._pieces = pieces
        self._places = places

    async def __call__(
        self,
        scope: Scope,  # noqa: ARG002 - what every ASGI application is called with
        receive: Receive,
        send: Send,
    ) -> None:
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_client_gone(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            self._places.free()
            await self._pieces.aclose()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            async with asyncio.timeout(SEND_S):
                await send(start)
            async for piece in self._pieces:
                async with asyncio.timeout(SEND_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.warning("answer_cut", reason=f"the client took nothing for {SEND_S:g} s")
        except NexusError as error:
            log.warning("answer_cut", reason=error.internal or error.message)


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
