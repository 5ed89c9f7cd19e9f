"""`nexuskv plan`: ask a service for a plan, and why one was made as it was."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
import orjson
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.options import failure
from app.cli.service_client import (
    DEFAULT_URL,
    ServiceClient,
    ServiceKey,
    ServiceKeyFile,
    ServiceUrl,
)
from app.console.plan_words import Bar, bars, called, summary
from app.console.reasons import said
from app.console.words import duration, exact, plain
from app.lifecycle.plan_told import ToldPlan

plan_app = typer.Typer(
    name="plan",
    help="Ask for plans, and why one was made as it was.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
)

MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
_WIDTH: Final = 32
_COLOURS: Final = {
    "queue": "bright_black", "lookup": "magenta", "transfer": "blue", "restore": "cyan",
    "sync": "yellow", "schedule": "yellow", "recompute": "red", "interference": "bright_red",
}  # fmt: skip

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as it is.")]
Full = Annotated[bool, typer.Option("--full", help="List every alternative, at most 1,024.")]


@plan_app.command("explain")
def explain(
    decision: Annotated[
        str, typer.Argument(metavar="ID", help="The `decision_id` of the plan's answer.")
    ],
    *,
    full: Full = False,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Say what a plan chose, what each term of it costs, and why the others lost.

    It is made again from what was recorded: the same question under the same policy.
    """
    try:
        decision_id = UUID(decision)
    except ValueError:
        raise typer.BadParameter("must be the id of a decision", param_hint="ID") from None
    with ServiceClient(url, key, key_file) as client:
        found = client.get(
            f"/v1/plans/{decision_id}",
            explain="full" if full else "brief",
            unless_found="there is no such plan, or it is not stored yet: that takes a second",
        )
    _print(found, as_json=as_json)


@plan_app.command("make")
def make(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The request, JSON as of `POST /v1/plans`; `-` reads input."
        ),
    ],
    *,
    policy: Annotated[
        int | None, typer.Option(min=1, help="A dry run under this stored version.")
    ] = None,
    full: Full = False,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Ask for a plan, and say why it is as it is."""
    body = _read(file)
    if policy is not None:
        body["policy"] = policy
    if full:
        body["explain"] = "full"
    with ServiceClient(url, key, key_file) as client:
        _, found = client.post(
            "/v1/plans", content=orjson.dumps(body), content_type="application/json"
        )
    _print(found, as_json=as_json)


def _read(file: Path) -> dict[str, Any]:
    try:
        if str(file) == "-":
            text = sys.stdin.buffer.read(MAX_REQUEST_BYTES + 1)
        else:
            with file.open("rb") as opened:
                text = opened.read(MAX_REQUEST_BYTES + 1)
    except OSError as error:
        raise failure(f"{file}: {error.strerror}") from None
    if len(text) > MAX_REQUEST_BYTES:
        raise failure(f"{file} has more than {MAX_REQUEST_BYTES} bytes")
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise failure(f"{file} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise failure(f"{file} is not a JSON object")
    return body


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
        return
    try:
        told = msgspec.convert(found, ToldPlan)
    except msgspec.ValidationError as error:
        raise failure(f"the service answers otherwise than this version expects: {error}") from None
    console = Console(highlight=False)
    console.print(Text(plain(told.action).capitalize(), style="bold"))
    for text in summary(told):
        console.print(Text(text))
    console.print(_bars(bars(told)))
    console.print(_terms(told))
    if told.excluded:
        console.print(_exclusions(told))
    for note in told.notes:
        console.print(Text(f"note: {note.about}: {note.note}"))
    if told.considered is not None:
        console.print(_considered(told))
    console.print(
        Text(
            f"policy {found['policy_version']}, topology {found['topology_version'] or 'none'},"
            f" engines {found['engines']}, states {found['states']}",
            style="dim",
        )
    )


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column[0] == ">" else "left",
                         overflow="fold")  # fmt: skip
    return table


def _bars(listed: list[Bar]) -> Table:
    table = _table("Alternative", ">To first token", "Terms", "Not taken for")
    for bar in listed:
        lost = plain(bar.way.lost) if bar.way.lost else ("" if bar.label == "chosen" else "instead")
        mark = "chosen: " if bar.label == "chosen" else ""
        table.add_row(
            Text(f"{mark}{called(bar.way)}", style="bold" if mark else ""),
            f"{duration(bar.way.total_us)} ± {duration(bar.way.uncertainty_us)}",
            _drawn(bar),
            lost,
        )
    return table


def _drawn(bar: Bar) -> Text:
    """Terms as blocks; none is left out for being short."""
    text = Text()
    for part in bar.segments:
        blocks = round(part.length / 1_000 * _WIDTH)
        text.append("█" * blocks or "▏", style=_COLOURS[part.name])
    return text


def _terms(told: ToldPlan) -> Table:
    table = _table("Term", ">Chosen", ">Give or take", "From", ">Computing instead")
    instead = {term.name: term.value_us for term in told.fallback.terms}
    for term in told.chosen.terms:
        other = instead.get(term.name)
        colour = _COLOURS.get(term.name, "")
        table.add_row(
            Text(f"█ {plain(term.name)}", style=colour),
            duration(term.value_us),
            duration(term.uncertainty_us),
            term.provenance,
            "" if other is None else duration(other),
        )
    return table


def _exclusions(told: ToldPlan) -> Table:
    table = _table("Not taken", ">Alternatives", "What it means")
    for one in told.excluded:
        table.add_row(plain(one.reason), exact(one.count), said(one.reason).what)
    return table


def _considered(told: ToldPlan) -> Table:
    table = _table("Target", "Source", ">To first token", ">Gain", "Not taken for")
    for one in told.considered or ():
        source = "computing" if one.source is None else f"{one.source.name} ({one.source.tier})"
        table.add_row(
            f"{one.engine_id}/{one.dp_rank}" if one.dp_rank else one.engine_id,
            source,
            "" if one.total_us is None else duration(one.total_us),
            "" if one.gain_us is None else duration(one.gain_us),
            plain(one.lost) if one.lost else "chosen",
        )
    if told.considered_left_off:
        table.caption = f"{exact(told.considered_left_off)} more are left off"
    return table
