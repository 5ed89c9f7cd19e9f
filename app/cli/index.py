"""`nexuskv index`: what engines tell of their caches, looked at without a service."""

from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from app.engines.capture import CaptureError, read_capture
from app.engines.replay import Replay

index_app = typer.Typer(
    help="Look at what engines tell of their caches.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@index_app.callback()
def index() -> None:
    """Look at what engines tell of their caches."""


@index_app.command("replay")
def replay_command(
    capture: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            readable=True,
            help="Frames of a publisher: msgpack objects [seconds, [topic, sequence, payload]].",
        ),
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print what an engine holds after a capture of its KV events.

    Blocks are counted by medium and group. After a gap only what was stored again is held; when
    the sequence goes back, another process publishes and the former one holds nothing.
    """  # fmt: skip
    replay = Replay()
    try:
        with capture.open("rb") as file:
            for frame in read_capture(file):
                replay.take(frame.topic, frame.sequence, frame.payload)
    except (CaptureError, OSError) as error:
        typer.echo(f"{capture}: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(orjson.dumps(_document(replay), option=_JSON).decode())
        return
    _show(replay, Console())


_JSON = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS


def _document(replay: Replay) -> dict[str, object]:
    return {
        "blocks": replay.counts(),
        "events": replay.events,
        "gaps": replay.gaps,
        "epochs": replay.epochs,
    }


def _show(replay: Replay, console: Console) -> None:
    held, doubtful = replay.counts(), replay.counts(doubtful=True)
    if held or doubtful:
        table = Table("Medium", "Group")
        table.add_column("Blocks held", justify="right")
        table.add_column("In doubt", justify="right")
        both = (held, doubtful)
        shelves = {(medium, group) for one in both for medium in one for group in one[medium]}
        for medium, group in sorted(shelves):
            known, unsure = (str(one.get(medium, {}).get(group, 0)) for one in both)
            table.add_row(medium, str(group), known, unsure)
        console.print(table)
    else:
        console.print("The engine holds nothing.")
    console.print(
        f"{replay.events} events in {replay.frames} frames; gaps: {replay.gaps}, "
        f"epochs: {replay.epochs}, repeated frames: {replay.repeated}"
    )
    notes = {
        "Removed, and not known to be there": replay.removed_unknown,
        "Skipped, of unknown types": _named(replay.skipped_types),
        "Fields that were not read": _named(replay.unknown_fields),
        "Frames that cannot be read": _named(replay.refused),
    }
    for label, value in notes.items():
        if value:
            console.print(f"{label}: {value}", highlight=False, markup=False)


def _named(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
