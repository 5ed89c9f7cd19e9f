"""`nexuskv doctor`: what keeps engines' prefixes from being found, and what to do."""

from typing import Annotated, Any, Final

import orjson
import typer
from rich.console import Console
from rich.text import Text

from app.cli.service_client import (
    DEFAULT_URL,
    ServiceClient,
    ServiceKey,
    ServiceKeyFile,
    ServiceUrl,
)

_STYLES: Final = {"error": "red", "warning": "yellow", "note": "dim"}


def doctor_command(
    *,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="INSTANCE", help="Only this engine.")
    ] = None,
    dp_rank: Annotated[
        int | None, typer.Option("--dp-rank", min=0, help="Only this rank of it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Say which preconditions of engines' KV events fail, and what to do about each.

    The key needs the scope engines:read. The exit code is 1 when something is wrong.
    """
    asked: dict[str, Any] = {}
    if engine is not None:
        asked["engine"] = engine
    if dp_rank is not None:
        asked["dp_rank"] = dp_rank
    with ServiceClient(url, key, key_file) as service:
        found = service.get("/v1/doctor", **asked)
    if as_json:
        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
    else:
        _print(found)
    if not found["ok"]:
        raise typer.Exit(1)


def _print(found: dict[str, Any]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    if not found["reports"]:
        console.print("No engines are registered; POST /v1/engines registers one.")
    for report in found["reports"]:
        rank = "" if report["dp_rank"] is None else f" rank {report['dp_rank']}"
        state = report["state"] or "not registered"
        console.print(Text(f"{report['instance_id']}{rank}: {state}", style="bold"))
        for one in report["findings"]:
            line = Text(f"  {one['severity']:<7} ", style=_STYLES[one["severity"]])
            console.print(line.append(f"{one['check']}: {one['what']}", style="default"))
            console.print(Text(f"          {one['do']}"))
        if report["passed"]:
            console.print(Text(f"  fine    {', '.join(report['passed'])}", style="green"))
    if found["left_off"]:
        console.print(f"{found['left_off']} more engines; name one with --engine.")
