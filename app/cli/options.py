"""Options that several commands share, and how a command fails."""

from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import typer
from rich.console import Console

from app.errors import ErrorCode, NexusError
from app.logging import mask_text
from app.settings import DEFAULT_LISTEN, DEFAULT_POLICY_FILE

Listen = Annotated[
    str,
    typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; port 0 takes a free one."),
]
Fixtures = Annotated[
    list[Path] | None,
    typer.Option(
        "--fixture", metavar="FILE", help="Register the states of a fixture file; repeat it."
    ),
]
ReadyFile = Annotated[
    Path | None,
    typer.Option(
        "--ready-file", metavar="FILE", help="Write the base URL here, as JSON, once it answers."
    ),
]
PolicyFile = Annotated[
    Path,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="The execution policy, YAML or JSON.",
        show_default="policies/default.yaml of the installation",
    ),
]
LogLevel = Annotated[
    str,
    typer.Option("--log-level", envvar="NEXUSKV_LOG_LEVEL", help="debug, info, warning, error."),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="NEXUSKV_DATABASE_URL",
        show_default=False,
        help="postgresql://USER@HOST/DATABASE.",
    ),
]
LISTEN_DEFAULT = DEFAULT_LISTEN
POLICY_DEFAULT = DEFAULT_POLICY_FILE


def failure(message: str, *, exit_code: int = 1) -> typer.Exit:
    """Says on stderr what went wrong, secrets masked; raise what it returns."""
    text = mask_text(message).replace("[", r"\[")
    Console(stderr=True, soft_wrap=True).print(f"[red]Error:[/red] {text}", highlight=False)
    return typer.Exit(exit_code)


def database_failure(error: NexusError, url: str | None) -> typer.Exit:
    """`failure` for a command on the database at `url`; None for one that it brought itself."""
    if error.code is not ErrorCode.DATABASE_UNAVAILABLE or url is None:
        return failure(error.message)
    cause = f": {error.internal}" if error.internal else f": {error.message}"
    return failure(
        f"the database at {_host_of(url)} cannot be used{cause}. "
        "NEXUSKV_DATABASE_URL (or --database-url) names it: see that its server runs. "
        "The one that `nexuskv up` brings runs with it, and `up` needs the variable unset"
    )


def _host_of(url: str) -> str:
    """Host and port, or the directory of the socket; never the password."""
    try:
        parsed = urlsplit(url)
        asked = parse_qs(parsed.query)
        host = parsed.hostname or asked.get("host", ["this machine"])[0]
        port = parsed.port or asked.get("port", ["5432"])[0]
    except ValueError:
        return "its URL"
    return f"{host}:{port}"


def required_url(database_url: str | None) -> str:
    """The database URL, or a failure that says where to put it."""
    if not database_url:
        raise failure(
            "no database: set NEXUSKV_DATABASE_URL=postgresql://USER@HOST/DATABASE, "
            "or run `nexuskv up`, which brings one",
            exit_code=2,
        )
    return database_url
