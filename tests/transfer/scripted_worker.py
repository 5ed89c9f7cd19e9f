"""A worker's control port that answers by script, over real sockets; and how tests reach it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.clock import SystemClock
from app.contract.enums import TransferBackend
from app.transfer.client import WorkerClient
from app.transfer.lane import LaneLimits
from app.transfer.tokens import Grant, TokenKeys
from app.transfer.wire import NewTransfer, TransferSource

KEYS = TokenKeys(["tests-only-" + "0123456789abcdef" * 2])
TENANT = "tenant-1"
CHECKSUM = "0123456789abcdef" * 2


@dataclass
class Asked:
    """One request, as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def token(self) -> str:
        return self.headers["authorization"].removeprefix("Bearer ")

    def grant(self, worker: str = "node-a") -> Grant:
        return KEYS.verify(self.token, worker=worker, now_s=SystemClock().now_us() // 1_000_000)

    def json(self) -> dict[str, Any]:
        return msgspec.json.decode(self.body)


Answer = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class ScriptedWorker:
    """Answers with whatever `answer` writes; a connection is closed when it raises."""

    answer: Answer
    name: str = "node-a"
    url: str = ""
    data_address: str = "127.0.0.1:7000"
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    serving: set["asyncio.Task[None]"] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)
        ends = (EOFError, OSError, asyncio.CancelledError)
        with contextlib.closing(writer), contextlib.suppress(*ends):
            while True:
                asked = await read_request(reader)
                self.asked.append(asked)
                await self.answer(asked, writer)
                await writer.drain()


async def read_request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {
        name.lower(): value
        for name, _, value in (line.partition(": ") for line in head[1:] if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, body)


def response(status: int, body: bytes, *lines: str) -> bytes:
    head = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(body)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def document(status: int, value: Any, *lines: str) -> bytes:
    return response(status, msgspec.json.encode(value), *lines)


def facts_of(asked: Asked, **changes: Any) -> dict[str, Any]:
    """The facts of a completed transfer, as a worker answers that order."""
    order = asked.json()
    return {
        "session_id": order["session_id"],
        "status": "completed",
        "backend": order["backend"],
        "source_worker": order["source"]["worker"],
        "payload_id": order["source"]["payload_id"],
        "target_sink_id": order["target_sink_id"],
        "target_payload_id": order["target_payload_id"],
        "bytes_transferred": 4096,
        "checksum": CHECKSUM,
        "transfer_us": 120,
        **changes,
    }


async def completes(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(document(200, facts_of(asked)))


def says(raw: bytes) -> Answer:
    """Always these bytes."""

    async def answer(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return answer


async def hangs(_: Asked, __: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def hangs_up(_: Asked, __: asyncio.StreamWriter) -> None:
    raise EOFError


def order(session_id: str = "session-1", **changes: Any) -> NewTransfer:
    source = changes.pop("source", TransferSource("node-b", "payload-1"))
    target = {} if "target_payload_id" in changes else {"target_sink_id": "sink-1"}
    return NewTransfer(session_id, source, TransferBackend.STAGED_COPY, **(target | changes))


@contextlib.asynccontextmanager
async def client_of(
    *workers: ScriptedWorker, keys: TokenKeys | None = KEYS, **limits: Any
) -> AsyncIterator[WorkerClient]:
    """A client that knows these workers, all of them listening."""
    known = {worker.name: worker for worker in workers}
    async with contextlib.AsyncExitStack() as stack:
        for worker in workers:
            server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            worker.url = worker.url or f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        chosen = LaneLimits(**({"backoff_s": 0.001} | limits))
        client = WorkerClient(known.get, keys, SystemClock(), limits=chosen)
        client.start()
        try:
            yield client
        finally:
            await client.stop()
            serving = [task for worker in workers for task in worker.serving]
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
