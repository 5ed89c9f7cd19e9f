"""The evaluation: `make evaluate` -> `.bench/evaluate.json`, and `.bench/evaluate/`.

All of `nexuskv evaluate` on one trace: strategies, wrong profiles, ablations and the matrix. The
folder is the same bytes for the same arguments; what CPU it took is in the JSON file alone.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.cli.evaluate import read_lines, run_evaluation
from app.cli.trace_generate import generate
from app.clock import seeded_random
from app.evaluate.artefacts import write
from app.evaluate.fleet import load_fleet
from app.evaluate.matrix import REQUESTS, Found, names
from app.evaluate.measures import Measures, row
from app.evaluate.page import Evaluation
from app.evaluate.requests import draw
from app.evaluate.run import strategies
from app.evaluate.simulator import Simulator
from app.evaluate.tables import winners
from app.evaluate.variants import variants
from app.evaluate.workloads import Kind
from app.policy.text import parse_document
from benchmarks.report import OUT, ROOT, Bar, Report

# Where traces lie that are not part of the project; without one it makes its own.
TRACE = ROOT.parent / "shared" / "traces" / "mooncake_conversation_first6000.jsonl"
GENERATED = OUT / "evaluate-trace.jsonl"
FLEET = ROOT / "fleets" / "default.yaml"
LIMIT = 6_000
CPU_S_PER_SIMULATED_HOUR = 60.0
REGRET, REGRET_CALIBRATED, NO_HIT_SLOWDOWN = 0.10, 0.15, 0.01


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path, default=TRACE if TRACE.exists() else None)
    parser.add_argument("--fleet", type=Path, default=FLEET)
    parser.add_argument("--limit", type=int, default=LIMIT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--matrix-requests", type=int, default=REQUESTS)
    asked = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    trace = asked.trace or _generated(asked.seed)
    report = Report("evaluate", ["make evaluate"])
    began = time.process_time()
    found = run_evaluation(
        trace,
        asked.fleet,
        lambda message: print(message, file=sys.stderr),
        seed=asked.seed,
        limit=asked.limit,
        ablation=True,
        matrix_requests=asked.matrix_requests,
    )
    write(OUT / "evaluate", found)
    all_cpu_s = time.process_time() - began
    cpu = _cpu_s_per_hour(trace, asked.fleet, asked.limit, asked.seed)
    report.rows.append(found.config | {"cpu_s": all_cpu_s})
    report.rows += [row(one) | {"cpu_s_per_hour": cpu[one.strategy]} for one in found.measures]
    report.rows += [one._asdict() for one in found.recovered]
    report.rows += [
        row(one) | {"ablation": True, "cpu_s_per_hour": cpu.get(one.strategy)}
        for one in found.ablated
    ]
    report.rows += [_cell(one) for one in found.matrix]
    report.rows.append({"others_win": winners(found.measures).split("\n")})
    report.bars = [*_bars(found), *_matrix_bars(found.matrix), _slowest(cpu)]
    report.write()
    report.show()
    return 0 if all(bar.holds for bar in report.bars) else 1


def _generated(seed: int) -> Path:
    lines = (
        f'{{"timestamp": {one.timestamp}, "input_length": {one.input_length},'
        f' "output_length": {one.output_length}, "hash_ids": {list(one.hash_ids)}}}\n'
        for one in generate(requests=LIMIT, seed=seed, block_tokens=512)
    )
    GENERATED.write_text("".join(lines), encoding="utf-8")
    return GENERATED


def _cpu_s_per_hour(trace: Path, fleet: Path, limit: int, seed: int) -> dict[str, float]:
    """Of every strategy and variant of ours, once more: seconds of CPU for a simulated hour."""
    described = load_fleet(parse_document(fleet.read_bytes()))
    requests = draw(described, read_lines(trace, described, limit), seeded_random(seed))
    hours = (requests[-1].arrival_us - requests[0].arrival_us) / 3.6e9
    found = {}
    listed = strategies(described, requests, lambda _message: None)
    listed += variants(described.profile, described.slo_ttft_us, "")
    for strategy in listed:
        began = time.process_time()
        Simulator(described, strategy).run(requests)
        found[strategy.name] = (time.process_time() - began) / hours
    return found


def _slowest(cpu: dict[str, float]) -> Bar:
    name = max(cpu, key=lambda one: cpu[one])
    return _most(f"CPU a simulated hour, {name}", cpu[name], "s", CPU_S_PER_SIMULATED_HOUR)


def _bars(found: Evaluation) -> list[Bar]:
    """On the trace. Others are all but the oracle and our own variants; ties within 1 % are equal,
    as in the report."""
    ours = next(one for one in found.measures if one.strategy == "NexusKV")
    others = [one for one in found.measures if not one.strategy.startswith(("NexusKV", "oracle"))]
    best_p95 = min(one.ttft_p95_ms for one in others)
    best_gain = max(one.gain_s or 0.0 for one in others)
    bars = [
        _most("TTFT p95 over the best other", ours.ttft_p95_ms / best_p95, "", 1.0),
        Bar("gain over the best other", _of(ours.gain_s) / best_gain, "", 1.0, at_least=True),
        _most("regret, part of the oracle's gain", _of(ours.regret), "", REGRET),
        _most("slowdown without a hit, trace", _of(ours.no_hit_slowdown), "", NO_HIT_SLOWDOWN),
    ]
    learnt = [one for one in found.recovered if one.calibrated]
    if learnt:
        worst = max(learnt, key=lambda one: one.regret)
        bars.append(_most(f"calibrated regret, {worst.wrong}", worst.regret, "", REGRET_CALIBRATED))
    return bars


def _matrix_bars(matrix: Sequence[Found]) -> list[Bar]:
    """Of what has nothing to reuse: every arrival, link and profile."""
    control = [one for one in matrix if one.cell.workload.kind is Kind.CONTROL]
    if not control:
        return []
    slowest = max(one.ours.ttft_mean_ms / one.measures[0].ttft_mean_ms - 1 for one in control)
    return [_most("slowdown without reuse, matrix, worst cell", slowest, "", NO_HIT_SLOWDOWN)]


def _cell(found: Found) -> dict[str, Any]:
    def told(best: Measures | None, name: str) -> str | None:
        return None if best is None else f"{best.strategy}: {_over(best, found.ours, name):.3f}"

    return names(found.cell) | {
        "regret": found.ours.regret,
        "better_mean": told(found.ahead("ttft_mean_ms"), "ttft_mean_ms"),
        "better_p95": told(found.ahead("ttft_p95_ms"), "ttft_p95_ms"),
    }


def _over(one: Measures, other: Measures, name: str) -> float:
    return float(getattr(one, name)) / float(getattr(other, name))


def _most(name: str, value: float, unit: str, bar: float) -> Bar:
    return Bar(name, value, unit, bar, at_least=False)


def _of(value: float | None) -> float:
    return 0.0 if value is None else value


if __name__ == "__main__":
    raise SystemExit(main())
