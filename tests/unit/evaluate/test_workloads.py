"""Made-up workloads have what they say, and the matrix says who is best."""

from itertools import pairwise
from pathlib import Path

import pytest

from app.clock import seeded_random
from app.evaluate.ablations import WithoutAdmission, ablations
from app.evaluate.artefacts import matrix, others_win
from app.evaluate.fleet import Fleet, load_fleet
from app.evaluate.matrix import OURS, Asked, Cell, cells, run_matrix
from app.evaluate.plots import bars, curves
from app.evaluate.run import compare
from app.evaluate.simulator import draw
from app.evaluate.strategies import Oracle, RecomputeAlways
from app.evaluate.workloads import Arrivals, Kind, Workload, made
from app.policy.text import parse_document

FLEET_FILE = Path(__file__).resolve().parents[3] / "fleets" / "default.yaml"
FLEET = load_fleet(parse_document(FLEET_FILE.read_bytes()))
BLOCK = 512


def listed(workload: Workload, requests: int = 400, seed: int = 1):
    return made(
        workload, requests=requests, block_tokens=BLOCK, chance=seeded_random(seed),
        gaps_ms=[10.0, 30.0],
    )  # fmt: skip


def reused(workload: Workload) -> float:
    """Which part of all blocks were sent before, behind the same ones."""
    seen: set[int] = set()
    again = total = 0
    for _, _, _, ids in listed(workload):
        total += len(ids)
        again += next((n for n, block in enumerate(ids) if block not in seen), len(ids))
        seen.update(ids)
    return again / total


@pytest.mark.parametrize("kind", [Kind.SHARED_PROMPT, Kind.MULTI_TURN, Kind.BRANCHING])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_about_so_much_of_a_prompt_was_there_before(kind: Kind, share: float) -> None:
    assert reused(Workload(kind, 32_000, share, Arrivals.POISSON)) == pytest.approx(share, abs=0.15)


def test_without_reuse_nothing_was() -> None:
    assert reused(Workload(Kind.NO_REUSE, 32_000, 0.9, Arrivals.POISSON)) == 0
    assert 0 < reused(Workload(Kind.RAG, 32_000, 0.5, Arrivals.POISSON)) < 0.5


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("context_tokens", [8_000, 128_000])
def test_prompts_are_about_as_long_as_they_should_be(kind: Kind, context_tokens: int) -> None:
    found = listed(Workload(kind, context_tokens, 0.5, Arrivals.POISSON), 100)
    mean = sum(tokens for _, tokens, _, _ in found) / len(found)
    assert 0.5 * context_tokens < mean < 1.6 * context_tokens
    assert all(tokens // BLOCK == len(ids) for _, tokens, _, ids in found)


def test_arrivals() -> None:
    gaps = {
        arrivals: [
            later[0] - one[0]
            for one, later in pairwise(listed(Workload(Kind.NO_REUSE, 8_000, 0, arrivals), 64))
        ]
        for arrivals in Arrivals
    }
    assert gaps[Arrivals.TRACE][:3] == pytest.approx([10.0, 30.0, 10.0])
    assert sum(gap == 0 for gap in gaps[Arrivals.BURST]) == 60
    assert all(gap > 0 for gap in gaps[Arrivals.POISSON])


def test_the_same_seed_is_the_same_workload() -> None:
    workload = Workload(Kind.RAG, 8_000, 0.5, Arrivals.BURST)
    assert listed(workload) == listed(workload)
    assert listed(workload) != listed(workload, seed=2)


def test_a_cell_is_run_and_told() -> None:
    asked = [
        Asked(Workload(Kind.SHARED_PROMPT, 8_000, 0.9, Arrivals.POISSON)),
        Asked(Workload(Kind.NO_REUSE, 8_000, 0.0, Arrivals.POISSON), "slow links"),
    ]
    told: list[str] = []
    once = run(asked, told)
    assert [line[:11] for line in told] == ["cell 1 of 2", "cell 2 of 2"]
    assert once == run(asked, [])
    shared, control = once
    assert shared.of(OURS).ttft_mean_ms < shared.of("recompute always").ttft_mean_ms
    slower = control.of(OURS).ttft_mean_ms / control.of("recompute always").ttft_mean_ms - 1
    assert slower < 0.01
    assert "shared prompt, 8K, 90% reuse" in matrix(once)
    assert len(cells()) == len(set(cells()))


def run(asked: list[Asked], told: list[str]) -> list[Cell]:
    return list(run_matrix(FLEET, lambda: seeded_random(1), [5.0], told.append, asked, requests=60))


def test_where_another_one_wins_the_report_says_so() -> None:
    (cell,) = run([Asked(Workload(Kind.SHARED_PROMPT, 8_000, 0.9, Arrivals.POISSON))], [])
    worse = [
        row.__class__(**{name: getattr(row, name) for name in row.__struct_fields__}
                      | ({"ttft_mean_ms": 1e6} if row.strategy.startswith(OURS) else {}))
        for row in cell.rows
    ]  # fmt: skip
    lost = Cell(*(getattr(cell, name) for name in cell.__struct_fields__[:-1]), tuple(worse))
    assert "is better at mean" in others_win([lost])
    assert OURS not in lost.best("ttft_mean_ms")


def test_bringing_whatever_is_at_hand_is_worse_on_slow_links() -> None:
    slow = fleet_with_links(0.02)
    workload = Workload(Kind.SHARED_PROMPT, 8_000, 0.5, Arrivals.POISSON)
    requests = draw(slow, listed(workload, 200), seeded_random(1))
    variants = ablations(slow.profile, slow.profile)
    rows = compare(slow, requests, [RecomputeAlways(), *variants, Oracle()], lambda _: None)
    by_name = {row.strategy: row for row in rows}
    assert by_name["without admission"].ttft_mean_ms > by_name[OURS].ttft_mean_ms
    assert any(isinstance(one, WithoutAdmission) for one in variants)
    assert len(by_name) == len(rows)


def fleet_with_links(factor: float) -> Fleet:
    document = parse_document(FLEET_FILE.read_bytes())
    assert isinstance(document, dict)
    for path in document["profile"]["paths"]:
        path["bytes_per_us"] *= factor
    return load_fleet(document)


def test_plots_have_what_they_are_of_and_nothing_else() -> None:
    drawn = bars("Gain", "s", [("one", 2.0), ("two & three", -1.0), ("none", None)])
    assert drawn.count("<rect") == 2
    assert "two &amp; three" in drawn
    lines = curves("TTFT", "ms", [("a", [1.0, 10.0, 100.0]), ("b", [5.0])])
    assert lines.count("<polyline") == 2
    assert curves("TTFT", "ms", [("a", [])]) == ""
    assert "http" not in drawn + lines
