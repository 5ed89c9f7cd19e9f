"""`nexuskv profile`, as a person types it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from app.cli.profile import profile_app
from app.profiles.document import read_profile
from app.settings import STARTING_PROFILES
from tests.fixtures.service import ServiceProcess
from tests.profiles.documents import document, text

Run = Callable[..., Result]
WIDE = {"COLUMNS": "200"}


def invoke(*arguments: str, stdin: str | None = None, **env: str) -> Result:
    return CliRunner().invoke(profile_app, list(arguments), input=stdin, env=WIDE | env)


@pytest.fixture
def profile(module_service: ServiceProcess) -> Run:
    def run(*arguments: str, **options) -> Result:
        env = {"NEXUSKV_URL": module_service.url, "NEXUSKV_KEY": module_service.admin_key}
        return invoke(*arguments, **env, **options)

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def make(content: str, name: str = "file.yaml") -> str:
        path = tmp_path / name
        path.write_text(content)
        return str(path)

    return make


def test_the_starting_set_is_imported_once_and_listed(profile: Run) -> None:
    files = sorted(STARTING_PROFILES.glob("*.yaml"))
    first = profile("import", "--starting-set", "--json", "-m", "to begin with")
    assert first.exit_code == 0, first.output
    imported = json.loads(first.stdout)["imported"]
    assert [one["created"] for one in imported] == [True] * len(files)
    names = {read_profile(file.read_bytes()).name for file in files}
    assert {one["profile"]["name"] for one in imported} == names
    again = profile("import", "--starting-set")
    assert again.stdout.count("was stored already") == len(files)
    listed = profile("list")
    assert all(name in listed.stdout for name in names)
    assert "to begin with" in listed.stdout
    items = json.loads(profile("list", "--json").stdout)["items"]
    assert {item["name"] for item in items} == names


def test_what_is_shown_is_a_profile_again(profile: Run, write) -> None:
    stored = profile("import", write(text(71, name="shown", model="m")), "--json")
    number = json.loads(stored.stdout)["imported"][0]["profile"]["number"]
    newer = profile("import", "-", stdin="# newer\n" + yaml.safe_dump(document(72, name="shown")))
    assert f"Profile {number + 1} (shown) stored; for any model on any hardware" in newer.stdout
    by_number, by_name = profile("show", str(number)), profile("show", "shown")
    assert read_profile(by_number.stdout).prefill.per_token_us == 71
    assert read_profile(by_name.stdout).prefill.per_token_us == 72
    in_force = profile("show", "--model", "m", "--hardware", "h")
    assert in_force.stdout.startswith(f"# in force: profile {number}, sha256:")
    assert "of this model on any hardware" in in_force.stdout
    assert read_profile(in_force.stdout).model == "m"
    shown = json.loads(profile("show", "--model", "m", "--json").stdout)
    assert (shown["number"], shown["fit"]) == (number, "model")
    missing = profile("show", "nobody")
    assert missing.exit_code == 1
    assert "nexuskv profile list" in missing.stderr
    assert profile("show", "999999").exit_code == 1
    assert profile("show", "1", "--model", "m").exit_code == 2


def test_nothing_is_imported_when_one_is_wrong(profile: Run, write) -> None:
    good, bad = write(text(81, name="good")), write(text(restore_us=-1), "bad.yaml")
    result = profile("import", good, bad)
    assert result.exit_code == 1
    assert "/restore_us" in result.stderr
    assert "not a valid cost profile" in " ".join(result.stderr.split())
    assert json.loads(profile("list", "--name", "good", "--json").stdout)["items"] == []
    dry = invoke("import", "--dry-run", good)
    assert f"is a valid cost profile: {read_profile(text(81, name='good')).version}" in dry.stdout
    assert invoke("import", "--dry-run", bad).exit_code == 1
    assert invoke("import").exit_code == 2
    assert invoke("import", "/nowhere.yaml").exit_code == 2


PREFILL = "tokens,prefill_us\n1000,1150\n2000,2300\n4000,4900\n8000,11300\n"
PATHS = "\n".join(
    json.dumps(
        {"tier": "local_ssd", "remote": remote, "bytes": size, "transfer_us": 40 + size / rate}
    )
    for remote, rate in ((False, 7000), (True, 3000))
    for size in (1_000_000, 10_000_000, 50_000_000)
)


def test_a_fit_says_how_far_it_is_off_and_is_a_profile(profile: Run, write, tmp_path) -> None:
    files = [write(PREFILL, "prefill.csv"), write(PATHS, "paths.jsonl")]
    out = tmp_path / "fitted.yaml"
    options = ["--name", "fitted", "--model", "fm", "--hardware", "fh", "--out", str(out)]
    done = profile("fit", *files, *options, "--import", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    fitted = read_profile(out.read_bytes())
    assert told["profile"] == json.loads(json.dumps(told["imported"]["profile"]["document"]))
    assert (fitted.name, fitted.model, fitted.hardware) == ("fitted", "fm", "fh")
    assert fitted.prefill.per_token_us == pytest.approx(1, rel=0.01)
    assert fitted.prefill.schedule_us == pytest.approx(100, rel=0.1)
    rates = {path.remote: path.bytes_per_us for path in fitted.paths if path.latency_us > 1}
    assert rates == {False: pytest.approx(7000), True: pytest.approx(3000)}
    # What no point tells of is the base's.
    assert fitted.restore_us == 50
    assert "prefill.csv, paths.jsonl" in fitted.source
    assert [part["part"] for part in told["parts"]] == [
        "prefill", "local_ssd local", "local_ssd remote",
    ]  # fmt: skip
    assert len(told["points"]) == 10
    assert all(abs(point["relative_error"]) < 0.01 for point in told["points"])
    text_form = invoke("fit", *files, "--base", str(out), "--keep-schedule")
    assert "local_ssd remote" in text_form.stdout
    assert "+0.0%" in text_form.stdout
    assert "schedule_us 100" in text_form.stdout


def test_points_that_only_suffice_say_nothing_of_the_uncertainty(write) -> None:
    three = "\n".join(PREFILL.splitlines()[:4])
    two = "\n".join(PATHS.splitlines()[:2])
    done = invoke("fit", write(three, "a.csv"), write(two, "b.jsonl"), "--json")
    told = json.loads(done.stdout)
    assert [part["error"] for part in told["parts"]] == [pytest.approx(0)] * 2
    assert told["profile"]["prefill"]["uncertainty"] == 0.5
    assert told["profile"]["paths"][0]["uncertainty"] == 0.5
    enough = invoke("fit", write(PREFILL, "c.csv"), "--json")
    assert json.loads(enough.stdout)["profile"]["prefill"]["uncertainty"] < 1e-6


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("tokens,prefill_us\n1000,1150\n", "prefill: at least 2 points of different sizes"),
        ("tokens,prefill_us\n1000,1150\n1000,1160\n", "prefill: at least 2 points"),
        ("tokens,prefill_us\n1000,nan\n", "points.csv:2: prefill_us must be finite and above 0"),
        ("tokens,prefill_us\n1000,inf\n", "points.csv:2: prefill_us must be finite and above 0"),
        ("tokens,prefill_us\n1000,5\n0,5\n", "points.csv:3: tokens must be finite and above 0"),
        ("tokens,prefill_us\n-5,5\n", "points.csv:2: tokens must be finite and above 0"),
        ("tokens,prefill_us\n5,soon\n", "points.csv:2: prefill_us must be a number, and is 'soon'"),
        ("tokens,prefill_us\n5,\n", "points.csv:2: prefill_us is missing"),
        ("tokens,prefill_us\n5\n", "points.csv:2: has another number of columns"),
        ("tokens,took\n5,1\n", "points.csv:1: unknown column 'took'"),
        ("tokens,prefill_us\n", "no points in"),
        ("", "no points in"),
        ("tier,bytes,transfer_us\ntape,1,1\n", "points.csv:2: tier must be one of device"),
        ("tier,remote,bytes,transfer_us\ndevice,x,1,1\n", "remote must be true, false or empty"),
        ("tier,bytes,transfer_us\ndevice,1,5\ndevice,9,5\n", "device: longer transfers take no"),
        ("tokens,prefill_us,bytes\n1,2,3\n", "points.csv:2: give either tokens and prefill_us"),
        ('{"tokens": 1, "prefill_us": 2}\n{"tok', "points.csv:2: is not a JSON object"),
        ('{"tokens": true, "prefill_us": 2}', "tokens must be a number, and is True"),
        ('{"tokens": NaN, "prefill_us": 2}', "tokens must be finite and above 0"),
        (f'{{"tokens": 1{"0" * 400}, "prefill_us": 2}}', "tokens must be a number"),
    ],
)
def test_bad_points_are_named(write, content: str, hint: str) -> None:
    result = invoke("fit", write(content, "points.csv"))
    assert result.exit_code == 1
    assert hint in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output


def test_files_that_cannot_be_read(write) -> None:
    assert "cannot read /nowhere.csv" in invoke("fit", "/nowhere.csv").stderr
    points = write(PREFILL, "points.csv")
    assert invoke("fit", points, "--base", "/nowhere.yaml").exit_code == 2
    assert invoke("fit", points, "--out", "/nowhere/x.yaml").exit_code == 2
