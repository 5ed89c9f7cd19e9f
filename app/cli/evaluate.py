"""`nexuskv evaluate`: the planner against other strategies, on a simulated fleet and a trace."""

import hashlib
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer
from rich.console import Console
from rich.markdown import Markdown

from app.cli.options import failure
from app.cli.trace_format import TraceError, read_trace
from app.clock import seeded_random
from app.errors import NexusError
from app.evaluate.artefacts import recoveries, table, winners, write
from app.evaluate.fleet import Fleet, load_fleet
from app.evaluate.measures import row
from app.evaluate.run import SETTLED, evaluate, recover
from app.evaluate.simulator import draw
from app.policy.text import parse_document

MAX_REQUESTS: Final = 1_000_000


def evaluate_command(
    trace: Annotated[Path, typer.Option(help="Requests, one JSON object a line.")],
    fleet: Annotated[Path, typer.Option(help="The fleet, YAML or JSON: nexuskv.fleet.v1.")],
    out: Annotated[Path, typer.Option(help="A directory for what comes of it.")],
    *,
    seed: Annotated[int, typer.Option(help="What chance begins with.", min=0)] = 1,
    limit: Annotated[
        int, typer.Option(help="Requests at most.", min=1, max=MAX_REQUESTS)
    ] = MAX_REQUESTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Replay a trace against a simulated fleet, once for each strategy.

    Everything is seeded: the same arguments give the same files.
    """
    console = Console(stderr=True, highlight=False)
    try:
        described = load_fleet(parse_document(fleet.read_bytes()))
        listed = _requests(trace, described, limit)
        requests = draw(described, listed, seeded_random(seed))
        if not requests:
            raise failure(f"{trace} has no request")
        found = evaluate(described, requests, console.print)
        recovered = recover(described, requests, console.print) if len(requests) > SETTLED else []
        config = _config(trace, fleet, described, seed, len(requests))
        written = write(out, config, found, recovered)
    except OSError as error:
        raise failure(f"{error.filename or out}: {error.strerror}") from None
    except (TraceError, NexusError) as error:
        raise failure(str(error)) from None
    if as_json:
        typer.echo(orjson.dumps([row(one) for one in found]).decode())
        return
    Console().print(Markdown(table(found)))
    typer.echo(winners(found))
    if recovered:
        Console().print(Markdown(recoveries(recovered)))
    typer.echo(f"written to {written[-1]}")


def _requests(
    trace: Path, fleet: Fleet, limit: int
) -> list[tuple[float, int, int, tuple[int, ...]]]:
    with trace.open("rb") as lines:
        return [
            (one.timestamp, one.input_length, one.output_length, one.hash_ids)
            for _, one, _ in read_trace(lines, block_tokens=fleet.block_tokens, limit=limit)
        ]


def _config(trace: Path, fleet: Path, described: Fleet, seed: int, requests: int) -> dict[str, Any]:
    """Everything that the figures follow from; nothing of the machine or of the time."""
    return {
        "trace": {"name": trace.name, "sha256": _digest(trace), "requests": requests},
        "fleet": {"name": fleet.name, "sha256": _digest(fleet), "engines": described.engines},
        "seed": seed,
        "profile": described.profile.version,
        "evidence": "simulated",
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
