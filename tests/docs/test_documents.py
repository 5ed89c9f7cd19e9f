"""What the documents say is true: links, error codes, settings, and the tour as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from app.cli import cli
from app.errors import ERROR_RULES
from tests.fixtures.service import ServiceProcess
from tests.process.waiting import until
from tests.worker.rig import SECRET, Worker

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_every_error_code_is_documented_with_its_status():
    table = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \| [^|]* \| (yes|no) \| \S", table, re.MULTILINE)
    documented = {code: (int(status), retry == "yes") for status, code, retry in rows}
    assert documented == {
        code.value: (rule.status, rule.retryable) for code, rule in ERROR_RULES.items()
    }


def test_every_documented_variable_is_read():
    sources = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("app", "nexuskv_core", "tests/fixtures")
        for path in (ROOT / folder).rglob("*.py")
    )
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    variables = set(re.findall(r"`(NEXUSKV_\w+)`", text))
    assert variables
    assert {name for name in variables if name not in sources} == set()
    assert set(re.findall(r'"(NEXUSKV_\w+)"', sources)) - variables == set()


def test_every_variable_of_an_option_is_documented_with_its_commands():
    declared = {}
    for path, command in leaves(typer.main.get_command(cli)):
        for parameter in command.params:
            given = parameter.envvar or []
            for variable in [given] if isinstance(given, str) else given:
                declared.setdefault(variable, set()).add(path[0])
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(NEXUSKV_\w+)` \| ([^|]+) \|", text, re.MULTILINE)
    documented = {name: set(commands.strip().split(", ")) for name, commands in rows}
    assert {name: documented[name] for name in declared} == declared
    every = {path[0] for path, _ in leaves(typer.main.get_command(cli))}
    for name, commands in documented.items():
        assert commands <= every | {"all", "tests"}, name


def leaves(group, *path):
    for name, command in group.commands.items():
        # Not every version of typer makes its groups from click's own class.
        if hasattr(command, "commands"):
            yield from leaves(command, *path, name)
        else:
            yield (*path, name), command


@pytest.fixture
def up_with_worker(database_url, tmp_path):
    """What `make up` starts, as far as a client sees it: the API and a worker named `local`."""
    service = ServiceProcess(database_url, tmp_path, NEXUSKV_WORKER_SECRET=SECRET).start()
    worker = Worker(tmp_path / "local", "local", "--api-url", service.url)
    with service.client() as client:
        until(lambda: client.get("/v1/workers").json()["items"], "the worker is registered")
    yield service
    worker.close()
    assert service.stop() == 0, service.log()


def test_the_tour_tells_the_story_of_the_readme(up_with_worker):
    tour = ROOT / "docs" / "tour" / "tour.py"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    # Twice: a tour can be taken again.
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, tour, up_with_worker.url, up_with_worker.admin_key],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    told = re.sub(r"[0-9a-f]{8,}|[0-9a-f-]{36}", "#", done.stdout).splitlines()
    shown = re.sub(r"[0-9a-f]{8,}|[0-9a-f-]{36}", "#", readme)
    for line in told:
        name, _, value = line.strip().partition("  ")
        if name not in VARY and value:
            assert line in shown, line
    titles = [line for line in told if re.match(r"\d\. ", line)]
    assert len(titles) == 9
    assert all(title in readme for title in titles)


VARY = {
    "console",
    "transfer_us",
    "status",
    "result",
    "state_id",
    "decision",
    "option_id",
    "receipt",
}


def test_the_tour_says_what_it_needs(service):
    """Without a worker its first part is told all the same."""
    tour = ROOT / "docs" / "tour" / "tour.py"
    done = subprocess.run(
        [sys.executable, tour, service.url, service.admin_key],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "observed" in done.stdout
    assert "make up" in done.stderr
