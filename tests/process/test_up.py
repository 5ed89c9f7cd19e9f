"""`nexuskv up`: one command, everything on this machine, and nothing left when it ends."""

import json
import os
import pwd
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from sqlalchemy.engine import make_url

from tests.fixtures.wire import (
    error_code,
    estimate_body,
    lookup_body,
    matched,
    new_tenant,
    register,
    registration,
    source_handle,
)
from tests.process.command import COMMAND, Command, processes_of
from tests.process.traffic import Lookups, stored_decisions
from tests.process.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "hunter2"
EXAMPLE = re.compile(r"^  (curl .*?)\n\n", re.MULTILINE | re.DOTALL)


def key_of(up: Command) -> str:
    return Path(up.ready()["admin_key_file"]).read_text(encoding="utf-8").strip()


def assert_nothing_runs(data_dir: Path) -> None:
    until(lambda: not processes_of(data_dir), f"left: {processes_of(data_dir)}", within_s=10)


def worker_instance(client: httpx.Client) -> str | None:
    """Which process of the worker beside the API is heard; None before one is."""
    heard = [one["instance_id"] for one in client.get("/v1/workers").json()["items"]]
    assert len(heard) <= 1
    return heard[0] if heard else None


def run_example(up: Command) -> str:
    """What the curl that it shows prints, when a person copies it."""
    (example,) = EXAMPLE.findall(up.stdout)
    done = subprocess.run(
        ["sh", "-c", f"{example} --fail-with-body"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (example, done.stdout, done.stderr)
    return done.stdout


def test_a_life_of_starts_and_ends(start, place) -> None:
    """First start; Ctrl-C under load; second start; kill -9; third start; SIGTERM."""
    data_dir, tenant = place / "data", new_tenant()
    first = start("up", "--data-dir", str(data_dir))
    key = key_of(first)
    found = first.ready()
    assert set(found) == {"schema_version", "base_url", "evidence_level", "admin_key_file"}
    key_file = Path(found["admin_key_file"])
    assert key_file == data_dir / "admin.key"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE((data_dir / "handle.secret").stat().st_mode) == 0o600
    for told in (found["base_url"], str(key_file)):
        assert told in first.stdout
    assert key not in first.stdout + first.stderr
    assert json.loads(run_example(first)) == {"items": [], "next_cursor": None}
    with first.client(key) as client:
        register(client, registration(tenant))
        handle = source_handle(client, tenant)
    secret = (data_dir / "handle.secret").read_text()

    second = start("up", "--data-dir", str(data_dir))
    assert second.wait() == 1
    assert f"(pid {first.process.pid})" in second.stderr
    assert "--data-dir" in second.stderr
    assert "Traceback" not in second.stderr

    with Lookups(lambda: first.client(key), tenant) as lookups:
        until(lambda: len(lookups.answered) > 50, "lookups are answered")
        first.interrupt_the_group()
    assert first.wait() == 0
    assert not lookups.unexpected
    assert_nothing_runs(data_dir)

    third = start("up", "--data-dir", str(data_dir))
    assert key_of(third) == key
    with third.client(key) as client:
        before = until(lambda: worker_instance(client), "the worker is there")
        (process,) = [one for one in processes_of(data_dir) if " worker --node local" in one]
        os.kill(int(process.partition(":")[0]), signal.SIGKILL)
        until(lambda: worker_instance(client) not in (None, before), "another worker is there")
    assert (data_dir / "handle.secret").read_text() == secret
    with third.client(key) as client:
        # What was answered before Ctrl-C was stored before Postgres went.
        url = re.search(r"database +(\S+)", third.stdout)
        assert url is not None
        assert not lookups.answered - stored_decisions(url[1])
        assert matched(client, tenant) is not None
        assert client.post("/locus/v1/estimate", json=estimate_body(handle)).status_code == 200
    assert third.end(signal.SIGKILL) == -signal.SIGKILL
    assert_nothing_runs(data_dir)

    fourth = start("up", "--data-dir", str(data_dir), "--require-key")
    with fourth.client(key) as client:
        assert matched(client, tenant) is not None
        assert client.post("/locus/v1/estimate", json=estimate_body(handle)).status_code == 200
    with fourth.client() as client:
        assert client.get("/v1/states").status_code == 401
    assert tenant in run_example(fourth)
    assert fourth.end() == 0
    assert_nothing_runs(data_dir)


def lookup_at_once(up: Command, tenant: str) -> None:
    """As soon as it is up, its worker takes a payload, and the state there is found and priced."""
    with up.client(key_of(up)) as client:
        (worker,) = client.get("/v1/workers").json()["items"]
        assert worker["available"]
        assert (
            'nexuskv_worker_heartbeats_total{result="refused"} 0.0' in client.get("/metrics").text
        )
        body = {"worker": "local", "tenant": tenant, "direction": "put_payload", "payload_id": "p"}
        token = client.post("/v1/worker-tokens", json=body).raise_for_status().json()
        put = httpx.put(
            f"{token['url']}/v1/payloads/p",
            content=b"state",
            headers={"authorization": f"Bearer {token['token']}"},
            trust_env=False,
        )
        assert put.status_code in (200, 201), put.text
        register(client, registration(tenant, locator="node://local/state/p"))
        assert matched(client, tenant) is not None
        handle = source_handle(client, tenant)
        priced = client.post(
            "/locus/v1/estimate",
            json=estimate_body(
                handle, source_locator="node://local/state/p", target_residency="local"
            ),
        )
        assert priced.status_code == 200, priced.text


def test_the_worker_is_there_at_once_after_every_kind_of_end(start, place) -> None:
    data_dir = place / "data"
    log = data_dir / "worker-local.log"
    up = start("up", "--data-dir", str(data_dir))
    lookup_at_once(up, new_tenant())
    up.interrupt_the_group()
    assert up.wait() == 0
    # It ended before the API did, so that nothing it had to tell was lost.
    assert "heartbeat_failed" not in log.read_text(encoding="utf-8")
    again = start("up", "--data-dir", str(data_dir))
    lookup_at_once(again, new_tenant())
    assert again.end(signal.SIGKILL) == -signal.SIGKILL
    assert_nothing_runs(data_dir)
    last = start("up", "--data-dir", str(data_dir))
    lookup_at_once(last, new_tenant())
    with last.client(key_of(last)) as client:
        before = worker_instance(client)
        (process,) = [one for one in processes_of(data_dir) if " worker --node local" in one]
        os.kill(int(process.partition(":")[0]), signal.SIGKILL)
        until(lambda: worker_instance(client) not in (None, before), "another worker is there")
    lookup_at_once(last, new_tenant())
    assert last.end() == 0


def test_an_end_while_it_starts_leaves_nothing(start, place) -> None:
    data_dir = place / "data"
    up = start("up", "--data-dir", str(data_dir), "--log-level", "info")
    until(lambda: "embedded_postgres_started" in up.stderr, "Postgres runs", within_s=60)
    assert processes_of(data_dir)
    assert up.end() in (0, 130)
    assert "Traceback" not in up.stderr
    assert_nothing_runs(data_dir)


@pytest.fixture
def up_on_given_database(start, place, database_url):
    """`up` with NEXUSKV_DATABASE_URL: it brings no Postgres of its own."""

    # Where the server asks for no password, one in the URL does no harm, and must not be shown.
    url = make_url(database_url)
    if url.password is None:
        url = url.set(password=PASSWORD)

    def run(*args: str) -> Command:
        env = {"NEXUSKV_DATABASE_URL": url.render_as_string(hide_password=False)}
        return start("up", "--data-dir", str(place / "data"), *args, env=env)

    return run


def test_keyless_callers(up_on_given_database, place) -> None:
    up = up_on_given_database()
    port = httpx.URL(up.ready()["base_url"]).port
    assert not [line for line in processes_of(place / "data") if "postgres" in line.split()[1]]
    assert not (place / "data" / "postgres").exists()
    states, tenant = "/v1/states", new_tenant()
    json_body = json.dumps({"entries": [registration(tenant)]})
    with up.client() as client:

        def call(method: str = "GET", path: str = states, content: str = "", **headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            answer = client.request(method, path, content=content or None, headers=named)
            return answer.status_code

        for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "LOCALHOST"):
            assert call(host=host) == 200, host
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "10.0.0.1"):
            assert call(host=host) == 401, host
        assert call(origin=f"http://localhost:{port}") == 401
        assert call(origin="null") == 401
        assert call(sec_fetch_site="none") == 200
        for site in ("same-origin", "same-site", "cross-site"):
            assert call(sec_fetch_site=site) == 401, site
        for name in ("forwarded", "x_forwarded_for", "x_forwarded_host", "x_real_ip", "via"):
            assert call(**{name: "127.0.0.1"}) == 401, name
        assert call("POST", content=json_body, content_type="text/plain") == 401
        assert call("POST", content=json_body) == 401
        assert call("POST", content=json_body, content_type="application/json") == 201
        # A wrong key is no reason to be let in without one.
        assert call(authorization="Bearer nkv_000000000000_" + "a" * 43) == 401
        assert matched(client, tenant) is not None
        refused = client.post(
            "/locus/v1/lookup", json=lookup_body(tenant), headers={"origin": "http://localhost"}
        )
        assert error_code(refused) == (401, "unauthorized")
    assert up.end() == 0


def test_on_an_address_that_others_reach_every_caller_needs_a_key(up_on_given_database) -> None:
    up = up_on_given_database("--listen", "0.0.0.0:0", "--log-level", "debug")
    port = httpx.URL(up.ready()["base_url"]).port
    url = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{url}/v1/states").status_code == 401
    headers = {"authorization": f"Bearer {key_of(up)}"}
    assert httpx.get(f"{url}/v1/states", headers=headers).status_code == 200
    lookup = httpx.post(f"{url}/locus/v1/lookup", json=lookup_body(new_tenant()))
    assert error_code(lookup) == (401, "unauthorized")
    assert "no key is needed" not in up.stdout
    assert json.loads(run_example(up)) == {"items": [], "next_cursor": None}
    assert up.end() == 0
    assert "database " in up.stdout
    assert PASSWORD not in up.stdout + up.stderr


def a_python_for_everyone() -> tuple[str, str]:
    """An interpreter an ordinary user can run, and the PYTHONPATH it needs."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    python_path = os.pathsep.join([str(ROOT), packages])
    nobody = pwd.getpwnam("nobody")
    for candidate in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run(
                [candidate, "-c", "import app.cli"],
                env={"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1"},
                cwd="/",
                check=True,
                capture_output=True,
                user=nobody.pw_uid,
                group=nobody.pw_gid,
                extra_groups=[],
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate, python_path
    pytest.skip("no Python here that an ordinary user can run with the installed packages")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_as_an_ordinary_user(start, place) -> None:
    """With nothing but HOME: the data goes below it, and belongs to the user."""
    python, python_path = a_python_for_everyone()
    nobody = pwd.getpwnam("nobody")
    home = place / "home"
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    tenant = new_tenant()
    up = start(
        "up",
        env={"HOME": str(home), "PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1"},
        program=(python, *COMMAND[1:]),
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        cwd="/",
    )
    data_dir = home / ".local" / "share" / "nexuskv"
    assert up.ready()["admin_key_file"] == str(data_dir / "admin.key")
    with up.client(key_of(up)) as client:
        register(client, registration(tenant))
        assert matched(client, tenant) is not None
    assert {path.stat().st_uid for path in data_dir.rglob("*")} == {nobody.pw_uid}
    assert up.end() == 0
    assert_nothing_runs(data_dir)
