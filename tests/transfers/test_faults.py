"""Workers that hang, lie or break, and payloads and sinks that change under a transfer.

Always: a 503 with the reason before the deadline, or evidence that is true; nothing is left held or
charged, and the option can be used again.
"""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.fixtures.wire import error_code
from tests.process.waiting import until
from tests.transfers.conftest import NOTHING, new_tenant_name
from tests.transfers.fleet import DEADLINE_S, Fleet, Story
from tests.transfers.holding import Relay
from tests.transfers.operator import Operator, shipped
from tests.transfers.scripted import SINK, Call, Script, ScriptedTarget
from tests.transfers.test_physical import assert_physical
from tests.worker.rig import MIB, some_bytes

AWAY, MISS, POLICY = "preferred_backend_unavailable", "cache_miss", "engine_policy"
# What the answer may take beyond the deadline: a last word to the worker, and a slow machine.
SLACK_S = 1.5
# More than the sockets between source and target hold.
BIG_BYTES = 12 * MIB


@pytest.fixture(scope="module")
def scripted(shared_fleet: Fleet) -> Iterator[ScriptedTarget]:
    with ScriptedTarget(shared_fleet) as target:
        yield target


@pytest.fixture
def target(scripted: ScriptedTarget) -> Iterator[ScriptedTarget]:
    scripted.orders.clear()
    scripted.cancelled.clear()
    yield scripted
    scripted.be_good()


@pytest.fixture(scope="module")
def relay(shared_fleet: Fleet) -> Iterator[Relay]:
    """In front of the data port of `node-r`."""
    relay = Relay()
    worker = shared_fleet.start_behind(relay, "node-r")
    yield relay
    relay.close()
    del shared_fleet.workers["node-r"]
    worker.close()
    shared_fleet.client.delete("/v1/workers/node-r")


@pytest.fixture
def held(fleet: Fleet, relay: Relay) -> Iterator[Story]:
    """A large state behind the relay, which holds its payload after the first MiB."""
    told = fleet.story(new_tenant_name(), payload_bytes=BIG_BYTES, node="node-r").ready()
    hold = relay.hold(told.payload_id, MIB)
    yield told
    hold.go_on.set()
    told.source.delete(told.payload_id)
    for sink in told.sinks:
        told.target.finish(sink, "discard")
    until(lambda: told.charged() == NOTHING, lambda: f"nothing stays charged; {told.charged()}")


def says(data: bytes) -> Script:
    return lambda call: call.raw(data)


def facts(**changes) -> Script:
    return lambda call: call.say(call.completed(**changes))


def sink(**changes) -> Script:
    return lambda call: call.say(call.sink(**changes))


def http(body: bytes, status: int = 200, length: int | None = None) -> Script:
    stated = len(body) if length is None else length
    return says(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, stated) + body)


