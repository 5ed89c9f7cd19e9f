"""`nexuskv keys`: make, list and revoke API keys, straight in the database."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

import orjson
import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from app.clock import SystemClock, SystemIds
from app.control.issue import issue_key
from app.control.keys import ALL_TENANTS, Scope
from app.control.repository import StoredKey, list_keys, revoke_key
from app.db.migrate import schema_status
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.logging import configure_logging, mask_text

# Hexadecimal, of six bytes.
_KEY_ID_DIGITS: Final = 12
keys_app = typer.Typer(
    name="keys",
    help="Make, list and revoke API keys.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
)

T = TypeVar("T")

_FAILED = 1
_SCOPE_HELP = f"What it may do, bridge if none is given; repeat it: {', '.join(Scope)}."

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="NEXUSKV_DATABASE_URL",
        show_default=False,
        help="Where the keys are: postgresql://USER@HOST/DATABASE.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@keys_app.command("create")
def create(
    name: Annotated[str, typer.Option("--name", help="What the key is for, e.g. locus-prod.")],
    tenant: Annotated[
        list[str],
        typer.Option("--tenant", help="A tenant it may act for; repeat it, or '\\*' for all."),
    ],
    scope: Annotated[
        list[Scope] | None,
        typer.Option("--scope", metavar="SCOPE", help=_SCOPE_HELP),
    ] = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key and print it: the only time it can be seen."""

    async def run(database: Database) -> tuple[str, StoredKey]:
        new, stored = await issue_key(
            database,
            SystemClock(),
            SystemIds().random_bytes,
            name=name,
            scopes=scope or [Scope.BRIDGE],
            tenants=tenant,
        )
        return new.text, stored

    text, stored = _with_database(database_url, run)
    if as_json:
        _print_json(_as_dict(stored) | {"key": text})
        return
    _console().print(
        f"Key [bold]{stored.key_id}[/bold] may {', '.join(stored.scopes)}"
        f" for {_tenants(stored)}. It is shown only now:",
        highlight=False,
    )
    # Alone on its line and unstyled: to be copied, or taken by `| tail -1`.
    typer.echo(text)


@keys_app.command("list")
def list_all(as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """List every key, revoked ones too; secrets are not kept and cannot be shown."""

    async def run(database: Database) -> list[StoredKey]:
        async with database.read() as session:
            return await list_keys(session)

    keys = _with_database(database_url, run)
    if as_json:
        _print_json([_as_dict(key) for key in keys])
        return
    # Ids are whole: they are what is copied from here.
    others = ("Name", "Scopes", "Tenants", "Created", "Revoked")
    table = Table(
        Column("Key id", no_wrap=True, min_width=_KEY_ID_DIGITS),
        *(Column(name, overflow="fold") for name in others),
    )
    for key in keys:
        cells = (
            key.key_id,
            key.name,
            "\n".join(key.scopes),
            _tenants(key),
            _time(key.created_at),
            _time(key.revoked_at),
        )
        table.add_row(*(Text(cell) for cell in cells), style="dim" if key.revoked_at else None)
    _console().print(table if keys else "No keys yet; `nexuskv keys create` makes one.")


@keys_app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(help="The id that `nexuskv keys list` shows.")],
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke a key for good; every replica refuses it within a second."""

    async def run(database: Database) -> StoredKey | None:
        async with database.write() as session:
            return await revoke_key(session, key_id, SystemClock().now())

    key = _with_database(database_url, run)
    if key is None:
        raise _failure(f"There is no key {mask_text(key_id)!r}; `nexuskv keys list` shows them")
    typer.echo(f"Key {key.key_id} ({key.name}) is revoked since {_time(key.revoked_at)}.")


def _with_database(url: str | None, action: Callable[[Database], Awaitable[T]]) -> T:
    """Run `action` against a database with the newest schema; exits with a message otherwise."""
    configure_logging("error")
    if not url:
        raise _failure(
            "Say where the keys are: set NEXUSKV_DATABASE_URL or give --database-url; "
            "`nexuskv up` prints the one of its own, as `database`"
        )

    async def run() -> T:
        database = Database(url, pool_connections=1)
        try:
            status = await schema_status(database)
            if status.state != "current":
                raise NexusError(
                    ErrorCode.DATABASE_UNAVAILABLE,
                    f"The database's schema is {status.state}: found {status.current or 'none'},"
                    f" need {status.head}. `nexuskv migrate` brings it up to date",
                )
            return await action(database)
        finally:
            await database.close()

    with _explained():
        return asyncio.run(run())


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what a user can cause into one line on stderr."""
    try:
        yield
    except NexusError as error:
        reason = f"\n  {mask_text(error.internal)}" if error.internal else ""
        raise _failure(f"{error.message}{reason}") from error
    except ValueError as error:
        raise _failure(str(error)) from error


def _failure(message: str) -> typer.Exit:
    Console(stderr=True).print(f"[red]Error:[/red] {_plain(message)}", highlight=False)
    return typer.Exit(_FAILED)


def _plain(message: str) -> str:
    return mask_text(message).replace("[", r"\[")


def _console() -> Console:
    return Console()


def _print_json(value: Any) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _as_dict(key: StoredKey) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "name": key.name,
        "scopes": key.scopes,
        "tenants": key.tenants,
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
    }


def _tenants(key: StoredKey) -> str:
    return "all tenants" if ALL_TENANTS in key.tenants else ", ".join(key.tenants)


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")
