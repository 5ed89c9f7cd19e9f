"""What an evaluation leaves: a folder from which anyone runs it again, byte for byte."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from app.evaluate.matrix import rows
from app.evaluate.measures import row, ttft_us
from app.evaluate.page import Evaluation, page
from app.evaluate.simulator import Job
from app.evaluate.tables import NOTE, ablations, matrix_table, recoveries, table, winners

# Of each strategy so many requests are written, the first ones.
MAX_REQUEST_ROWS: Final = 10_000
_NO_LETTERS: Final = re.compile(r"[^A-Za-z0-9]+")


def write(directory: Path, found: Evaluation) -> list[Path]:
    """`config.json`, a `.jsonl` of each part, `requests/` with one of each strategy, `table.md` and
    `report.html`, which comes last; always the same files, empty ones of what was not asked for.
    Raises OSError.
    """
    contents = {"config.json": json.dumps(found.config, indent=2, sort_keys=True) + "\n"}
    contents["strategies.jsonl"] = _lines(row(one) for one in found.measures)
    contents["calibration.jsonl"] = _lines(
        one._asdict() | {"evidence": "simulated"} for one in found.recovered
    )
    contents["ablations.jsonl"] = _lines(row(one) for one in found.ablated)
    contents["matrix.jsonl"] = _lines(line for one in found.matrix for line in rows(one))
    for measures, jobs in found.results:
        # Without its knobs: in a folder that is written to again no file is left of the last time.
        name = _NO_LETTERS.sub("-", measures.strategy.partition(" (")[0])
        contents[f"requests/{name}.jsonl"] = _lines(_requests(jobs))
    contents["table.md"] = "\n\n".join(_told(found)) + "\n"
    contents["report.html"] = page(found)
    (directory / "requests").mkdir(parents=True, exist_ok=True)
    written = []
    for name, content in contents.items():
        path = directory / name
        path.write_text(content, encoding="utf-8")
        written.append(path)
    return written


def _told(found: Evaluation) -> list[str]:
    told = [table(found.measures), NOTE, winners(found.measures)]
    if found.recovered:
        told.append(recoveries(found.recovered))
    if found.ablated:
        told.append(ablations(found.ablated))
    if found.matrix:
        told.append(matrix_table(found.matrix))
    return told


def _requests(jobs: Sequence[Job]) -> Iterable[dict[str, Any]]:
    """In the order of their arrival; times in milliseconds, to the microsecond."""
    first = sorted(jobs, key=lambda job: job.request.number)[:MAX_REQUEST_ROWS]
    for job in first:
        predicted = job.choice.predicted_us
        yield {
            "number": job.request.number,
            "tenant": job.request.tenant,
            "conversation": job.request.conversation,
            "arrival_ms": round(job.request.arrival_us / 1e3, 3),
            "tokens": job.request.tokens,
            "engine": job.choice.engine,
            "reused_tokens": job.reused_tokens,
            "moved_bytes": round(job.moved_bytes),
            "transfer_ms": round(job.transfer_us / 1e3, 3),
            "prefill_ms": round(job.prefill_us / 1e3, 3),
            "ttft_ms": round(ttft_us(job) / 1e3, 3),
            "predicted_ms": None if predicted is None else round(predicted / 1e3, 3),
            "evidence": "simulated",
        }


def _lines(found: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in found)