BROKEN = {
    "hangs": Call.hang,
    "hangs up": says(b""),
    "is no HTTP": says(b"\x00\x01\x02 nonsense\r\n\r\n"),
    "is no JSON": http(b"<html>It works!</html>"),
    "is another document": http(b'{"status": "ok"}'),
    "never ends": http(b"x" * 100_000),
    "dies in the answer": http(b'{"session_id": "', length=500),
    "fails": http(b'{"code": "internal_error", "detail": "a fault"}', 500),
    "is busy": http(b"{}", 503),
    "sends elsewhere": says(b"HTTP/1.1 302 X\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"),
    "wants another token": http(b"{}", 401),
}
LIES = {
    "fewer bytes": (facts(bytes_transferred=4095), MISS, "the worker verified 4095 of 4096 bytes"),
    "more bytes": (facts(bytes_transferred=4097), MISS, "the worker verified 4097 of 4096 bytes"),
    "negative bytes": (facts(bytes_transferred=-4096), AWAY, "garbage"),
    "no checksum": (facts(checksum=None), AWAY, "garbage"),
    "half a checksum": (facts(checksum="0123"), AWAY, "garbage"),
    "another session": (facts(session_id="another"), AWAY, "garbage"),
    "another payload": (facts(payload_id="another"), AWAY, "garbage"),
    "another sink": (facts(target_sink_id="another"), AWAY, "garbage"),
    "it still runs": (facts(status="in_flight"), AWAY, "deadline"),
    "it failed": (facts(status="failed", failure="no_space"), AWAY, "no_space"),
    "it was cancelled": (facts(status="cancelled", failure="cancelled"), AWAY, "cancelled"),
    "other bytes": (facts(status="failed", failure="checksum_mismatch"), MISS, "checksum_mismatch"),
}
SINKS = {
    "another sink": (sink(sink_id="another"), AWAY, "garbage"),
    "another tenant's": (sink(tenant="another"), AWAY, "garbage"),
    "another generation's": (sink(engine_generation=2), POLICY, "another generation"),
    "a complete one": (sink(state="complete", session_id="another"), POLICY, "complete"),
    "a larger one": (sink(payload_bytes=4097), MISS, "the worker verified"),
}


def refused(story: Story, target: ScriptedTarget, reason: str, why: str) -> None:
    """One attempt falls back in time, for that reason; the next, with a good worker, does not."""
    option = story.option(target.name)
    began_s = time.monotonic()
    answer = story.materialize(option, SINK)
    assert time.monotonic() - began_s < DEADLINE_S + SLACK_S
    assert error_code(answer) == (503, "materialization_unavailable")
    assert f"({reason})" in answer.json()["error"]["message"]
    found = story.history(answer, ["fell_back"])
    assert (found["outcome"], found["fallback_reason"]) == ("unavailable", reason)
    assert why in json.dumps(found["outcomes"][0]["detail"])
    assert (found["outcomes"][0]["physical"], found["outcomes"][0]["bytes_transferred"]) == (
        False,
        0,
    )
    assert story.charged() == NOTHING
    target.be_good()
    done = story.materialize(option, SINK)
    assert done.status_code == 200, done.text
    assert done.json()["evidence"]["level"] == "physical"
    assert story.charged()["entries"] == 1
    target.tell_consumed(story, target.orders[-1])
    story.history(done, ["fell_back", "completed", "consumed"])
    assert story.charged() == NOTHING


@pytest.mark.parametrize("how", BROKEN)
def test_a_target_that_does_not_answer_an_order(
    story: Story, target: ScriptedTarget, how: str
) -> None:
    target.on_order = BROKEN[how]
    if how == "hangs":
        target.on_cancel = Call.hang
    refused(story, target, AWAY, "did not answer")


@pytest.mark.parametrize("how", ["hangs", "is no JSON", "fails"])
def test_a_target_that_does_not_answer_for_its_sink(
    story: Story, target: ScriptedTarget, how: str
) -> None:
    target.on_sink = BROKEN[how]
    refused(story, target, AWAY, "did not answer")
    # Nothing was ordered before.
    assert len(target.orders) == 1


@pytest.mark.parametrize("lie", LIES)
def test_a_target_that_tells_something_else(story: Story, target: ScriptedTarget, lie: str) -> None:
    target.on_order, reason, why = LIES[lie]
    refused(story, target, reason, why)
    # Whatever it may be doing for that order, it was told to stop.
    assert target.cancelled.count(target.orders[0].session_id) >= 1


@pytest.mark.parametrize("lie", SINKS)
def test_a_target_that_tells_of_another_sink(
    story: Story, target: ScriptedTarget, lie: str
) -> None:
    target.on_sink, reason, why = SINKS[lie]
    if lie == "a larger one":
        target.on_order = facts(bytes_transferred=4096)
    refused(story, target, reason, why)


