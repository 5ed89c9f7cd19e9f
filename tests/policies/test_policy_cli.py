"""`nexuskv policy`, as a person types it, against a running service."""

import json
import re
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from app.cli.policy import policy_app
from app.control.keys import Scope
from app.policy.document import load_policy
from tests.fixtures.service import ServiceProcess
from tests.policies.documents import document, text

Run = Callable[..., Result]
DEFAULT = Path(__file__).resolve().parents[2] / "policies" / "default.yaml"


def invoke(*arguments: str, env: dict[str, str] | None = None, stdin: str | None = None) -> Result:
    clean = {"NEXUSKV_URL": "", "NEXUSKV_KEY": "", "NEXUSKV_API_KEY": "", "NEXUSKV_API_URL": ""}
    terminal = {"COLUMNS": "200", "TERM": "dumb"}
    return CliRunner().invoke(
        policy_app, list(arguments), env=clean | terminal | (env or {}), input=stdin
    )


def column(table: str, number: int) -> list[str]:
    """What the lines of a printed table say in one column."""
    rows = [line.split("│") for line in table.splitlines() if "│" in line]
    return [row[number + 1].strip() for row in rows]


def open_column(table: str, heading: str) -> list[str]:
    """Likewise of a table without lines between its columns."""
    lines = table.splitlines()
    head = next(at for at, line in enumerate(lines) if heading in line)
    begin = lines[head].index(heading)
    after = re.search(r"\S", lines[head][begin + len(heading) :])
    end = begin + len(heading) + after.start() if after else None
    return [found for line in lines[head + 1 :] if (found := line[begin:end].strip(" ─"))]


@pytest.fixture
def policy(policy_service: ServiceProcess) -> Run:
    def run(*arguments: str, **options) -> Result:
        env = {"NEXUSKV_URL": policy_service.url, "NEXUSKV_KEY": policy_service.admin_key}
        return invoke(*arguments, env=env | options.pop("env", {}), **options)

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def make(content: str) -> str:
        path = tmp_path / f"policy-{len(list(tmp_path.iterdir()))}.yaml"
        path.write_text(content)
        return str(path)

    return make


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A port that is bound and never accepts: connecting to it is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_validation_needs_no_service(write) -> None:
    good = invoke("validate", str(DEFAULT))
    assert good.exit_code == 0, good.output
    assert load_policy(DEFAULT.read_bytes()).version in good.stdout
    assert "/allowed_source_tiers" in good.stdout
    wrong = write(text(allowed_source_tiers=["tape"], surprise=[1]))
    bad = invoke("validate", wrong)
    assert bad.exit_code == 1
    for shown in ("/allowed_source_tiers/0", '"tape"', "host_dram", "/surprise", "unknown_field"):
        assert shown in bad.stderr
    as_json = invoke("validate", wrong, "--json")
    assert as_json.exit_code == 1
    report = json.loads(as_json.stdout)
    assert not report["valid"]
    assert [error["pointer"] for error in report["errors"]] == [
        "/allowed_source_tiers/0",
        "/surprise",
    ]
    narrow = invoke("validate", wrong, env={"COLUMNS": "50"})
    pointers = "".join(column(narrow.stderr, 0))
    assert "/allowed_source_tiers/0" in pointers
    assert "…" not in narrow.stderr
    assert json.loads(invoke("validate", "-", "--json", stdin=text()).stdout)["valid"]


def test_a_rollout_and_its_roll_back(policy: Run, write) -> None:
    first = policy("push", write("# first\n" + yaml.safe_dump(document(101))), "--json")
    assert first.exit_code == 0, first.output
    number = json.loads(first.stdout)["policy"]["number"]
    again = policy("push", write(text(101)))
    assert f"Policy {number} was stored already" in again.stdout
    assert f"nexuskv policy activate {number}" in again.stdout
    assert f"Policy {number} is active" in policy("activate", str(number), "-m", "go").stdout
    assert f"Policy {number} was active already" in policy("activate", str(number)).stdout
    second = policy("push", write(text(102)), "--activate", "--message", "more entries")
    assert second.exit_code == 0
    assert f"Policy {number + 1} is active" in second.stdout
    listed = policy("list")
    active = next(line for line in listed.stdout.splitlines() if "yes" in line)
    assert str(number + 1) in active
    assert "more entries" in active
    narrow = policy("list", env={"COLUMNS": "60"}).stdout
    sha256 = load_policy(text(102)).content_sha256
    assert sha256[:16] in open_column(narrow, "sha256")
    assert "…" not in narrow
    assert policy("activate", str(number)).exit_code == 0
    items = json.loads(policy("list", "--json").stdout)["items"]
    assert [item["number"] for item in items if item["active"]] == [number]


