"""What an evaluation leaves: a folder from which anyone runs it again, byte for byte."""

import gzip
import io
import json
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from app.evaluate.matrix import ORACLE, OURS, Cell
from app.evaluate.measures import Measures, row, ttft_us
from app.evaluate.report import page
from app.evaluate.run import SETTLED, WRONG, Recovery, Run
from app.evaluate.told import NOTE, table, winners


class Found(Struct, frozen=True):
    """All that an evaluation found. `runs` and `rows` are of the strategies, in their order."""

    config: dict[str, Any]
    rows: Sequence[Measures]
    runs: Sequence[Run]
    ablations: Sequence[Measures] = ()
    recovered: Sequence[Recovery] = ()
    cells: Sequence[Cell] = ()


MAX_RAW_REQUESTS: Final = 20_000


def write(directory: Path, found: Found) -> list[Path]:
    """The config, a line for each strategy, ablation, calibration and cell, what became of every
    request (gzip; of at most MAX_RAW_REQUESTS a strategy), tables, and a page. Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lines = {
        "strategies.jsonl": [row(one) for one in found.rows],
        "ablations.jsonl": [row(one) for one in found.ablations],
        "calibration.jsonl": [one._asdict() | _EVIDENCE for one in found.recovered],
        "matrix.jsonl": [_cell(one) for one in found.cells],
    }
    contents: dict[str, bytes] = {
        "config.json": (json.dumps(found.config, indent=2, sort_keys=True) + "\n").encode(),
        **{name: _lines(rows) for name, rows in lines.items()},
        "requests.jsonl.gz": _raw(found.runs),
        "table.md": told(found).encode(),
        "report.html": page(found.config, found.rows, _times(found.runs), found.ablations,
                            recoveries(found.recovered), found.cells).encode(),
    }  # fmt: skip
    written = []
    for name, content in contents.items():
        path = directory / name
        path.write_bytes(content)
        written.append(path)
    return written


def told(found: Found) -> str:
    """Every table in Markdown."""
    parts = [table(found.rows), NOTE, winners(found.rows)]
    if found.ablations:
        parts += ["Ablations, and prefetch:", table(found.ablations)]
    if found.recovered:
        parts.append(recoveries(found.recovered))
    if found.cells:
        parts += [matrix(found.cells), others_win(found.cells)]
    return "\n\n".join(parts) + "\n"


def matrix(cells: Sequence[Cell]) -> str:
    """Who is best by the mean time to the first token, a cell a line."""
    lines = [
        "| workload | NexusKV mean, ms | p95, ms | best mean | best p95 | reused | regret |",
        "|---" * 7 + "|",
    ]
    for cell in cells:
        ours = cell.of(OURS)
        regret = "–" if ours.regret is None else f"{ours.regret:.3f}"
        lines.append(
            f"| {cell.name} | {ours.ttft_mean_ms:,.0f} | {ours.ttft_p95_ms:,.0f} |"
            f" {_shown(cell.best('ttft_mean_ms'))} | {_shown(cell.best('ttft_p95_ms'))} |"
            f" {ours.reused_tokens:.2f} | {regret} |"
        )
    return "\n".join(lines)


def others_win(cells: Sequence[Cell]) -> str:
    """Where another strategy is better by more than one per cent, plainly."""
    lines = []
    for cell in cells:
        ours = cell.of(OURS)
        for measure, title in (("ttft_mean_ms", "mean"), ("ttft_p95_ms", "p95")):
            if OURS not in cell.best(measure):
                others = [one for one in cell.rows if one.strategy != ORACLE]
                first = min(others, key=attrgetter(measure))
                theirs, mine = getattr(first, measure), getattr(ours, measure)
                lines.append(
                    f"- {cell.name}: {first.strategy} is better at {title},"
                    f" {theirs:,.0f} to {mine:,.0f} ms ({mine / theirs - 1:.1%})"
                )
    if not lines:
        return "In no cell is another strategy better by more than 1 %."
    return (
        f"Another strategy is better in {len(lines)} of {2 * len(cells)} places:\n\n"
        + "\n".join(lines)
    )


def recoveries(recovered: Sequence[Recovery]) -> str:
    """What calibration makes of profiles that are wrong, in Markdown; "" without any."""
    if not recovered:
        return ""
    lines = [
        f"| profile, {WRONG:g} times wrong | regret as it is | calibrated |",
        "|---|---|---|",
    ]
    for one, other in pairwise(recovered):
        if not one.calibrated:
            lines.append(f"| {one.wrong} | {one.regret:.4f} | {other.regret:.4f} |")
    lines.append(f"\nRegret of all but the first {SETTLED} requests.")
    return "\n".join(lines)


def _shown(best: Sequence[str]) -> str:
    return f"{best[0]} and {len(best) - 1} more" if len(best) > 3 else ", ".join(best)


def _cell(cell: Cell) -> dict[str, Any]:
    fields = {name: getattr(cell, name) for name in cell.__struct_fields__ if name != "rows"}
    return fields | {"rows": [row(one) for one in cell.rows]} | _EVIDENCE


_EVIDENCE: Final = {"evidence": "simulated"}


def _lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in rows).encode()


def _raw(runs: Sequence[Run]) -> bytes:
    """What became of every request, by strategy; without a time or a name in the container."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        for run in runs:
            for job in sorted(run.jobs, key=lambda one: one.request.number)[:MAX_RAW_REQUESTS]:
                told_of = {
                    "strategy": run.strategy.name,
                    "request": job.request.number,
                    "arrival_us": round(job.request.arrival_us),
                    "ttft_us": round(ttft_us(job)),
                    "engine": job.choice.engine,
                    "tokens": job.request.tokens,
                    "reused_tokens": job.reused_tokens,
                    "moved_bytes": round(job.moved_bytes),
                    "transfer_us": round(job.transfer_us),
                    "predicted_us": None
                    if job.choice.predicted_us is None
                    else round(job.choice.predicted_us),
                    **_EVIDENCE,
                }
                file.write((json.dumps(told_of) + "\n").encode())
    return buffer.getvalue()


def _times(runs: Sequence[Run]) -> list[tuple[str, list[float]]]:
    return [(run.strategy.name, sorted(ttft_us(job) / 1e3 for job in run.jobs)) for run in runs]
