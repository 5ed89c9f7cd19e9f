"""`nexuskv evaluate`: the planner against other strategies, on a simulated fleet and a trace."""

import hashlib
from collections.abc import Sequence
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
from app.errors import ErrorCode, NexusError
from app.evaluate.artefacts import MAX_REQUEST_ROWS, write
from app.evaluate.fleet import Fleet, load_fleet
from app.evaluate.matrix import REQUESTS, cells, run_matrix
from app.evaluate.measures import row
from app.evaluate.page import Evaluation
from app.evaluate.requests import TraceLine, draw
from app.evaluate.run import SETTLED, Progress, ablate, evaluate, recover
from app.evaluate.tables import ablations, matrix_table, recoveries, table, winners
from app.policy.text import parse_document

MAX_REQUESTS: Final = 1_000_000
# Cells of the matrix have chance of their own, far from the trace's and from each other's.
_SEEDS_EACH: Final = 1_000_003


def evaluate_command(
    trace: Annotated[Path, typer.Option(help="Requests, one JSON object a line.")],
    fleet: Annotated[Path, typer.Option(help="The fleet, YAML or JSON: nexuskv.fleet.v1.")],
    out: Annotated[Path, typer.Option(help="A directory for what comes of it.")],
    *,
    seed: Annotated[int, typer.Option(help="What chance begins with.", min=0)] = 1,
    limit: Annotated[
        int, typer.Option(help="Requests at most.", min=1, max=MAX_REQUESTS)
    ] = MAX_REQUESTS,
    ablation: Annotated[
        bool, typer.Option("--ablations", help="NexusKV without each of its parts, too.")
    ] = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="The matrix of synthetic requests, too.")
    ] = False,
    matrix_requests: Annotated[
        int, typer.Option(help="Requests of each of its cells.", min=10, max=10_000)
    ] = REQUESTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Replay a trace against a simulated fleet, once for each strategy.

    Everything is seeded: the same arguments give the same files.
    """
    tell = Console(stderr=True, highlight=False).print
    try:
        found = run_evaluation(
            trace, fleet, tell, seed=seed, limit=limit, ablation=ablation,
            matrix_requests=matrix_requests if matrix else 0,
        )  # fmt: skip
        written = write(out, found)
    except OSError as error:
        raise failure(f"{error.filename or out}: {error.strerror}") from None
    except (TraceError, NexusError) as error:
        raise failure(str(error)) from None
    if as_json:
        typer.echo(orjson.dumps([row(one) for one in found.measures]).decode())
        return
    _show(found)
    typer.echo(f"written to {written[-1]}")


def run_evaluation(
    trace: Path,
    fleet: Path,
    tell: Progress,
    *,
    seed: int = 1,
    limit: int = MAX_REQUESTS,
    ablation: bool = False,
    matrix_requests: int = 0,
) -> Evaluation:
    """All of it; `matrix_requests` 0 is no matrix. Raises OSError, TraceError, and NexusError for a
    fleet that is none."""
    described = load_fleet(parse_document(fleet.read_bytes()))
    listed = read_lines(trace, described, limit)
    requests = draw(described, listed, seeded_random(seed))
    if not requests:
        raise NexusError(ErrorCode.INVALID_FIELD, f"{trace} has no request")
    results = evaluate(described, requests, tell)
    recovered = recover(described, requests, tell) if len(requests) > SETTLED else []
    ablated = ablate(described, requests, tell) if ablation else []
    found = []
    if matrix_requests:
        found = run_matrix(
            described,
            cells(),
            lambda number: seeded_random(seed * _SEEDS_EACH + number),
            [0.0, *(after[0] - before[0] for before, after in pairwise(listed))],
            tell,
            requests=matrix_requests,
        )
    config = _config(trace, fleet, described) | {
        "seed": seed,
        "requests": len(requests),
        "matrix_requests": matrix_requests,
    }
    return Evaluation(config, results, recovered, ablated, found)


def read_lines(trace: Path, fleet: Fleet, limit: int) -> list[TraceLine]:
    """The requests of a trace file, so many at most. Raises OSError and TraceError."""
    with trace.open("rb") as lines:
        return [
            (one.timestamp, one.input_length, one.output_length, one.hash_ids)
            for _, one, _ in read_trace(lines, block_tokens=fleet.block_tokens, limit=limit)
        ]


def _show(found: Evaluation) -> None:
    parts: Sequence[str] = (
        table(found.measures),
        winners(found.measures).replace("\n", "\n\n"),
        recoveries(found.recovered) if found.recovered else "",
        ablations(found.ablated) if found.ablated else "",
        matrix_table(found.matrix) if found.matrix else "",
    )
    for part in parts:
        if part:
            Console().print(Markdown(part))


def _config(trace: Path, fleet: Path, described: Fleet) -> dict[str, Any]:
    """Everything that the figures follow from; nothing of the machine or of the time."""
    return {
        "trace": {"name": trace.name, "sha256": _digest(trace)},
        "fleet": {"name": fleet.name, "sha256": _digest(fleet), "engines": described.engines},
        "versions": {
            "nexuskv": version("nexuskv"),
            "fleet": described.schema_version,
            "cost_profile": described.profile.schema_version,
            "profile": described.profile.version,
        },
        "request_rows_at_most": MAX_REQUEST_ROWS,
        "evidence": "simulated",
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
