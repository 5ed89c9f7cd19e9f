"""`nexuskv worker`: holds payloads in memory and moves their bytes."""

import asyncio
import gc
import json
import os
import re
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
import uvicorn
import uvloop
from rich.console import Console

from app.cli.inputs import clear_ready_file
from app.cli.options import LogLevel, failure
from app.cli.secret_files import given_worker_secrets, worker_secrets_in
from app.cli.server import base_url, bind, handled, terminations
from app.clock import SystemClock, SystemIds
from app.errors import NexusError
from app.logging import configure_logging
from app.transfer.tokens import TokenKeys
from app.transfer.wire import WORKER_SCHEMA
from app.worker.node import NodeSettings, WorkerNode

_GRACEFUL_S: Final = 10
_MAX_GRACEFUL_S: Final = 600
_KEEP_ALIVE_S: Final = 75
_MIN_DRAM_BYTES: Final = 1024 * 1024
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_URL = re.compile(r"https?://[^/?#@\s]+")
_HOST_PORT = re.compile(r"[^/?#@\s]+:[0-9]{1,5}")

Node = Annotated[
    str,
    typer.Option("--node", help="The worker's name in locators."),
]
Listen = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="The control port; 0 takes a free one.")
]
DataListen = Annotated[
    str,
    typer.Option("--data-listen", metavar="HOST:PORT", help="The data port; 0 takes a free one."),
]
DramBytes = Annotated[
    int, typer.Option("--dram-bytes", metavar="N", help="Memory for payloads and sinks, in bytes.")
]
ApiUrl = Annotated[
    str | None,
    typer.Option(
        "--api-url", envvar="NEXUSKV_API_URL", help="The API to register with; none: stay alone."
    ),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        help="A file with the worker secret; else NEXUSKV_WORKER_SECRET or its _FILE.",
    ),
]
AdvertiseUrl = Annotated[
    str | None,
    typer.Option("--advertise-url", help="Where others reach the control port, http://HOST:PORT."),
]
AdvertiseData = Annotated[
    str | None,
    typer.Option("--advertise-data", help="Where others reach the data port, HOST:PORT."),
]
DrainS = Annotated[
    int,
    typer.Option(
        "--drain-s",
        metavar="SECONDS",
        min=0,
        max=_MAX_GRACEFUL_S,
        help="How long running requests and transfers may still take after a signal.",
    ),
]
ReadyFile = Annotated[
    Path | None,
    typer.Option("--ready-file", metavar="FILE", help="Write the addresses here, as JSON."),
]


def worker_command(
    *,
    node: Node,
    dram_bytes: DramBytes,
    listen: Listen = "127.0.0.1:0",
    data_listen: DataListen = "127.0.0.1:0",
    api_url: ApiUrl = None,
    secret_file: SecretFile = None,
    advertise_url: AdvertiseUrl = None,
    advertise_data: AdvertiseData = None,
    drain_s: DrainS = _GRACEFUL_S,
    ready_file: ReadyFile = None,
    log_level: LogLevel = "info",
) -> None:
    """Run a worker: it holds payloads in memory and moves their bytes to other workers and sinks.

    It shares one secret with the API and the other workers: NEXUSKV_WORKER_SECRET, or the content
    of --secret-file. Two secrets, separated by a comma, allow a rotation: the first signs, both
    verify.
    """
    try:
        _check(node, dram_bytes, api_url, advertise_url, advertise_data)
        secrets = _secrets(secret_file)
        if ready_file is not None:
            clear_ready_file(ready_file)
        with bind(listen) as control, bind(data_listen, "--data-listen") as data:
            url = advertise_url or _reachable(control, "--advertise-url", api_url, base_url)
            address = advertise_data or _reachable(data, "--advertise-data", api_url, _host_port)
            settings = NodeSettings(node, dram_bytes, secrets, url, address, api_url)
            configure_logging(log_level)
            _Run(settings, control, data, drain_s=drain_s, ready_file=ready_file).run()
    except (NexusError, OSError, ValueError) as error:
        raise failure(error.message if isinstance(error, NexusError) else str(error)) from None


