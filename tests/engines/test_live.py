"""A real service beside a real publisher, which drops frames, replays, restarts and comes late."""

from itertools import count
from typing import Any

import httpx
import pytest

from tests.engines.publisher import BLOCK, free_port, publishing, tokens_of
from tests.fixtures.service import ServiceProcess
from tests.process.waiting import until

_names = count(1)


@pytest.fixture(scope="module")
def client(service: ServiceProcess):
    with service.client() as opened:
        yield opened


class Followed:
    """A registered engine, as the service sees it."""

    def __init__(self, client: httpx.Client, **fields: Any) -> None:
        number = next(_names)
        self.client = client
        self.name, self.tenant = f"live-{number}", f"live-tenant-{number}"
        spec = {
            "instance_id": self.name,
            "model": "live",
            "block_tokens": BLOCK,
            "tenants": [self.tenant],
        }
        answer = client.post("/v1/engines", json=spec | fields)
        assert answer.status_code == 201, answer.text

    def now(self) -> dict[str, Any]:
        items = self.client.get("/v1/engines", params={"page_size": 1000}).json()["items"]
        [found] = [item for item in items if item["instance_id"] == self.name]
        return found

    def until(self, **expected: Any) -> dict[str, Any]:
        def as_expected():
            found = self.now()
            return found if expected == {name: found[name] for name in expected} else None

        try:
            return until(as_expected, f"{self.name}: {expected}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.now()}") from None

    def connected(self) -> None:
        until(lambda: self.now()["socket"]["peers"], "a connection")

    def match(self, blocks: int, seed: int = 0) -> tuple[str, int]:
        query = {"tenant": self.tenant, "model": "live", "tokens": tokens_of(blocks, seed)}
        answer = self.client.post("/v1/match", json={"queries": [query]})
        assert answer.status_code == 200, answer.text
        [found] = answer.json()["results"]
        return found["result"], found["matched_tokens"]

    def checks(self) -> dict[str, str]:
        """The doctor's findings: check -> severity."""
        found = self.client.get("/v1/doctor", params={"engine": self.name}).json()
        [report] = found["reports"]
        return {one["check"]: one["severity"] for one in report["findings"]}


@pytest.mark.parametrize("parts", [3, 4])
def test_frames_that_were_dropped_are_replayed(client, parts):
    with publishing(replay_parts=parts, topic="kv@pod@m") as engine:
        followed = Followed(
            client,
            endpoint=engine.endpoint,
            replay_endpoint=engine.replay_endpoint,
            topic="kv@pod",
        )
        engine.subscribed().send(3)
        followed.until(last_sequence=2, state="live", blocks={"gpu": {"0": 3}})
        engine.drop(300)
        engine.send()
        found = followed.until(last_sequence=303, state="live", blocks={"gpu": {"0": 304}})
        assert (found["gaps"], found["lost_frames"], found["epoch"]) == (0, 0, 1)
        assert found["socket"]["replays"]["complete"] >= 1
        assert found["events"] == {"stored": 304}
        assert followed.match(304) == ("hit", 304 * BLOCK)
        assert followed.match(310, seed=9) == ("miss", 0)


def test_without_a_replay_what_it_holds_is_unknown_until_it_clears(client):
    with publishing() as engine:
        followed = Followed(client, endpoint=engine.endpoint)
        engine.subscribed().send(2)
        followed.until(state="live", blocks={"gpu": {"0": 2}})
        engine.drop(2)
        engine.send()
        found = followed.until(state="unknown", last_sequence=4)
        assert (found["gaps"], found["lost_frames"]) == (1, 2)
        assert followed.match(5) == ("unknown", 0)
        assert followed.checks()["continuity"] == "error"
        engine.event({"type": "AllBlocksCleared"})
        followed.until(state="live", blocks={})
        assert followed.match(5) == ("miss", 0)


@pytest.mark.parametrize("parts", [0, 4])
def test_a_restarted_engine_begins_a_new_epoch(client, parts):
    with publishing(replay_parts=parts) as engine:
        endpoint, replay = engine.endpoint, engine.replay_endpoint
        followed = Followed(client, endpoint=endpoint, replay_endpoint=replay)
        engine.subscribed().send(5)
        followed.until(state="live", blocks={"gpu": {"0": 5}})
    options = {"replay_parts": parts, "replay_bind": replay} if parts else {}
    with publishing(bind=endpoint, seed=7, **options) as engine:
        engine.subscribed().send(2)
        followed.until(state="live", epoch=2, last_sequence=1, blocks={"gpu": {"0": 2}})
        assert followed.match(5) == ("miss", 0)
        assert followed.match(2, seed=7) == ("hit", 2 * BLOCK)


