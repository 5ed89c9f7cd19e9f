"""`nexuskv demo`: the whole story with two workers, on a database and processes of its own."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import structlog
import typer
from rich.console import Console
from rich.markup import escape

from app.cli.demo_story import SOURCE, TARGET, Story, StoryError, as_json, patiently
from app.cli.options import LogLevel, failure
from app.cli.worker_child import WorkerChild
from app.clock import SystemClock, SystemIds
from app.control.issue import issue_key
from app.control.keys import ALL_TENANTS, Scope
from app.db.embedded import EmbeddedPostgres, PostgresStartError
from app.db.migrate import upgrade
from app.db.session import Database
from app.logging import configure_logging

_DRAM_BYTES: Final = 64 * 1024 * 1024
_MAX_TOKENS: Final = 4_096
_START_S: Final = 60.0
_STOP_S: Final = 20.0
log = structlog.get_logger("nexuskv.demo")


def demo_command(
    *,
    tokens: Annotated[
        int,
        typer.Option("--tokens", min=16, max=_MAX_TOKENS, help="Length of the prompt, in tokens."),
    ] = 512,
    content_file: Annotated[
        Path | None,
        typer.Option(
            "--content-file", metavar="FILE", help="Keep what the sink held, as it was read."
        ),
    ] = None,
    as_json_: Annotated[
        bool, typer.Option("--json", help="Print JSON at the end instead.")
    ] = False,
    log_level: LogLevel = "error",
) -> None:
    """Run one state's whole story: upload, register, look up, estimate, materialize, read, consume.

    It starts a database, the API and two workers of its own in a temporary folder, prints each
    step, and leaves nothing behind.
    """
    configure_logging(log_level)
    console = Console(soft_wrap=True, highlight=False)
    quiet = Console(stderr=True, soft_wrap=True, highlight=False) if as_json_ else console
    try:
        with _fleet(quiet) as (url, key):
            story = Story(url, key, tokens, SystemIds().random_bytes, SystemClock())
            told = []
            for number, step in enumerate(story.tell(), start=1):
                told.append(step)
                quiet.print(f"\n[bold]{number}. {step.title}[/bold]")
                quiet.print(f"   [dim]{escape(step.request)}[/dim]")
                for name, value in step.facts.items():
                    quiet.print(f"   {name:26} {escape(_shown(value))}")
            if content_file is not None:
                content_file.write_bytes(story.content)
    except StoryError as error:
        raise failure(f"the story ended early: {error}") from None
    except (PostgresStartError, OSError, httpx.HTTPError) as error:
        raise failure(str(error) or type(error).__name__) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json_:
        typer.echo(as_json(told, story).decode())
    else:
        console.print(
            "\nEvery byte arrived, and the history says how. `nexuskv up` starts your own."
        )


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@contextmanager
def _fleet(console: Console) -> Iterator[tuple[str, str]]:
    """The API's URL and an admin's key, with two workers registered."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nexuskv-demo-")))
        # Postgres refuses to run as root, and its user must pass through.
        home.chmod(0o711)
        console.print("Starting Postgres, the API and two workers ...")
        postgres = stack.enter_context(EmbeddedPostgres(home / "postgres"))
        key = asyncio.run(_prepare(postgres.url))
        secret = SystemIds().random_bytes(32).hex()
        url = stack.enter_context(_api(home, postgres.url, secret))
        for node in (SOURCE, TARGET):
            worker = WorkerChild(
                node, api_url=url, secret=secret, dram_bytes=_DRAM_BYTES, directory=home
            )
            stack.callback(worker.stop)
            worker.ensure()
        _wait_for_workers(url, key, home)
        yield url, key


async def _prepare(url: str) -> str:
    await upgrade(url)
    database = Database(url, pool_connections=1)
    try:
        new, _ = await issue_key(
            database,
            SystemClock(),
            SystemIds().random_bytes,
            name="demo",
            scopes=[Scope.ADMIN],
            tenants=[ALL_TENANTS],
        )
    finally:
        await database.close()
    return new.text


@contextmanager
def _api(home: Path, database_url: str, worker_secret: str) -> Iterator[str]:
    ready_file, log_path = home / "ready.json", home / "api.log"
    command = [sys.executable, "-m", "app.cli", "serve", "--listen", "127.0.0.1:0"]
    env = os.environ | {
        "NEXUSKV_DATABASE_URL": database_url,
        "NEXUSKV_HANDLE_SECRET": SystemIds().random_bytes(32).hex(),
        "NEXUSKV_WORKER_SECRET": worker_secret,
        # What the environment says of other installations is not for this one.
        "NEXUSKV_WORKER_HOSTS": "127.0.0.1",
        "NEXUSKV_SPOOL_DIR": str(home / "spool"),
    }
    with log_path.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready_file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            start_new_session=True,
        )
    try:
        yield _base_url(process, ready_file, log_path)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _base_url(process: subprocess.Popen[bytes], ready_file: Path, log_path: Path) -> str:
    def answers() -> bool:
        if process.poll() is not None:
            raise StoryError(f"the API did not start:\n{log_path.read_text(errors='replace')}")
        return ready_file.exists()

    patiently(answers, SystemClock(), _START_S, f"the API does not start; see {log_path}")
    url: str = json.loads(ready_file.read_text())["base_url"]
    return url


def _wait_for_workers(url: str, key: str, home: Path) -> None:
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}) as client:

        def heard() -> bool:
            found = client.get("/v1/workers").raise_for_status().json()["items"]
            available = {worker["name"] for worker in found if worker["available"]}
            return available >= {SOURCE, TARGET}

        try:
            patiently(heard, SystemClock(), _START_S, "the workers did not register")
        except StoryError as error:
            logs = "\n".join(path.read_text() for path in home.glob("worker-*.log"))
            raise StoryError(f"{error}:\n{logs}") from None
