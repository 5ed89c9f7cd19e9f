"""`nexuskv history`: prove that nothing is missing, and say for how long rows are kept."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, Final, TypeVar
from uuid import UUID

import orjson
import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from app.cli.options import DatabaseUrl, database_failure, failure, required_url
from app.db.migrate import schema_status
from app.db.session import Database
from app.decisions.completeness import UnprovableError, WriterProof, prove
from app.decisions.record import DecisionKind
from app.decisions.retention import (
    ANY_KIND,
    ANY_TENANT,
    MAX_HISTORY_DAYS,
    MAX_KEEP_RULES,
)
from app.decisions.retention_repository import (
    KeepRule,
    count_keep_rules,
    keep_rules,
    set_keep_rule,
    unset_keep_rule,
)
from app.errors import ErrorCode, NexusError
from app.logging import configure_logging, mask_text

_UUID_DIGITS = 36
history_app = typer.Typer(
    name="history",
    help="Prove that the history is complete, and say for how long it is kept.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
)
retention_app = typer.Typer(
    name="retention",
    help="Say for how many days the rows of a tenant, or of a kind, are kept.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
)
history_app.add_typer(retention_app, name="retention")

T = TypeVar("T")

_MAX_TENANT: Final = 128
_NOT_FOUND: Final = "There is no rule for {0}; `nexuskv history retention list` shows them"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Tenant = Annotated[
    str, typer.Argument(help="A tenant, or '\\*' with --kind: every tenant without its own rule.")
]
Kind = Annotated[
    DecisionKind | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help=f"Only rows of this kind, without it of every kind: {', '.join(DecisionKind)}.",
    ),
]


@history_app.command("check")
def check(
    *,
    writer: Annotated[
        UUID | None, typer.Option("--writer", metavar="ID", help="Look at this writer only.")
    ] = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Prove for every writer that each number it gave is stored once, or in a gap.

    Exits with 1 when something is missing or there twice. A gap is a loss that was counted and
    recorded, and no fault of the store. Rows that left with age are not looked for.
    """

    async def run(database: Database) -> list[WriterProof]:
        return await prove(database, writer)

    try:
        proofs = _with_database(database_url, run)
    except UnprovableError as error:
        raise failure(str(error)) from None
    if writer is not None and not proofs:
        raise failure(f"there is no writer {writer}")
    if as_json:
        _print_json(
            {
                "complete": all(proof.holds for proof in proofs),
                "writers": [
                    asdict(proof) | {"writer_id": str(proof.writer_id)} for proof in proofs
                ],
            }
        )
    else:
        _show(proofs)
    if not all(proof.holds for proof in proofs):
        raise typer.Exit(1)


