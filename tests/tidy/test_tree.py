"""The rules on the whole tree."""

import subprocess
from pathlib import Path

import pytest

from tests.tidy import rules
from tests.tidy.rules import Source

ROOT = Path(__file__).resolve().parents[2]
BINARY = frozenset({".gif", ".ico", ".jpg", ".png", ".so", ".woff2"})

EVERYWHERE = [
    rules.long_file,
    rules.vague_module_name,
    rules.http_middleware_base,
    rules.function_level_imports,
]
IN_THE_SERVICE = [
    rules.long_functions,
    rules.sql_outside_repositories,
    rules.commits,
    rules.reads_clock_or_chance,
    rules.bare_names,
]


def committed() -> list[Path]:
    """What is, or would be, in the repository; in a tree without git, every source folder."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        folders = ["app", "benchmarks", "docs", "migrations", "nexuskv_core", "policies", "tests"]
        found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
        paths = [path for path in found if path.parent.name != "__pycache__"]
    return [path for path in paths if path.is_file() and path.suffix not in BINARY]


FILES = committed()
SOURCES = [
    Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    for path in FILES
    if path.suffix == ".py"
]
SERVICE = [source for source in SOURCES if source.path.startswith("app/")]


def violations(rule, sources):
    return [f"{source.path}:{found}" for source in sources for found in rule(source)]


def test_there_is_a_tree_to_look_at():
    assert {"app/clock.py", "tests/tidy/test_tree.py"} <= {source.path for source in SOURCES}


@pytest.mark.parametrize("rule", EVERYWHERE, ids=lambda rule: rule.__name__)
def test_everywhere(rule):
    assert violations(rule, SOURCES) == []


@pytest.mark.parametrize("rule", IN_THE_SERVICE, ids=lambda rule: rule.__name__)
def test_in_the_service(rule):
    assert violations(rule, SERVICE) == []


def test_every_exception_is_still_needed(monkeypatch):
    exceptions = dict(rules.READS_CLOCK_OR_CHANCE)
    monkeypatch.setattr(rules, "READS_CLOCK_OR_CHANCE", {})
    found = {source.path for source in SERVICE if list(rules.reads_clock_or_chance(source))}
    assert found == set(exceptions)


def test_no_file_names_a_machine_or_the_tools_that_wrote_it():
    named = [
        f"{path.relative_to(ROOT)}:{found}"
        for path in FILES
        for found in rules.forbidden_words(path.read_text(encoding="utf-8"))
    ]
    assert named == []