def test_a_copy_with_other_bytes_is_none(story: Story, target: ScriptedTarget) -> None:
    body = {
        "transfer_id": "copy",
        "action": "store",
        "tenant": story.tenant,
        "entry_id": "state-1",
        "target_worker": target.name,
    }
    answer = story.fleet.client.post("/v1/transfers", json=body).json()
    assert (answer["status"], answer["fallback_reason"]) == ("failed", MISS)
    assert "other bytes" in answer["detail"]
    assert answer["locator"] is None
    assert story.charged() == NOTHING


def test_a_slow_worker_holds_up_nobody_else(story: Story, target: ScriptedTarget) -> None:
    target.on_order = Call.hang
    slow = [story.option(target.name) for _ in range(24)]
    good = [story.option() for _ in range(24)]
    sinks = [story.sink() for _ in good]

    def timed(number: int) -> tuple[httpx.Response, float]:
        began_s = time.monotonic()
        answer = story.materialize(good[number], sinks[number], import_id=f"good-{number}")
        return answer, time.monotonic() - began_s

    with ThreadPoolExecutor(24) as hanging, ThreadPoolExecutor(2) as quick:
        asked = [
            hanging.submit(story.materialize, option, f"sink-{number}", import_id=f"slow-{number}")
            for number, option in enumerate(slow)
        ]
        until(lambda: len(target.orders) == len(slow), "all of them wait for the slow worker")
        answers = list(quick.map(timed, range(len(good))))
        refusals = [future.result() for future in asked]
    assert {answer.status_code for answer, _ in answers} == {200}
    assert max(took_s for _, took_s in answers) < DEADLINE_S * 0.75
    assert {error_code(answer)[0] for answer in refusals} == {503}


def test_a_full_arena_has_no_room_for_a_staged_copy(fleet: Fleet, story: Story) -> None:
    operator = Operator(fleet)
    operator.switch(shipped("shared-fleet"))
    try:
        big = fleet.story(new_tenant_name(), payload_bytes=BIG_BYTES).ready()
        option, sink = big.option(), big.sink()
        filler = fleet.b.of(story.tenant).new_sink(BIG_BYTES)
        answer = big.materialize(option, sink)
        assert error_code(answer) == (503, "materialization_unavailable")
        detail = big.history(answer, ["fell_back"])["outcomes"][0]["detail"]
        assert "no_space" in json.dumps(detail)
        assert (big.target.sink_facts(sink)["state"], big.charged()) == ("open", NOTHING)
        # The same option and sink, on a way that needs no room beside the sink.
        operator.switch(shipped("default"))
        assert_physical(big, big.materialize(option, sink), sink)
        big.target.finish(sink, "consume")
        operator.switch(shipped("shared-fleet"))
        fleet.b.of(story.tenant).finish(filler, "discard")
        option, sink = big.option(), big.sink()
        done = big.materialize(option, sink)
        assert done.json()["evidence"]["execution_backend"] == "nexuskv.worker.staged_copy"
        assert big.target.content(sink).content == big.data
        big.target.finish(sink, "consume")
        big.source.delete(big.payload_id)
        until(lambda: big.charged() == NOTHING, "the charge is given back")
    finally:
        operator.switch(shipped("default"))


def test_what_a_forgotten_worker_holds_is_charged_to_nobody(
    story: Story, target: ScriptedTarget
) -> None:
    assert story.materialize(story.option(target.name), SINK).status_code == 200
    assert story.charged()["entries"] == 1
    # Heartbeats of the same process take nothing back.
    target.say()
    assert story.charged()["entries"] == 1
    assert story.fleet.client.delete(f"/v1/workers/{target.name}").status_code == 204
    assert story.charged() == NOTHING
    target.say()


@pytest.fixture
def under_way(held: Story, relay: Relay) -> Iterator["UnderWay"]:
    with ThreadPoolExecutor(1) as pool:
        yield UnderWay(held, relay, pool)