@retention_app.command("set")
def set_rule(
    tenant: Tenant,
    days: Annotated[
        int, typer.Argument(min=1, max=MAX_HISTORY_DAYS, help="Whole days after a row's own.")
    ],
    *,
    kind: Kind = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Keep the rows of a tenant for so many days, in place of what holds for all.

    The most special rule counts: that of a tenant and kind, then of the tenant, then of '\\*' and
    the kind. It holds from the next round on, within an hour.
    """
    rule = KeepRule(_checked(tenant, kind), kind or ANY_KIND, days)

    async def run(database: Database) -> None:
        async with database.write() as session:
            await set_keep_rule(session, rule)
            if await count_keep_rules(session) > MAX_KEEP_RULES:
                raise NexusError(
                    ErrorCode.INVALID_FIELD, f"There can be {MAX_KEEP_RULES:,} rules: unset one"
                )

    _with_database(database_url, run)
    typer.echo(f"{_named(rule.tenant, rule.kind)}: kept for {days} days.")


@retention_app.command("unset")
def unset_rule(tenant: Tenant, *, kind: Kind = None, database_url: DatabaseUrl = None) -> None:
    """Take a rule back: what holds for all holds again."""
    owner = _checked(tenant, kind)

    async def run(database: Database) -> bool:
        async with database.write() as session:
            return await unset_keep_rule(session, owner, kind or ANY_KIND)

    named = _named(owner, kind or ANY_KIND)
    if not _with_database(database_url, run):
        raise failure(_NOT_FOUND.format(named))
    typer.echo(f"{named}: the rule is gone.")


@retention_app.command("list")
def list_rules(*, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """List the rules; without any, NEXUSKV_HISTORY_DAYS of the service holds for all."""

    async def run(database: Database) -> list[KeepRule]:
        async with database.read() as session:
            return await keep_rules(session)

    rules = _with_database(database_url, run)
    if as_json:
        _print_json([rule._asdict() for rule in rules])
        return
    table = Table("Tenant", "Kind")
    table.add_column("Days", justify="right")
    for rule in rules:
        table.add_row(Text(rule.tenant), rule.kind or "every", str(rule.days))
    Console().print(
        table if rules else "No rules: NEXUSKV_HISTORY_DAYS of the service holds for all.",
        soft_wrap=not rules,
    )


def _writers(proofs: list[WriterProof]) -> str:
    return f"{len(proofs)} writer{'' if len(proofs) == 1 else 's'}"


def _show(proofs: list[WriterProof]) -> None:
    if not proofs:
        typer.echo("No writer has stored anything yet.")
        return
    # Whole, so that it can be given to --writer.
    table = Table(
        Column("Writer", no_wrap=True, min_width=_UUID_DIGITS),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for name in ("From", "Through", "Rows", "Gaps", "Missing", "Twice"):
        table.add_column(name, justify="right", no_wrap=True)
    for proof in proofs:
        numbers = (
            proof.from_seq,
            proof.committed_seq,
            proof.rows,
            sum(proof.gaps.values()),
            proof.missing,
            proof.twice,
        )
        table.add_row(
            str(proof.writer_id), *map(str, numbers), style=None if proof.holds else "bold red"
        )
    console = Console(soft_wrap=True)
    console.print(table)
    for proof in proofs:
        if proof.gaps:
            told = ", ".join(f"{reason} {count}" for reason, count in sorted(proof.gaps.items()))
            console.print(f"{proof.writer_id}: recorded as lost: {told}", highlight=False)
        if proof.holes:
            told = ", ".join(f"{first} to {last}" for first, last in proof.holes)
            console.print(f"{proof.writer_id}: missing: {told}", highlight=False)
    faulty = sum(not proof.holds for proof in proofs)
    console.print(
        f"{faulty} of {_writers(proofs)} lack rows, or have them twice."
        if faulty
        else f"Nothing is missing, and nothing is there twice: {_writers(proofs)}.",
        highlight=False,
    )


def _checked(tenant: str, kind: DecisionKind | None) -> str:
    if not 1 <= len(tenant) <= _MAX_TENANT or "\0" in tenant:
        raise failure(f"a tenant has from 1 to {_MAX_TENANT} characters, and no NUL", exit_code=2)
    if tenant == ANY_TENANT and kind is None:
        raise failure(
            "for every tenant and kind, set NEXUSKV_HISTORY_DAYS of the service; with '*' give"
            " --kind",
            exit_code=2,
        )
    return tenant


def _named(tenant: str, kind: str) -> str:
    return f"{mask_text(tenant)}, {kind or 'every kind'}"


def _with_database(url: str | None, action: Callable[[Database], Awaitable[T]]) -> T:
    """Run `action` against a database with the newest schema; exits with a message otherwise."""
    given = required_url(url)
    configure_logging("error")

    async def run() -> T:
        async with Database(given, pool_connections=1) as database:
            status = await schema_status(database)
            if status.state != "current":
                raise NexusError(
                    ErrorCode.DATABASE_UNAVAILABLE,
                    "The schema is not this version's",
                    internal=f"its schema is {status.state}: found {status.current or 'none'}, "
                    f"need {status.head}; `nexuskv migrate` brings it up to date",
                )
            return await action(database)

    try:
        return asyncio.run(run())
    except NexusError as error:
        raise database_failure(error, given) from None
    except (OSError, ValueError) as error:
        raise failure(str(error)) from None


def _print_json(value: Any) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
