"""`nexuskv serve`: when it says it is ready, and how it ends."""

import json
import socket
import sys
import time
from pathlib import Path

import httpx

from app.db.embedded import EmbeddedPostgres
from app.db.migrate import upgrade
from tests.fixtures.database import run_elsewhere
from tests.fixtures.service import SECRET, make_key
from tests.fixtures.wire import lookup_body, matched, new_tenant, register, registration
from tests.process.command import Command
from tests.process.traffic import HeldRequest, Lookups, refuses, stored_decisions
from tests.process.waiting import until

# `serve` with a drain that a test can wait for; everything else is as it is.
SHORT_DRAIN_S = 1.0
SHORT_DRAIN = f"""
import functools, sys
from app.cli import cli, serve
serve.Settings = functools.partial(serve.Settings, drain_s={SHORT_DRAIN_S})
cli(sys.argv[1:])
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def answers(url: str, path: str) -> int | None:
    try:
        return httpx.get(url + path).status_code
    except httpx.TransportError:
        return None


def fixture_file(path: Path, *entries: object) -> Path:
    document = {"schema_version": "locus.nexuskv-bridge.fixture.v1", "entries": entries}
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def events(command: Command, name: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in command.stderr.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


def test_ready_is_said_when_it_is_true_and_not_before(start, place, empty_database_url) -> None:
    """Without a schema it lives and waits; migrated, twice at once, it loads and says so."""
    tenant = new_tenant()
    one = fixture_file(place / "one.json", registration(tenant, "one", generation=2))
    two = fixture_file(
        place / "two.json", registration(tenant, "two"), registration(tenant, "one", generation=1)
    )
    ready_file = place / "ready.json"
    ready_file.write_text('{"base_url": "of an earlier run"}', encoding="utf-8")
    url = f"http://127.0.0.1:{free_port()}"
    env = {"NEXUSKV_DATABASE_URL": empty_database_url, "NEXUSKV_HANDLE_SECRET": SECRET}
    serving = start(
        "serve", "--listen", url.removeprefix("http://"), "--fixture", str(one),
        "--fixture", str(two), "--ready-file", str(ready_file), env=env,
    )  # fmt: skip
    serving.ready_file = ready_file
    until(lambda: answers(url, "/livez") == 200, "livez")
    until(lambda: events(serving, "waiting_for_database"), "it noticed that there is no schema")
    assert answers(url, "/readyz") == 503
    assert answers(url, "/healthz") == 200
    assert not ready_file.exists()

    migrations = [
        Command(directory, "migrate", env=env)
        for directory in (place / "migrate-1", place / "migrate-2")
        if directory.mkdir() is None
    ]
    assert [command.wait() for command in migrations] == [0, 0]
    outputs = {command.stdout for command in migrations}
    assert len(outputs) == 1
    assert outputs.pop().endswith("(current)\n")

    found = serving.ready()
    assert found == {
        "schema_version": "locus.nexuskv-bridge.v1",
        "base_url": url,
        "evidence_level": "protocol",
    }
    assert answers(url, "/readyz") == 200
    with serving.client(make_key(empty_database_url)) as client:
        listed = client.get("/v1/states", params={"tenant": tenant}).json()["items"]
        assert {(state["entry_id"], state["generation"]) for state in listed} == {
            ("one", 2),
            ("two", 1),
        }
        assert matched(client, tenant) is not None
    (conflict,) = events(serving, "fixture_state_not_registered")
    assert (conflict["entry_id"], conflict["stored_generation"]) == ("one", 2)
    assert serving.end() == 0


def test_sigterm_finishes_what_was_begun_and_stores_what_was_answered(serve, database_url) -> None:
    tenant, key = new_tenant(), make_key(database_url)
    serving = serve()
    with serving.client(key) as client:
        register(client, registration(tenant))
    body = json.dumps(lookup_body(tenant)).encode()
    base_url = serving.ready()["base_url"]
    with Lookups(lambda: serving.client(key), tenant) as lookups:
        until(lambda: len(lookups.answered) > 50, "lookups are answered")
        held = HeldRequest(base_url, key, body)
        serving.process.terminate()
        until(lambda: refuses(held.address), "no new connection is taken")
        status, held_decision = held.finish()
    assert serving.wait() == 0
    assert status == 200
    assert not lookups.unexpected
    missing = (lookups.answered | {held_decision}) - stored_decisions(database_url)
    assert not missing
    assert not events(serving, "decisions_lost")


def test_postgres_away(place, start) -> None:
    """It lives, serves from memory, and ends in time, saying what could not be stored."""
    tenant = new_tenant()
    with EmbeddedPostgres(place / "postgres", durable=False) as server:
        run_elsewhere(upgrade(server.url))
        key = make_key(server.url)
        serving = start(
            "serve",
            env={"NEXUSKV_DATABASE_URL": server.url, "NEXUSKV_HANDLE_SECRET": SECRET},
            program=(sys.executable, "-c", SHORT_DRAIN),
        )
        with serving.client(key) as client:
            register(client, registration(tenant))
            assert matched(client, tenant) is not None
            stored_before = len(until(lambda: stored_decisions(server.url), "the decision"))
    with serving.client(key) as client:
        until(lambda: client.get("/readyz").status_code == 503, "readiness notices")
        assert client.get("/livez").json() == {"status": "ok"}
        assert client.get("/healthz").status_code == 200
        for _ in range(5):
            assert matched(client, tenant) is not None
        refused = client.get("/v1/states")
        assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
        assert refused.headers["retry-after"] == "1"
    began = time.monotonic()
    assert serving.end() == 0
    assert time.monotonic() - began < SHORT_DRAIN_S + 10
    (said,) = events(serving, "decisions_not_stored_at_shutdown")
    assert said["rows"] == 5
    assert stored_before == 1
    assert "Traceback" not in serving.stderr