class UnderWay:
    """A materialize of which one MiB has arrived."""

    def __init__(self, story: Story, relay: Relay, pool: ThreadPoolExecutor) -> None:
        self.story = story
        self.hold = relay.hold(story.payload_id, MIB)
        self.option = story.option()
        self._pool = pool

    def start(self, **sink) -> str:
        made = self.story.sink(**sink)
        self._asked = self._pool.submit(self.story.materialize, self.option, made)
        self.hold.wait_reached()
        return made

    def end(self) -> httpx.Response:
        self.hold.go_on.set()
        return self._asked.result(30)


@pytest.mark.parametrize("how", ["superseded", "deleted", "evicted"])
def test_a_payload_that_changes_while_it_is_read_arrives_as_it_was(
    fleet: Fleet, under_way: UnderWay, how: str
) -> None:
    story = under_way.story
    sink = under_way.start()
    assert story.source.metrics()["nexuskv_worker_pins"] == 1
    if how == "superseded":
        assert story.source.put(story.payload_id, some_bytes(BIG_BYTES)).status_code == 200
    elif how == "deleted":
        assert story.source.delete(story.payload_id).status_code == 200
    else:
        # What is being read is not evicted, however much room is asked for.
        other = story.source.of("another")
        assert other.put("more", some_bytes(24 * MIB)).json()["code"] == "worker_full"
        assert other.put("more", some_bytes(16 * MIB)).status_code == 201
        assert other.delete("more").status_code == 200
    assert_physical(story, under_way.end(), sink)


def test_a_sink_that_is_discarded_meanwhile_stops_the_transfer(under_way: UnderWay) -> None:
    story = under_way.story
    story.target.finish(under_way.start(), "discard")
    answer = under_way.end()
    assert error_code(answer) == (503, "materialization_unavailable")
    # Nothing was answered with this sink, so what became of it is no outcome of its own.
    found = story.history(answer, ["fell_back"])
    assert not found["outcomes"][0]["physical"]
    assert story.charged() == NOTHING
    again = story.sink()
    assert_physical(story, story.materialize(under_way.option, again), again)


def test_who_repeats_a_running_import_is_told_to_wait(under_way: UnderWay) -> None:
    story = under_way.story
    sink = under_way.start()
    busy = story.materialize(under_way.option, sink)
    assert error_code(busy) == (503, "materialization_unavailable")
    assert "another request" in busy.json()["error"]["message"]
    other = story.materialize(under_way.option, "sink-9")
    assert error_code(other) == (409, "materialization_option_mismatch")
    first = under_way.end()
    assert_physical(story, first, sink)
    assert story.materialize(under_way.option, sink).json() == first.json()
    assert story.charged() == {"payload_bytes": BIG_BYTES, "entries": 1, "transfers": 0}


def test_a_caller_that_goes_away_stops_the_transfer(under_way: UnderWay) -> None:
    story = under_way.story
    sink = story.sink()
    url = httpx.URL(story.fleet.service.url)
    body = json.dumps(story.body(under_way.option, sink)).encode()
    head = (
        f"POST /locus/v1/materialize HTTP/1.1\r\nhost: {url.host}\r\n"
        f"authorization: Bearer {story.fleet.service.admin_key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port)) as caller:
        caller.sendall(head.encode() + body)
        under_way.hold.wait_reached()
        assert story.target.sink_facts(sink)["state"] == "filling"
    began_s = time.monotonic()
    until(lambda: story.target.sink_facts(sink)["state"] == "open", "the transfer is cancelled")
    # Not by its deadline.
    assert time.monotonic() - began_s < DEADLINE_S / 2
    until(lambda: story.charged() == NOTHING, "the charges are given back")
    (decision,) = story.decisions(1, kind="materialize")
    assert (decision["outcome"], decision["fallback_reason"]) == ("unavailable", "cancelled")
    under_way.hold.go_on.set()
    answer = story.materialize(under_way.option, sink)
    assert_physical(story, answer, sink)
    assert story.history(answer, ["completed"])["outcome"] == "materialized"
