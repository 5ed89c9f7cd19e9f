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
    asked = ["evaluate", "--trace", str(trace), "--fleet", str(FLEET), "--limit", "60"]
    asked += ["--ablations", "--matrix", "--matrix-requests", "10"]
    for name in ("one", "two"):
        found = invoke(*asked, "--out", str(tmp_path / name))
        assert found.exit_code == 0, found.stderr
    files = [
        path.relative_to(tmp_path / "one").as_posix()
        for path in sorted((tmp_path / "one").rglob("*"))
        if path.is_file()
    ]
    assert [one for one in files if not one.startswith("requests/")] == [
        "ablations.jsonl", "calibration.jsonl", "config.json", "matrix.jsonl", "report.html",
        "strategies.jsonl", "table.md",
    ]  # fmt: skip
    assert {"requests/NexusKV.jsonl", "requests/block-weights.jsonl"} <= set(files)
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
        if file.endswith(".jsonl"):
            lines = (tmp_path / "one" / file).read_text(encoding="utf-8").splitlines()
            assert all(json.loads(line)["evidence"] == "simulated" for line in lines)
    page = (tmp_path / "one" / "report.html").read_text(encoding="utf-8")
    assert "http" not in page
    assert "Simulated" in page
    assert "<polyline" in page
    told = (tmp_path / "one" / "table.md").read_text(encoding="utf-8")
    assert "within 1 % is equal" in told
    assert "without overlap, wrong profile" in told


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


def at(timestamp: float, block: int) -> str:
    line = {"timestamp": timestamp, "input_length": 9, "output_length": 1, "hash_ids": [block]}
    return json.dumps(line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1"),
        ('{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": []}', "line 1"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [0]}', "line 1"),
        ("", "has no request"),
        (at(5, 0) + "\n" + at(4, 1), "request 2 has the timestamp 4, before 5"),
        (at(0, 0) + "\n" + at(1e300, 1), "spans more than"),
    ],
)
def test_a_trace_that_is_none_is_told(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    asked = ["evaluate", "--trace", str(path), "--fleet", str(FLEET), "--out", str(tmp_path / "o")]
    found = invoke(*asked)
    assert found.exit_code == 1
    assert said in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("bandwidth", ["-1", "0", ".nan", ".inf"])
def test_a_fleet_that_is_none_is_told(trace: Path, tmp_path: Path, bandwidth: str) -> None:
    path = tmp_path / "fleet.yaml"
    text = FLEET.read_text(encoding="utf-8").replace("18127", bandwidth, 1)
    path.write_text(text, encoding="utf-8")
    asked = ["evaluate", "--trace", str(trace), "--fleet", str(path), "--out", str(tmp_path / "o")]
    found = invoke(*asked)
    assert found.exit_code == 1
    assert "/profile/paths/0/bytes_per_us" in found.stderr
    assert not (tmp_path / "o").exists()
