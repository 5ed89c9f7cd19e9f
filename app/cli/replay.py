"""`nexuskv replay`: a request trace through a running service, and what the service made of it."""

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import httpx
import msgspec
import typer
from rich.console import Console

from app.cli.replay_bodies import ReplayScope
from app.cli.replay_client import ReplayClient, ReplayError
from app.cli.replay_report import Figures, ProgressView
from app.cli.replay_run import Replay
from app.cli.replay_tally import Tally
from app.cli.service_client import (
    DEFAULT_URL,
    KEY_ADVICE,
    ServiceKey,
    ServiceKeyFile,
    ServiceUrl,
    checked_url,
    given_key,
)
from app.cli.trace_format import MAX_INPUT_TOKENS, TraceItem, read_trace
from app.clock import SystemClock, SystemIds
from app.errors import ErrorCode

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
CHUNK_BYTES = 1024 * 1024
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to drive the service; what the states look like is the scope's."""

    url: str
    key: str | None
    limit: int | None
    concurrency: int
    timeout_s: float
    flush_timeout_s: float


def replay_command(
    trace: Annotated[
        Path,
        typer.Argument(metavar="TRACE.jsonl", exists=True, dir_okay=False, help="The trace file."),
    ],
    *,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many requests.")] = None,
    block_tokens: Annotated[
        int, typer.Option(min=1, max=MAX_INPUT_TOKENS, help="Tokens that a hash id stands for.")
    ] = 512,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Requests in flight; at 1 the two rates are equal.")
    ] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", dir_okay=False, help="Also write the figures here.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Tenant of the states.")] = "replay",
    namespace: Annotated[
        str | None,
        typer.Option(help="A fixed one finds earlier runs' states. [default: a new one]"),
    ] = None,
    model: Annotated[str, typer.Option(help="Model name of the states.")] = "replay-model",
    engine_family: Annotated[str, typer.Option(help="vllm or sglang.")] = "vllm",
    semantic_type: Annotated[str, typer.Option(help="gqa_kv, mha_kv or mqa_kv.")] = "gqa_kv",
    timeout_s: Annotated[float, typer.Option(min=0.1, help="For one request.")] = 30.0,
    flush_timeout_s: Annotated[
        float, typer.Option(min=0, help="How long to wait for the decisions to be listed.")
    ] = 15.0,
) -> None:
    """Run a request trace through a running service: look up, estimate on a hit, register.

    Ends with the token hit rate beside the trace's infinite-cache bound. Each run uses a namespace
    of its own, so that it starts cold and can be repeated.
    """
    url, key = checked_url(url), given_key(key, key_file)
    scope = ReplayScope(
        tenant=tenant,
        namespace=namespace or f"replay-{SystemIds().uuid7().hex[:12]}",
        model=model,
        engine_family=engine_family,
        semantic_type=semantic_type,
        block_tokens=block_tokens,
    )
    options = ReplayOptions(url, key, limit, concurrency, timeout_s, flush_timeout_s)
    console = Console(stderr=True)
    with trace.open("rb") as lines:
        figures, fault = asyncio.run(_replay(console, options, scope, lines))
    raise typer.Exit(_conclude(console, figures, fault, json_file))


def _count_lines(lines: BinaryIO, limit: int | None) -> int | None:
    """The requests ahead, for the progress bar; None where the trace cannot be read twice."""
    if not lines.seekable():
        return limit
    count = sum(chunk.count(b"\n") for chunk in iter(lambda: lines.read(CHUNK_BYTES), b""))
    lines.seek(0)
    return count if limit is None else min(count, limit)


async def _replay(
    console: Console, options: ReplayOptions, scope: ReplayScope, lines: BinaryIO
) -> tuple[Figures, Exception | None]:
    clock = SystemClock()
    items = read_trace(lines, block_tokens=scope.block_tokens, limit=options.limit)
    async with httpx.AsyncClient(
        base_url=options.url,
        headers={"authorization": f"Bearer {options.key}"} if options.key else {},
        limits=httpx.Limits(max_connections=options.concurrency),
        timeout=options.timeout_s,
        trust_env=False,  # a proxy of the environment would be measured too
    ) as http:
        client = ReplayClient(http, clock)
        with ProgressView(console, _count_lines(lines, options.limit)) as view:
            replay = Replay(client, scope, on_progress=view.show)
            started_us = clock.monotonic_us()
            interrupted = await _run_until_signalled(replay, items, options.concurrency)
            duration_s = (clock.monotonic_us() - started_us) / 1_000_000
        decisions = None
        if not _is_fatal(replay.fault):
            decisions = await _recorded(console, client, replay.tally, scope, options)
    figures = Figures(replay.tally, scope, options.concurrency, duration_s, decisions, interrupted)
    return figures, replay.fault


async def _run_until_signalled(
    replay: Replay, items: Iterator[TraceItem], concurrency: int
) -> bool:
    """Run; the first SIGINT or SIGTERM lets the requests in flight finish, the next kills.

    Returns whether a signal came.
    """
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        replay.stop()
        for each in STOP_SIGNALS:
            loop.remove_signal_handler(each)

    for each in STOP_SIGNALS:
        loop.add_signal_handler(each, on_signal, each)
    try:
        await replay.run(items, concurrency=concurrency)
    finally:
        for each in STOP_SIGNALS:
            loop.remove_signal_handler(each)
    return bool(received)


def _is_fatal(fault: Exception | None) -> bool:
    return isinstance(fault, ReplayError) and fault.fatal


async def _recorded(
    console: Console,
    client: ReplayClient,
    tally: Tally,
    scope: ReplayScope,
    options: ReplayOptions,
) -> int | None:
    try:
        return await client.count_recorded(
            tally.decision_ids,
            filters={
                "tenant": scope.tenant,
                "namespace": scope.namespace,
                "model": scope.model,
            },
            deadline_s=options.flush_timeout_s,
        )
    except ReplayError as error:
        _say(console, f"decisions not verified: {error.code}: {error.message}")
        return None


def _conclude(
    console: Console, figures: Figures, fault: Exception | None, json_file: Path | None
) -> int:
    """Print the table and the faults, write the file; the exit code."""
    Console().print(figures.table())
    for message in figures.tally.messages:
        _say(console, message)
    if fault is not None:
        _say(console, f"stopped early: {fault}")
        if advice := _advice(fault, figures.scope.tenant):
            _say(console, advice)
    if json_file is not None:
        document = msgspec.json.format(msgspec.json.encode(figures.document()), indent=2)
        json_file.write_bytes(document + b"\n")
    if figures.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if fault is not None or figures.tally.errors else 0


def _advice(fault: Exception, tenant: str) -> str | None:
    """What to do about a key that the service does not take; None for any other fault."""
    match fault:
        case ReplayError(code=ErrorCode.UNAUTHORIZED):
            return KEY_ADVICE
        case ReplayError(code=ErrorCode.TENANT_FORBIDDEN):
            return f"the states are those of tenant {tenant}; --tenant names one that the key has"
    return None


def _say(console: Console, text: str) -> None:
    """A line as it is: server texts may hold brackets, and a long one stays one line."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
