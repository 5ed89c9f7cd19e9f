"""`nexuskv evaluate`: the same arguments leave the same files, and what it says of the planner."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli import cli
from app.cli.trace_generate import generate

FLEET = Path(__file__).resolve().parents[2] / "fleets" / "default.yaml"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments])


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    lines = [
        json.dumps(
            {
                "timestamp": one.timestamp, "input_length": one.input_length,
                "output_length": one.output_length, "hash_ids": one.hash_ids,
            }
        )
        for one in generate(requests=400, seed=3, block_tokens=512)
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_same_arguments_leave_the_same_files(trace: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        asked = ["evaluate", "--trace", str(trace), "--fleet", str(FLEET)]
        assert invoke(*asked, "--out", str(tmp_path / name)).exit_code == 0
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == [
        "ablations.jsonl", "calibration.jsonl", "config.json", "matrix.jsonl", "report.html",
        "requests.jsonl.gz", "strategies.jsonl", "table.md",
    ]  # fmt: skip
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    page = (tmp_path / "one" / "report.html").read_text(encoding="utf-8")
    assert "http" not in page
    assert "Simulated" in page


def test_the_planner_beside_the_others(trace: Path, tmp_path: Path) -> None:
    asked = ["evaluate", "--trace", str(trace), "--fleet", str(FLEET), "--out", str(tmp_path)]
    rows = {row["strategy"]: row for row in json.loads(invoke(*asked, "--json").stdout)}
    ours, oracle = rows["NexusKV"], rows["oracle"]
    assert all(row["evidence"] == "simulated" for row in rows.values())
    assert rows["recompute always"]["gain_s"] == 0
    others = [row for name, row in rows.items() if not name.startswith(("NexusKV", "oracle"))]
    assert all(ours["gain_s"] >= row["gain_s"] for row in others)
    assert ours["regret"] <= 0.1
    assert oracle["regret"] == 0


@pytest.mark.parametrize("missing", ["--trace", "--fleet"])
def test_what_cannot_be_read_is_told(trace: Path, tmp_path: Path, missing: str) -> None:
    given = {"--trace": str(trace), "--fleet": str(FLEET), "--out": str(tmp_path)}
    given[missing] = str(tmp_path / "nowhere")
    found = invoke("evaluate", *(part for pair in given.items() for part in pair))
    assert found.exit_code == 1
    assert "nowhere" in found.stderr
    assert "Traceback" not in found.stderr