def test_a_restarted_engine_that_is_ahead_already_is_told_from_the_old_one_by_its_frames(client):
    """Its next number would fit the old stream without a gap."""
    with publishing(replay_parts=4) as engine:
        endpoint, replay = engine.endpoint, engine.replay_endpoint
        followed = Followed(client, endpoint=endpoint, replay_endpoint=replay)
        engine.subscribed().send(3)
        followed.until(state="live", last_sequence=2)
    with publishing(bind=endpoint, seed=7, replay_parts=4, replay_bind=replay) as engine:
        # Numbers 0 to 2 are there for a replay only; number 3 would be the next of the old one.
        engine.drop(3)
        engine.subscribed().send()
        found = followed.until(state="live", last_sequence=3, blocks={"gpu": {"0": 4}})
        assert found["epoch"] == 2
        assert followed.match(4, seed=7) == ("hit", 4 * BLOCK)
        assert followed.match(3) == ("miss", 0)


def test_an_engine_may_connect_to_a_socket_that_the_service_binds(client):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    followed = Followed(client, endpoint=endpoint, attach="bind")
    with publishing(connect=endpoint) as engine:
        engine.subscribed().send(2)
        followed.until(state="live", blocks={"gpu": {"0": 2}})
    assert until(lambda: not followed.now()["socket"]["peers"], "the connection has ended")
    assert followed.now()["state"] == "live"


@pytest.mark.parametrize(("keep", "state"), [(10_000, "live"), (3, "unknown")])
def test_who_registers_an_engine_late_asks_for_what_was_published_before(client, keep, state):
    with publishing(replay_parts=4, keep=keep) as engine:
        engine.drop(40)
        followed = Followed(
            client, endpoint=engine.endpoint, replay_endpoint=engine.replay_endpoint
        )
        found = followed.until(last_sequence=39, state=state)
        assert found["lost_frames"] == (0 if state == "live" else 37)
        assert followed.match(40) == (("hit", 160) if state == "live" else ("unknown", 0))
        engine.subscribed().send()
        followed.until(last_sequence=40, state=state)


def test_registrations_and_their_blocks_survive_a_restart_of_the_service(own_service):
    with publishing(replay_parts=3) as engine, own_service.client() as client:
        followed = Followed(
            client, endpoint=engine.endpoint, replay_endpoint=engine.replay_endpoint
        )
        engine.subscribed().send(2)
        followed.until(state="live", blocks={"gpu": {"0": 2}})
        own_service.kill()
        engine.send()
        own_service.start()
        with own_service.client() as again:
            followed.client = again
            followed.until(state="live", last_sequence=2, blocks={"gpu": {"0": 3}})
            assert followed.match(3) == ("hit", 3 * BLOCK)


def test_the_doctor_names_what_is_wrong_with_a_live_engine(client):
    nobody = Followed(client, endpoint=f"tcp://127.0.0.1:{free_port()}")
    until(lambda: nobody.checks().get("connected") == "error", "nobody listens there")
    taken = free_port()
    first = Followed(client, endpoint=f"tcp://127.0.0.1:{taken}", attach="bind")
    until(lambda: first.checks().get("connected") == "error", "nobody connects there")
    with publishing(topic="other", replay_parts=4) as engine:
        silent = Followed(
            client,
            endpoint=engine.endpoint,
            replay_endpoint=engine.replay_endpoint,
            topic="mine",
        )
        silent.connected()
        until(lambda: silent.checks() == {"events": "error"}, "no events yet")
        engine.drop()
        other = Followed(
            client,
            endpoint=engine.endpoint,
            replay_endpoint=engine.replay_endpoint,
            topic="mine",
        )
        expected = {"events": "error", "topic": "error"}
        until(lambda: other.checks() == expected, "another topic")
        busy = Followed(client, endpoint=engine.endpoint, attach="bind")
        until(lambda: busy.checks().get("socket") == "error", "the address is taken")
    with publishing(bind=f"tcp://127.0.0.1:{free_port()}", rank=1) as engine:
        odd = Followed(client, endpoint=engine.endpoint)
        engine.subscribed().send()
        until(lambda: odd.checks().get("rank") == "error", "another rank")
        engine.raw("00", "01")
        until(lambda: odd.checks().get("readable") == "error", "a message that is no frame")


def test_a_port_that_speaks_another_protocol_is_named(client, service):
    endpoint = service.url.replace("http", "tcp")
    followed = Followed(client, endpoint=endpoint)
    until(lambda: followed.checks().get("protocol") == "error", "another protocol")
    assert followed.now()["socket"]["peers"] == 0


def test_a_forgotten_engine_leaves_nothing_behind(client):
    with publishing() as engine:
        followed = Followed(client, endpoint=engine.endpoint)
        engine.subscribed().send(2)
        followed.until(state="live", blocks={"gpu": {"0": 2}})
        assert client.delete(f"/v1/engines/{followed.name}").status_code == 204
        assert followed.match(2) == ("miss", 0)
        assert client.delete(f"/v1/engines/{followed.name}").status_code == 404
    series = client.get("/metrics").text
    for name in ("nexuskv_engine_events_total", "nexuskv_engine_frames_total"):
        assert f"{name}{{" in series
