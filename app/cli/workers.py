"""`nexuskv workers`: who moves bytes, as the service knows them."""

from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.service_client import (
    DEFAULT_URL,
    ServiceClient,
    ServiceKey,
    ServiceKeyFile,
    ServiceUrl,
)

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def workers_command(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """List the workers: whether they are heard, what they hold, what they do.

    The key needs the scope workers:read.
    """
    with ServiceClient(url, key, key_file) as service:
        found = service.get("/v1/workers")
    if as_json:
        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
        return
    workers = found["items"]
    console = Console()
    console.print(_table(workers) if workers else "No workers yet; `nexuskv worker` starts one.")


def _table(workers: list[dict[str, Any]]) -> Table:
    # What does not fit 80 columns is in --json.
    table = Table("Worker", "Heard", "Memory", "Payloads", "Sinks", "Moving")
    table.add_column("URL", overflow="fold")
    for worker in workers:
        load = worker["load"]
        heard_s = worker["heartbeat_age_us"] / 1_000_000
        cells = (
            worker["name"],
            f"{'' if worker['available'] else 'no, '}{heard_s:.1f} s ago",
            f"{_bytes(load['used_bytes'])} of {_bytes(load['capacity_bytes'])}",
            str(load["payloads"]),
            str(load["sinks"]),
            str(load["transfers"]),
            worker["url"],
        )
        assert len(cells) == len(table.columns)
        style = None if worker["available"] else "red"
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def _bytes(count: int) -> str:
    """Three digits or so, in the largest unit that keeps at least one before the point."""
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
