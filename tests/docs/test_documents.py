"""What the documents say is true: links, error codes, settings, and the tour as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.errors import ERROR_RULES

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


def test_the_tour_tells_the_story_of_the_readme(service):
    tour = ROOT / "docs" / "tour" / "tour.py"
    done = subprocess.run(
        [sys.executable, tour, service.url, service.admin_key],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for line in (
        "classification   prefix",
        "matched_tokens   16 of 19",
        "path             host_dram->device@node-b",
        "evidence         protocol",
        "verified         False",
    ):
        assert line in done.stdout
        assert line in (ROOT / "README.md").read_text(encoding="utf-8")
    assert done.stdout.rstrip().endswith("reserved > skipped > observed")
