"""`nexuskv serve --workers N`: a write at one process is known to all; whoever dies comes back."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.db.embedded import EmbeddedPostgres
from app.db.migrate import upgrade
from tests.engines.publisher import publishing, tokens_of
from tests.engines.rig import BLOCK, prompt, told
from tests.engines.wires import CLEARED, packed
from tests.fixtures.database import TestServer, drop_or_fail, run_elsewhere
from tests.fixtures.service import SECRET, make_key
from tests.fixtures.wire import matched, new_tenant, register, registration
from tests.process.command import Command
from tests.process.test_serve import fixture_file
from tests.process.waiting import until

READERS = 2
MODEL = "pooled"
LONG = prompt(6)


class Pooled:
    """The command, a client of each of its readers, and engines of one tenant."""

    def __init__(self, command: Command, key: str, stack: ExitStack) -> None:
        self.command, self.key, self.tenant = command, key, new_tenant()
        self.readers = [
            stack.enter_context(
                httpx.Client(base_url=process["url"], headers=self.headers, timeout=30)
            )
            for process in self.processes()[1:]
        ]

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def processes(self) -> list[dict[str, Any]]:
        """The writer, then the readers."""
        found: list[dict[str, Any]] = self.command.ready()["processes"]
        return found

    def pids(self) -> list[int]:
        return [process["pid"] for process in self.processes()]

    def register(self, reader: int, name: str, **fields: Any) -> httpx.Response:
        spec = {
            "instance_id": name, "model": MODEL, "block_tokens": BLOCK, "tenants": [self.tenant],
        }  # fmt: skip
        return self.readers[reader].post("/v1/engines", json=spec | fields)

    def push(self, reader: int, name: str, sequence: int, *events: Any) -> httpx.Response:
        return self.readers[reader].post(
            f"/v1/engines/{name}/events",
            params={"sequence": sequence},
            content=packed(*events, at_s=sequence + 0.5),
            headers={"content-type": "application/octet-stream"},
        )

    def match(self, reader: int, tokens: list[int] = LONG) -> dict[str, Any]:
        query = {"tenant": self.tenant, "model": MODEL, "tokens": tokens}
        answer = self.readers[reader].post("/v1/match", json={"queries": [query]})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["results"][0]
        return found

    def everywhere(self) -> list[tuple[str, str | None, int]]:
        """What each reader answers to the same query now."""
        found = [self.match(reader) for reader in range(READERS)]
        return [(one["result"], one["reason"], one["matched_tokens"]) for one in found]

    def metrics(self, reader: int) -> dict[str, float]:
        lines = self.readers[reader].get("/metrics").text.splitlines()
        series = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in series}


OPTIONS = ("--workers", str(READERS), "--reader-listen", "127.0.0.1:0")


@pytest.fixture(scope="module")
def running(
    test_server: TestServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Command, str]]:
    """One for all tests that leave it as they found it, and a key."""
    name, url = test_server.clone()
    directory = tmp_path_factory.mktemp("pool")
    ready = ("--ready-file", str(directory / "ready.json"))
    env = {"NEXUSKV_DATABASE_URL": url, "NEXUSKV_HANDLE_SECRET": SECRET}
    command = Command(directory, "serve", "--listen", "127.0.0.1:0", *ready, *OPTIONS, env=env)
    yield command, make_key(url)
    exit_code = command.end()
    command.discard()
    drop_or_fail(test_server, name)
    assert exit_code == 0, command.stderr
    assert "Traceback" not in command.stderr


@pytest.fixture
def pooled(running: tuple[Command, str]) -> Iterator[Pooled]:
    with ExitStack() as stack:
        yield Pooled(*running, stack)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")


def test_what_is_written_at_one_reader_is_known_to_all_when_it_is_answered(pooled: Pooled) -> None:
    before = [pooled.metrics(reader) for reader in range(READERS)]
    assert pooled.everywhere() == [("miss", "no_engine", 0)] * READERS
    for turn in range(6):
        name = f"engine-{turn}"
        here, there = turn % READERS, (turn + 1) % READERS
        assert pooled.register(here, name).status_code == 201
        assert pooled.everywhere() == [("unknown", "engine_not_live", 0)] * READERS
        assert pooled.register(there, name).json()["result"] == "unchanged"

        assert pooled.push(there, name, 0, told(LONG[:8])).json()["applied"] == 1
        assert pooled.everywhere() == [("hit", None, 8)] * READERS
        pooled.push(here, name, 1, told(LONG[8:], 3, parent_block_hash=2)).raise_for_status()
        assert pooled.everywhere() == [("hit", None, 24)] * READERS
        (candidate,) = pooled.match(there)["candidates"]
        assert (candidate["last_sequence"], candidate["epoch"]) == (1, 1)
        assert candidate["state"] == "live"

        missing = pooled.push(there, name, 3)
        assert missing.status_code == 409
        assert missing.json()["code"] == "events_missing"
        assert '"from":2' in missing.json()["errors"][0]["value"]
        pooled.push(there, name, 2, CLEARED).raise_for_status()
        assert pooled.everywhere() == [("miss", "not_cached", 0)] * READERS

        listed = [client.get("/v1/engines").json()["items"] for client in pooled.readers]
        assert [[item["last_sequence"] for item in items] for items in listed] == [[2]] * READERS
        reports = [client.get("/v1/doctor").json() for client in pooled.readers]
        assert [report["ok"] for report in reports] == [True] * READERS
        assert pooled.readers[here].delete(f"/v1/engines/{name}").status_code == 204
        assert pooled.everywhere() == [("miss", "no_engine", 0)] * READERS
    series = 'nexuskv_index_forwarded_total{operation="push",result="%s"}'
    counted = [pooled.metrics(reader) for reader in range(READERS)]
    for result, times in (("ok", 18), ("refused", 6)):
        assert (
            sum(
                found[series % result] - were[series % result]
                for found, were in zip(counted, before, strict=True)
            )
            == times
        )
    assert [found["nexuskv_index_writer_away"] for found in counted] == [0] * READERS


def test_a_reader_that_hangs_delays_a_write_and_does_not_answer_by_what_was_before(
    pooled: Pooled,
) -> None:
    hung, cut = pooled.pids()[1], "nexuskv_index_readers_cut_total"
    before = pooled.metrics(1)[cut]
    os.kill(hung, signal.SIGSTOP)
    try:
        answers: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: answers.append(pooled.match(0)))
        asking.start()
        assert pooled.register(1, "while-one-hangs").status_code == 201
    finally:
        os.kill(hung, signal.SIGCONT)
    asking.join()
    # It was asked while it hung: what it knew by then is not what is so.
    assert (answers[0]["result"], answers[0]["reason"]) in {
        ("unknown", "index_away"),
        ("unknown", "engine_not_live"),
    }
    until(lambda: pooled.match(0)["reason"] == "engine_not_live", "it follows again")
    until(lambda: pooled.metrics(1)[cut] == before + 1, "it is counted")


def test_a_writer_that_dies_leaves_answers_unknown_until_it_is_back(pooled: Pooled) -> None:
    with publishing(replay_parts=3) as publisher:
        places = {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint}
        registered = pooled.register(0, "followed", **places)
        assert registered.status_code == 201, registered.text
        publisher.subscribed().send(6)
        tokens = tokens_of(6)
        hit = ("hit", 6 * BLOCK)

        def found(reader: int) -> tuple[str, int]:
            answer = pooled.match(reader, tokens)
            return answer["result"], answer["matched_tokens"]

        until(lambda: [found(reader) for reader in range(READERS)] == [hit] * READERS, "a hit")
        register(pooled.readers[0], registration(pooled.tenant, "state"))
        until(
            lambda: all(matched(client, pooled.tenant) for client in pooled.readers),
            "all know the state",
        )
        writer, found_again = pooled.pids()[0], "nexuskv_index_reconnects_total"
        before = [pooled.metrics(reader)[found_again] for reader in range(READERS)]
        # Stopped first, it cannot be back before anybody has looked.
        os.kill(pooled.command.process.pid, signal.SIGSTOP)
        try:
            os.kill(writer, signal.SIGKILL)
            for reader, client in enumerate(pooled.readers):
                until(lambda: pooled.match(reader, tokens)["reason"] == "index_away", "away")  # noqa: B023
                assert matched(client, pooled.tenant) is not None
                for path in ("/v1/engines", "/v1/doctor"):
                    refused = client.get(path)
                    assert (refused.status_code, refused.json()["code"]) == (503, "index_away")
                assert client.get("/indexer/workers").status_code == 503
                assert pooled.metrics(reader)["nexuskv_index_writer_away"] == 1
                assert client.get("/readyz").status_code == 200
            assert pooled.register(1, "too-early").json()["code"] == "index_away"
        finally:
            os.kill(pooled.command.process.pid, signal.SIGCONT)
        until(lambda: [found(reader) for reader in range(READERS)] == [hit] * READERS, "hits again")
        until(lambda: pooled.pids()[0] != writer, "the ready file names the new writer")
        publisher.send()
        until(lambda: pooled.match(1, tokens_of(7))["matched_tokens"] == 7 * BLOCK, "the next one")
        assert pooled.register(1, "too-early").status_code == 201
        now = [pooled.metrics(reader)[found_again] for reader in range(READERS)]
        assert now == [times + 1 for times in before]


def test_a_reader_that_dies_is_started_again_and_nobody_else_notices(pooled: Pooled) -> None:
    assert pooled.register(0, "steady").status_code == 201
    pooled.push(0, "steady", 0, told(LONG)).raise_for_status()
    ended = threading.Event()
    wrong: list[str] = []

    def ask(reader: int) -> None:
        url = pooled.command.ready()["base_url"]
        while not ended.is_set():
            if pooled.match(reader)["result"] != "hit":
                wrong.append(f"reader {reader}")
            # A new connection each: whoever is there takes it.
            if httpx.get(url + "/livez").status_code != 200:
                wrong.append("livez")

    asker = threading.Thread(target=ask, args=[1])
    asker.start()
    before = pooled.processes()
    os.kill(before[1]["pid"], signal.SIGKILL)
    until(lambda: pooled.pids()[1] != before[1]["pid"], "another process")
    until(lambda: pooled.match(0)["result"] == "hit", "it knows what the others know")
    ended.set()
    asker.join()
    assert not wrong
    now = pooled.processes()
    assert [one["pid"] for one in now[2:]] == [one["pid"] for one in before[2:]]
    assert now[1]["url"] == before[1]["url"]


def start(serve: Callable[..., Command], place: Path, *more: str) -> tuple[Command, list[int]]:
    """One that may come to harm, and its children."""
    # What is left behind would be found there.
    command = serve(*OPTIONS, *more, env={"TMPDIR": str(place)})
    return command, [process["pid"] for process in command.ready()["processes"]]


def test_nothing_is_left_of_a_command_that_is_killed(serve, place) -> None:
    command, pids = start(serve, place)
    command.process.kill()
    command.wait()
    until(lambda: all(gone(pid) for pid in pids), "all have ended", within_s=30)


def test_all_know_the_fixtures_when_it_is_ready_and_a_signal_ends_all(
    serve, place, database_url
) -> None:
    tenant = new_tenant()
    fixture = fixture_file(place / "one.json", registration(tenant, "one"))
    command, pids = start(serve, place, "--fixture", str(fixture))
    with ExitStack() as stack:
        for reader in Pooled(command, make_key(database_url), stack).readers:
            assert matched(reader, tenant) is not None
    assert len(set(pids)) == READERS + 1
    assert command.end() == 0, command.stderr
    assert all(gone(pid) for pid in pids)
    assert not list(place.glob("nexuskv-*"))
    assert "Traceback" not in command.stderr


def test_readers_that_cannot_start_end_the_command(serve) -> None:
    command = serve("--workers", "2", env={"NEXUSKV_HANDLE_SECRET": "short"})
    assert command.wait() == 1
    assert "at least 32 characters" in command.stderr


def test_with_postgres_away_matches_go_on_and_registrations_say_so(place: Path) -> None:
    ready = ("--ready-file", str(place / "ready.json"))
    with EmbeddedPostgres(place / "postgres", durable=False) as server, ExitStack() as stack:
        run_elsewhere(upgrade(server.url))
        key = make_key(server.url)
        env = {"NEXUSKV_DATABASE_URL": server.url, "NEXUSKV_HANDLE_SECRET": SECRET}
        command = Command(place, "serve", "--listen", "127.0.0.1:0", *ready, *OPTIONS, env=env)
        stack.callback(command.discard)
        pooled = Pooled(command, key, stack)
        assert pooled.register(0, "stays").status_code == 201
        pooled.push(1, "stays", 0, told(LONG)).raise_for_status()
        assert pooled.everywhere() == [("hit", None, 24)] * READERS
        server.stop()
        for reader in range(READERS):
            refused = pooled.register(reader, f"late-{reader}")
            assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
            assert pooled.readers[reader].get("/livez").status_code == 200
        # What engines tell needs no database.
        pooled.push(0, "stays", 1, CLEARED).raise_for_status()
        assert pooled.everywhere() == [("miss", "not_cached", 0)] * READERS
        assert command.end() == 0
        assert "Traceback" not in command.stderr