def test_the_policies_of_the_readme_and_the_way_back(policy: Run, monkeypatch) -> None:
    root = DEFAULT.parents[1]
    monkeypatch.chdir(root)
    readme = (root / "README.md").read_text(encoding="utf-8")
    typed = re.findall(r"^\.venv/bin/nexuskv policy (push .*)$", readme, re.MULTILINE)
    assert len(typed) == 2
    for line in typed:
        done = policy(*shlex.split(line, comments=True))
        assert done.exit_code == 0, done.output
    in_force = json.loads(policy("active", "--json").stdout)
    default = load_policy(DEFAULT.read_bytes()).content_sha256
    assert in_force["label"].endswith(f":sha256:{default[:16]}")


def test_what_is_shown_is_a_policy_again(policy: Run, write) -> None:
    stored = policy("push", write(text(201)), "--activate", "--json", "-m", "two\nlines: [x")
    policy_document = json.loads(stored.stdout)["policy"]
    for shown in (policy("show", str(policy_document["number"])), policy("active")):
        assert shown.exit_code == 0
        assert load_policy(shown.stdout).content_sha256 == policy_document["content_sha256"]
    raw = json.loads(policy("show", str(policy_document["number"]), "--json").stdout)
    assert raw["source"] == text(201)
    in_force = json.loads(policy("active", "--json").stdout)
    assert in_force["activation"]["number"] == policy_document["number"]


def test_refusals_of_the_service_are_explained(policy: Run, write) -> None:
    refused = policy("push", write(text(allowed_source_tiers=["tape"])))
    assert refused.exit_code == 1
    assert "/allowed_source_tiers/0: must be one of: device" in refused.stderr
    assert '"tape"' in refused.stderr
    for command in ("show", "activate"):
        unknown = policy(command, "999999")
        assert unknown.exit_code == 1
        assert "There is no policy 999999; `nexuskv policy list` shows" in unknown.stderr
        assert "404 not_found" in unknown.stderr
        # Whoever types commands is told commands.
        assert "/v1/" not in unknown.stderr


def test_keys(policy: Run, policy_service: ServiceProcess, tmp_path: Path) -> None:
    without = policy("list", env={"NEXUSKV_KEY": ""})
    assert without.exit_code == 1
    assert "401" in without.stderr
    for way in ("--key,", "--key-file", "NEXUSKV_KEY", "admin.key"):
        assert way in without.stderr
    key_file = tmp_path / "key"
    key_file.write_text(policy_service.key(Scope.POLICIES_READ))
    key_file.chmod(0o600)
    # The file is named here; the variable may be left over from another service.
    with_file = ("--key-file", str(key_file))
    assert policy("list", *with_file, env={"NEXUSKV_KEY": "stale"}).exit_code == 0
    assert "policies:activate" in policy("activate", "1", *with_file).stderr
    key_file.chmod(0o644)
    loose = policy("list", *with_file)
    assert loose.exit_code == 2
    assert "chmod 600" in loose.stderr


@pytest.mark.parametrize(
    ("arguments", "exit_code", "hint"),
    [
        (["validate", "/nowhere/at/all.yaml"], 2, "/nowhere/at/all.yaml"),
        (["validate", "/"], 2, "cannot read"),
        (["push", "/nowhere/at/all.yaml"], 2, "cannot read"),
        (["activate", "0"], 2, "'N'"),
        (["activate", "x"], 2, "'N'"),
        (["list", "--url", "ftp://host"], 2, "--url"),
        (["list", "--url", "localhost:9099"], 2, "--url"),
        (["list", "--key", "nkv_é"], 2, "ASCII"),
        (["list", "--key-file", "/nowhere/key"], 2, "/nowhere/key"),
    ],
)
def test_mistakes_are_usage_errors(arguments: list[str], exit_code: int, hint: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == exit_code
    assert hint in result.stderr
    assert "Traceback" not in result.output


def test_nobody_listening(silent_url: str) -> None:
    result = invoke("active", "--url", silent_url)
    assert result.exit_code == 1
    assert silent_url in result.stderr
    assert "NEXUSKV_URL" in result.stderr


class OtherService(BaseHTTPRequestHandler):
    """Whatever else may listen where NexusKV was expected."""

    def do_GET(self) -> None:
        self.send_response(502 if "active" in self.path else 200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *_: object) -> None:
        """Nothing: the test's output is its own."""


def test_who_answers_is_not_nexuskv() -> None:
    with HTTPServer(("127.0.0.1", 0), OtherService) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        page, gateway = invoke("list", "--url", url), invoke("active", "--url", url)
        server.shutdown()
        thread.join()
    assert (page.exit_code, gateway.exit_code) == (1, 1)
    assert "does not answer as NexusKV does" in page.stderr
    assert "502 Bad Gateway" in gateway.stderr
