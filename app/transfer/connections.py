"""The HTTP connections to one worker, by httpx on aiohttp: one answer to a request, and no more.

Workers are other machines, and one may be broken or worse. What aiohttp takes without a bound is
bounded here: interim answers, which it reads without giving the event loop a turn, and whatever
comes when nothing was asked.
"""

import asyncio
import ssl
from functools import partial
from typing import Any, Final

import aiohttp
import httpx
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from httpx_aiohttp import AiohttpTransport

MAX_INTERIM_ANSWERS: Final = 8
# The same exceptions stand for what is no HTTP and for an end before the end of the answer.
_ENDED_EARLY: Final = "Not enough data"


def worker_transport(
    context: ssl.SSLContext, *, connections: int, idle_s: float
) -> httpx.AsyncBaseTransport:
    """The transport alone: no cookies are kept, no redirect is followed, no proxy is used.

    aiohttp's parser is compiled: an exchange takes less than half of httpcore's CPU.
    """
    session = aiohttp.ClientSession(
        connector=_Connector(limit=connections, keepalive_timeout=idle_s, ssl=context),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )
    return AiohttpTransport(verify=context, trust_env=False, client=session)


def is_no_http(error: BaseException | None) -> bool:
    """Whether something was answered that is no HTTP; a connection that ended is no answer."""
    while error is not None:
        if isinstance(error, (aiohttp.ClientResponseError, HttpProcessingError)):
            return _ENDED_EARLY not in str(error)
        if isinstance(error, UnicodeError):
            return True
        error = error.__cause__
    return False


class _OneAnswer(ResponseHandler):
    """Ends the connection at the first message that nobody asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._answers_left = 0
        self._interim_left = 0
        self._refused = False

    def set_response_params(self, **options: Any) -> None:
        """A request begins."""
        self._answers_left, self._interim_left = 1, MAX_INTERIM_ANSWERS
        super().set_response_params(**options)

    def data_received(self, data: bytes) -> None:
        """Parses it, unless the answer is whole already. Nothing is what a parser resumes with."""
        whole = self._payload is None or self._payload.is_eof()
        if data and (self._refused or (not self._answers_left and whole)):
            self._refused = True
            self.abort()
            return
        super().data_received(data)

    def feed_data(self, data: Any, *more: int) -> None:
        """One message, as the parser found it."""
        interim = data[0].code < 200 and data[0].code != 101
        if interim:
            self._interim_left -= 1
        else:
            self._answers_left -= 1
        if self._refused or min(self._interim_left, self._answers_left) < 0:
            self._refused = True
            self.set_exception(HttpProcessingError(message="more answers than requests"))
            if self.transport is not None:
                self.transport.close()
            return
        super().feed_data(data, *more)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # The only way to a protocol of one's own; a test fails if it is no way any more.
        protocol: type[ResponseHandler] = _OneAnswer
        self._factory = partial(protocol, loop=asyncio.get_running_loop())
