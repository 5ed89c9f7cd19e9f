"""`nexuskv evaluate`: the planner against other strategies, on a simulated fleet and a trace."""

import hashlib
from importlib.metadata import version
from itertools import pairwise
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
from app.evaluate.ablations import ablations
from app.evaluate.artefacts import Found, told, write
from app.evaluate.fleet import Fleet, load_fleet
from app.evaluate.matrix import run_matrix
from app.evaluate.measures import row
from app.evaluate.run import (
    SETTLED,
    compare,
    measures,
    recover,
    simulate,
    strategies,
    wrong_profiles,
)
from app.evaluate.simulator import Request, draw
from app.evaluate.strategies import Oracle, RecomputeAlways
from app.policy.text import parse_document

MAX_REQUESTS: Final = 1_000_000
_MAX_GAPS: Final = 10_000
Listed = list[tuple[float, int, int, tuple[int, ...]]]


def evaluate_command(
    trace: Annotated[Path, typer.Option(help="Requests, one JSON object a line.")],
    fleet: Annotated[Path, typer.Option(help="The fleet, YAML or JSON: nexuskv.fleet.v1.")],
    out: Annotated[Path, typer.Option(help="A directory for what comes of it.")],
    *,
    seed: Annotated[int, typer.Option(help="What chance begins with.", min=0)] = 1,
    limit: Annotated[
        int, typer.Option(help="Requests at most.", min=1, max=MAX_REQUESTS)
    ] = MAX_REQUESTS,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Also made-up workloads: contexts, reuse, arrivals.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Replay a trace against a simulated fleet, once for each strategy.

    Everything is seeded: the same arguments give the same files.
    """
    console = Console(stderr=True, highlight=False)
    try:
        described = load_fleet(parse_document(fleet.read_bytes()))
        listed = _requests(trace, described, limit)
        requests = draw(described, listed, seeded_random(seed)) if listed else []
        if not requests:
            raise failure(f"{trace} has no request")
        config = _config(trace, fleet, described, seed, len(requests))
        found = _found(described, requests, config, console)
        if matrix:
            found = _with_matrix(found, described, listed, seed, console)
        written = write(out, found)
    except OSError as error:
        raise failure(f"{error.filename or out}: {error.strerror}") from None
    except (TraceError, NexusError) as error:
        raise failure(str(error)) from None
    if as_json:
        typer.echo(orjson.dumps([row(one) for one in found.rows]).decode())
        return
    Console().print(Markdown(told(found)))
    typer.echo(f"written to {written[-1]}")


def _found(
    fleet: Fleet, requests: list[Request], config: dict[str, Any], console: Console
) -> Found:
    runs = simulate(fleet, requests, strategies(fleet, requests, console.print), console.print)
    rows = measures(fleet, requests, runs)
    if len(requests) <= SETTLED:
        return Found(config, rows, runs)
    wrong = dict(wrong_profiles(fleet.profile))
    variants = ablations(fleet.profile, wrong["prefill too slow"])
    among = [RecomputeAlways(), *variants, Oracle()]
    return Found(
        config,
        rows,
        runs,
        compare(fleet, requests, among, console.print)[1:-1],
        recover(fleet, requests, console.print),
    )


def _with_matrix(found: Found, fleet: Fleet, listed: Listed, seed: int, console: Console) -> Found:
    gaps_ms = [max(0.0, later[0] - one[0]) for one, later in pairwise(listed[:_MAX_GAPS])]
    cells = list(run_matrix(fleet, lambda: seeded_random(seed), gaps_ms, console.print))
    return Found(
        found.config, found.rows, found.runs, found.ablations, found.recovered, tuple(cells)
    )


def _requests(trace: Path, fleet: Fleet, limit: int) -> Listed:
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
        "versions": {"nexuskv": version("nexuskv"), "fleet": described.schema_version},
        "evidence": "simulated",
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