class _Server(uvicorn.Server):
    """uvicorn; a signal first makes the worker say that it stops, and is not raised again."""

    def __init__(
        self, config: uvicorn.Config, node: WorkerNode, announce: Callable[[WorkerNode], None]
    ) -> None:
        super().__init__(config)
        self._node = node
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce(self._node)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        with handled(self.handle_exit, [signal.SIGINT, *terminations()]):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._node.refuse_new()
        super().handle_exit(sig, frame)


class _Run:
    """One run of a worker on its two bound sockets."""

    def __init__(
        self,
        settings: NodeSettings,
        control: socket.socket,
        data: socket.socket,
        *,
        drain_s: int,
        ready_file: Path | None,
    ) -> None:
        self._settings = settings
        self._control = control
        self._data = data
        self._drain_s = drain_s
        self._ready_file = ready_file

    def run(self) -> None:
        """Until SIGINT or SIGTERM. Raises ArenaError when the memory is not to be had."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        node = WorkerNode(self._settings, self._data, SystemClock(), SystemIds())
        config = uvicorn.Config(
            node.app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=self._drain_s,
        )
        server = _Server(config, node, self._announce)
        node.start()
        try:
            await server.serve(sockets=[self._control])
        finally:
            await node.stop(self._drain_s)

    def _announce(self, node: WorkerNode) -> None:
        # What lives as long as the process is not looked at again by every collection.
        gc.collect()
        gc.freeze()
        Console(stderr=True).print(
            f"NexusKV worker {self._settings.node} answers on {self._settings.url}, "
            f"data on {self._settings.data_address}",
            highlight=False,
        )
        if self._ready_file is not None:
            _write_ready_file(self._ready_file, self._settings, node.instance_id)


def _write_ready_file(path: Path, settings: NodeSettings, instance_id: str) -> None:
    """Appears whole or not at all: whoever waits for the file may read it at once."""
    content = {
        "schema_version": WORKER_SCHEMA,
        "url": settings.url,
        "data_address": settings.data_address,
        "node": settings.node,
        "instance_id": instance_id,
    }
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.write_text(json.dumps(content) + "\n", encoding="utf-8")
    staged.replace(path)


def _check(
    node: str,
    dram_bytes: int,
    api_url: str | None,
    advertise_url: str | None,
    advertise_data: str | None,
) -> None:
    if _NODE.fullmatch(node) is None:
        raise ValueError(
            "--node has 1 to 128 letters, digits and any of . _ -, and begins with one of the "
            f"first two, not {node!r}"
        )
    if dram_bytes < _MIN_DRAM_BYTES:
        raise ValueError(f"--dram-bytes is at least {_MIN_DRAM_BYTES}, not {dram_bytes}")
    for option, value, pattern, shape in (
        ("--api-url", api_url and api_url.rstrip("/"), _URL, "http://HOST:PORT"),
        ("--advertise-url", advertise_url, _URL, "http://HOST:PORT"),
        ("--advertise-data", advertise_data, _HOST_PORT, "HOST:PORT"),
    ):
        if value is not None and pattern.fullmatch(value) is None:
            raise ValueError(f"{option} must be {shape}, not {value!r}")


def _secrets(secret_file: Path | None) -> tuple[str, ...]:
    """Raises ValueError that says where to put one."""
    secrets = (
        given_worker_secrets(os.environ)
        if secret_file is None
        else worker_secrets_in(secret_file, "--secret-file")
    )
    if not secrets:
        raise ValueError(
            "no worker secret: set NEXUSKV_WORKER_SECRET (`openssl rand -hex 32` makes one), or "
            "give --secret-file; the API has the same"
        )
    TokenKeys(secrets)
    return secrets


def _reachable(
    bound: socket.socket, option: str, api_url: str | None, say: Callable[[socket.socket], str]
) -> str:
    """The address of a bound socket, unless nobody could call it by that."""
    if api_url is not None and ip_address(bound.getsockname()[0]).is_unspecified:
        raise ValueError(
            f"a socket on every address has no name that others could call: give {option}"
        )
    return say(bound)


def _host_port(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
