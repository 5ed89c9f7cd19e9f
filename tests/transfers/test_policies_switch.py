"""The three shipped policies, one after the other over HTTP: who acts, what else, and how much."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx
import pytest
from sqlalchemy import text

from app.db.session import Database
from app.transfer.frames import trailer
from tests.fixtures.wire import error_code, estimate_body, registration
from tests.process.waiting import until
from tests.transfers.announced import Announced, FalseSource, announced
from tests.transfers.conftest import NOTHING
from tests.transfers.fleet import Fleet, Story
from tests.transfers.operator import SHIPPED, Operator, shipped, variant
from tests.transfers.test_physical import assert_physical
from tests.transfers.test_transfers_api import Moves
from tests.worker.evil import stating
from tests.worker.rig import Worker

BASELINE, STAGED, ZERO = "baseline_transport", "staged_copy", "zero_copy"
POLICY, AWAY = "engine_policy", "preferred_backend_unavailable"
TIERS = ("device", "host_dram", "local_ssd", "remote_shared", "object_store")


@pytest.fixture
def node_z(fleet: Fleet, tmp_path) -> Iterator[Worker]:
    """A worker of which only the test tells the API."""
    worker = Worker(tmp_path / "node-z", "node-z")
    yield worker
    worker.close()


@dataclass(frozen=True)
class Chosen:
    """A backend acts; `rejected` are those passed over, with the reason."""

    backend: str
    degraded_from: str | None = None
    rejected: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Denied:
    """None acts: why, and what is done instead."""

    reason: str
    instead: str
    rejected: dict[str, str]


class Offer(NamedTuple):
    """What the two workers offer, and where the state lies; what each policy makes of it."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    expected: dict[str, Chosen | Denied]
    tier: str = "host_dram"
    capabilities: tuple[str, ...] = ("full", "fallback_recompute")


OFFERS = {
    # One way only in the shared fleet, and the surest one first elsewhere.
    "plain": Offer(
        (BASELINE, STAGED),
        (BASELINE, STAGED),
        {
            "default": Chosen(BASELINE),
            "shared-fleet": Chosen(STAGED, None, {BASELINE: POLICY}),
            "latency-first": Chosen(BASELINE),
        },
    ),
    # Zero copy is preferred where it is enabled, and degraded from where the source lacks it.
    "fast-target": Offer(
        (BASELINE, STAGED),
        (STAGED, BASELINE, ZERO),
        {
            "default": Chosen(BASELINE, None, {ZERO: POLICY}),
            "shared-fleet": Chosen(STAGED, None, {ZERO: POLICY, BASELINE: POLICY}),
            "latency-first": Chosen(BASELINE, ZERO, {ZERO: AWAY}),
        },
    ),
    "fast": Offer(
        (BASELINE, ZERO),
        (BASELINE, ZERO),
        {
            "default": Chosen(BASELINE, None, {ZERO: POLICY}),
            "shared-fleet": Denied(POLICY, "recomputed", {BASELINE: POLICY, ZERO: POLICY}),
            "latency-first": Chosen(ZERO),
        },
    ),
    # A lesser backend: yes; for the shared fleet it is the wanted one; but no staged copy in a
    # hurry.
    "baseline-away": Offer(
        (STAGED,),
        (BASELINE, STAGED),
        {
            "default": Chosen(STAGED, BASELINE, {BASELINE: AWAY}),
            "shared-fleet": Chosen(STAGED, None, {BASELINE: POLICY}),
            "latency-first": Denied(AWAY, "recomputed", {BASELINE: AWAY, STAGED: POLICY}),
        },
    ),
    # No second choice on purpose.
    "staged-away": Offer(
        (BASELINE,),
        (BASELINE, STAGED),
        {
            "default": Chosen(BASELINE),
            "shared-fleet": Denied(AWAY, "recomputed", {BASELINE: POLICY, STAGED: AWAY}),
            "latency-first": Chosen(BASELINE),
        },
    ),
    # Memory that somebody works in, and a disk that is slower than computing.
    "device": Offer(
        (BASELINE, STAGED),
        (BASELINE, STAGED),
        {
            "default": Chosen(BASELINE),
            "shared-fleet": Denied(POLICY, "recomputed", {BASELINE: POLICY, STAGED: POLICY}),
            "latency-first": Chosen(BASELINE),
        },
        tier="device",
    ),
    "disk": Offer(
        (BASELINE, STAGED),
        (BASELINE, STAGED),
        {
            "default": Chosen(BASELINE),
            "shared-fleet": Chosen(STAGED, None, {BASELINE: POLICY}),
            "latency-first": Denied(POLICY, "skipped", {BASELINE: POLICY, STAGED: POLICY}),
        },
        tier="local_ssd",
    ),
    # What cannot be computed again is skipped, whatever the policy would rather.
    "irreplaceable": Offer(
        (BASELINE, STAGED),
        (BASELINE, STAGED),
        {
            "default": Chosen(BASELINE),
            "shared-fleet": Denied(POLICY, "skipped", {BASELINE: POLICY, STAGED: POLICY}),
            "latency-first": Chosen(BASELINE),
        },
        tier="device",
        capabilities=("full",),
    ),
}


class Offers:
    """Every offer at once: its two workers by heartbeat, its state, and a hit to estimate it by."""

    def __init__(self, fleet: Fleet, stack: ExitStack, tenant: str = "tenant-offers") -> None:
        self._client = fleet.client
        self._hits: dict[str, dict[str, Any]] = {}
        self.tenant = tenant
        for number, (name, offer) in enumerate(OFFERS.items()):
            for side, backends in (("source", offer.source), ("target", offer.target)):
                worker = Announced(fleet, f"{name}-{side}", backends=backends, tiers=TIERS)
                stack.enter_context(worker)
            tokens = list(range(1000 * number, 1000 * number + 8))
            entry = registration(
                self.tenant, name, tokens=tokens, tier=offer.tier,
                locator=f"node://{name}-source/state/{name}", capabilities=list(offer.capabilities),
            )  # fmt: skip
            answer = self._client.post("/v1/states", json={"entries": [entry]})
            assert answer.status_code in (200, 201), answer.text
            found = fleet.story(self.tenant).lookup(tokens=tokens).json()["match_result"]
            self._hits[name] = found

    def estimate(self, name: str) -> httpx.Response:
        body = estimate_body(
            self._hits[name]["validation"]["source_handle"],
            source_state=name,
            source_locator=f"node://{name}-source/state/{name}",
            source_tier=OFFERS[name].tier,
            target_residency=f"{name}-target",
        )
        return self._client.post("/locus/v1/estimate", json=body)


def test_each_policy_chooses_as_its_comments_say(fleet: Fleet, operator: Operator) -> None:
    with ExitStack() as stack:
        offers = Offers(fleet, stack)
        told = fleet.story(offers.tenant)
        denials: dict[str, list[str]] = {name: [] for name in OFFERS}
        for policy in SHIPPED:
            label = operator.switch(shipped(policy))
            answers = {name: offers.estimate(name) for name in OFFERS}
            for name, answer in answers.items():
                expected = OFFERS[name].expected[policy]
                if isinstance(expected, Denied):
                    # The chain begins with the one lookup, so it has the earlier denials as well.
                    denials[name].append("fell_back")
                found = told.history(answer, denials[name])
                assert found["policy_version"] == label
                assert shown(found, answer, f"{name}-target/") == expected, (policy, name)


def shown(found: dict[str, Any], answer: httpx.Response, prefix: str) -> Chosen | Denied:
    """What a decision and its answer say was chosen."""
    rejected = {
        one["registration"].removeprefix(prefix): one["reason"] for one in found["excluded"]
    }
    assert all(one["detail"] for one in found["excluded"])
    if answer.status_code == 200:
        assert found["outcome"] == "estimated"
        inputs = found["inputs"]
        return Chosen(inputs["backend"], inputs["degraded_from"], rejected)
    assert error_code(answer) == (503, "materialization_unavailable")
    assert found["outcome"] == "unavailable"
    reason, instead = found["fallback_reason"], found["path"][-2]
    assert f"({reason})" in answer.json()["error"]["message"]
    return Denied(reason, instead, rejected)


@pytest.mark.parametrize(
    ("tier", "readable"),
    [
        ("device", {"default", "latency-first"}),
        ("local_ssd", {"default", "shared-fleet"}),
    ],
)
def test_a_tier_that_the_policy_does_not_read_is_no_hit(
    fleet: Fleet, operator: Operator, tier: str, readable: set[str]
) -> None:
    told = fleet.story(f"tenant-{tier}")
    told.register(tier=tier)
    for policy in SHIPPED:
        operator.switch(shipped(policy))
        answer = told.lookup()
        found = told.history(answer, [])
        if policy in readable:
            assert found["outcome"] == "hit"
            continue
        assert (answer.json()["match_result"], answer.status_code) == (None, 200)
        assert (found["outcome"], found["fallback_reason"]) == ("excluded", "policy_denied")
        assert [(one["reason"], one["field"]) for one in found["excluded"]] == [
            ("policy_denied", "location.tier")
        ]


def test_the_bytes_move_by_the_backend_of_the_policy(story: Story, operator: Operator) -> None:
    expected = {"default": BASELINE, "shared-fleet": STAGED, "latency-first": BASELINE}
    for policy, backend in expected.items():
        label = operator.switch(shipped(policy))
        answer = story.materialize(story.option(), sink := story.sink())
        assert_physical(story, answer, sink, backend)
        found = story.history(answer, ["completed"])
        assert found["policy_version"] == label
        assert found["selected_path"] == f"nexuskv.worker.{backend}"
        result = found["outcomes"][0]["detail"]["result"]
        assert (result["selected_backend"], result["degraded"]) == (backend, False)
        rejected = {one["registration"]: one["reason"] for one in found["excluded"]}
        denied = {"node-b/baseline_transport": POLICY} if backend is STAGED else {}
        assert rejected == denied


def test_a_lesser_backend_moves_the_bytes_where_the_policy_degrades(
    story: Story, operator: Operator, fleet: Fleet, node_z: Worker
) -> None:
    sink = node_z.of(story.tenant).new_sink(len(story.data))
    other = node_z.of(story.tenant).new_sink(len(story.data))
    with announced(fleet, node_z, backends=[STAGED, ZERO]) as offering:
        option = story.option("node-z")
        operator.switch(shipped("latency-first"))
        answer = story.materialize(option, sink)
        assert error_code(answer) == (503, "materialization_unavailable")
        found = story.history(answer, ["fell_back"])
        assert (found["fallback_reason"], found["path"][-2]) == (AWAY, "recomputed")
        assert {one["registration"]: one["reason"] for one in found["excluded"]} == {
            "node-z/zero_copy": AWAY,
            "node-z/staged_copy": POLICY,
        }
        # The option is as good as before, once there is another way.
        offering.say(backends=[STAGED, BASELINE, ZERO])
        answer = story.materialize(option, sink)
        assert answer.json()["evidence"]["execution_backend"] == f"nexuskv.worker.{BASELINE}"
        assert node_z.of(story.tenant).content(sink).content == story.data
        found = story.history(answer, ["fell_back", "completed"])
        result = found["outcomes"][-1]["detail"]["result"]
        assert (result["degraded"], result["selected_backend"]) == (True, BASELINE)
        assert result["transfer_session"]["request"]["degraded_from"] == ZERO
        # The default denies zero copy instead of wanting it, and moves by what is left.
        operator.switch(shipped("default"))
        offering.say(backends=[STAGED, ZERO])
        answer = story.materialize(story.option("node-z"), other)
        assert answer.json()["evidence"]["execution_backend"] == f"nexuskv.worker.{STAGED}"
        found = story.history(answer, ["completed"])
        assert not found["outcomes"][0]["detail"]["result"]["degraded"]
        assert [one["reason"] for one in found["excluded"]] == [POLICY]


TWO = {"max_entries": 2}


@pytest.mark.parametrize(
    ("policy", "instead"),
    [
        (variant("shared-fleet", quota_admission_policy=TWO), "recomputed"),
        (variant("shared-fleet", quota_admission_policy={"max_payload_bytes": 8192}), "recomputed"),
        (variant("latency-first", quota_admission_policy=TWO | {"mode": "enforced"}), "skipped"),
    ],
    ids=["entries", "bytes", "skipped"],
)
def test_an_enforced_quota_denies_and_charges_nothing(
    story: Story, operator: Operator, policy: str, instead: str
) -> None:
    operator.switch(policy)
    (full,) = (name for name, limit in limits_of(story).items() if limit in (2, 8192))
    sinks = [story.sink() for _ in range(3)]
    for sink in sinks[:2]:
        assert story.materialize(story.option(), sink).status_code == 200
    held = story.charged()
    option = story.option()
    answer = story.materialize(option, sinks[2])
    assert error_code(answer) == (503, "materialization_unavailable")
    assert full in answer.json()["error"]["message"]
    assert story.charged() == held
    assert story.target.sink_facts(sinks[2])["state"] == "open"
    found = story.history(answer, ["fell_back"])
    assert (found["outcome"], found["fallback_reason"]) == ("unavailable", POLICY)
    assert found["path"][-2] == instead
    assert (found["inputs"]["quota"]["mode"], found["inputs"]["quota"]["exceeded"]) == (
        "enforced",
        [full],
    )
    # A copy on another worker is held, too.
    view = Moves(story).done()
    assert (view["status"], view["fallback_reason"]) == ("rejected", POLICY)
    assert full in view["detail"]
    assert story.charged() == held
    # Room again, and the same option is served.
    story.target.finish(sinks[0], "consume")
    until(lambda: story.charged() != held, "the consumed sink's charge is given back")
    assert story.materialize(option, sinks[2]).status_code == 200
    assert story.charged() == held


def limits_of(story: Story) -> dict[str, int]:
    return story.fleet.client.get(f"/v1/quotas/{story.tenant}").json()["limits"]


@pytest.mark.parametrize(
    ("policy", "recorded"),
    [
        (variant("latency-first", quota_admission_policy={"max_entries": 1}), ["max_entries"]),
        (variant("default", quota_admission_policy={"max_entries": 1}), None),
    ],
    ids=["advisory", "disabled"],
)
def test_a_quota_that_is_not_enforced_allows(
    story: Story, operator: Operator, policy: str, recorded: list[str] | None
) -> None:
    operator.switch(policy)
    for number in range(2):
        answer = story.materialize(story.option(), story.sink())
        quota = story.history(answer, ["completed"])["inputs"].get("quota")
        if recorded is None or number == 0:
            assert quota is None
        else:
            assert (quota["mode"], quota["exceeded"]) == ("advisory", recorded)
    view = Moves(story).done()
    found = Moves(story).decision(view, ["completed"])
    assert found["inputs"].get("quota", {}).get("exceeded") == recorded
    assert story.charged()["entries"] == 3
    story.target.delete(story.payload_id)


def test_transfers_that_run_are_counted_too(fleet: Fleet, story: Story, operator: Operator) -> None:
    one = {"mode": "enforced", "max_concurrent_transfers": 1}
    operator.switch(variant("default", quota_admission_policy=one))
    moves = Moves(story)
    with FalseSource(fleet, "node-false", story.data) as source, ThreadPoolExecutor(1) as pool:
        source.hang()
        story.register(generation=2, locator=f"node://node-false/state/{story.payload_id}")
        option, sink = story.option(), story.sink()
        running = pool.submit(moves.post)
        assert source.reached.wait(10)
        assert story.charged() == {
            "payload_bytes": len(story.data),
            "entries": 1,
            "transfers": 1,
        }
        second = moves.done("move-2")
        assert (second["status"], second["fallback_reason"]) == ("rejected", POLICY)
        answer = story.materialize(option, sink)
        assert "max_concurrent_transfers" in answer.json()["error"]["message"]
        moves.cancel()
        assert running.result().json()["status"] == "cancelled"
        source.be_honest()
        assert story.materialize(option, sink).status_code == 200
    assert story.charged() == {"payload_bytes": len(story.data), "entries": 1, "transfers": 0}


def test_two_racing_for_the_last_of_a_quota(story: Story, operator: Operator) -> None:
    operator.switch(variant("shared-fleet", quota_admission_policy={"max_entries": 1}))
    for attempt in range(3):
        options = [story.option() for _ in range(4)]
        sinks = [story.sink() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            answers = list(
                pool.map(
                    lambda number, options=options, sinks=sinks, attempt=attempt: story.materialize(
                        options[number], sinks[number], import_id=f"import-{attempt}-{number}"
                    ),
                    range(4),
                )
            )
        assert sorted(answer.status_code for answer in answers) == [200, 503, 503, 503]
        assert story.charged() == {"payload_bytes": len(story.data), "entries": 1, "transfers": 0}
        for sink in sinks:
            story.target.finish(sink, "discard")
        until(lambda: story.charged() == NOTHING, "the room is there again")


def test_a_retry_is_charged_once_and_may_take_another_way(
    fleet: Fleet, story: Story, operator: Operator
) -> None:
    """It failed at the worker by one backend; the next policy's backend fills the same sink."""
    operator.switch(shipped("default"))
    with FalseSource(fleet, "node-false", story.data) as source:
        source.follow(
            lambda connection: connection.sendall(
                stating(story.data) + bytes(len(story.data)) + trailer("0" * 32)
            )
        )
        story.register(generation=2, locator=f"node://node-false/state/{story.payload_id}")
        option, sink = story.option(), story.sink()
        for _ in range(2):
            answer = story.materialize(option, sink)
            assert error_code(answer) == (503, "materialization_unavailable")
            assert "cache_miss" in answer.json()["error"]["message"]
            assert story.charged() == NOTHING
        operator.switch(variant("shared-fleet", quota_admission_policy={"max_entries": 1}))
        source.be_honest()
        first = story.materialize(option, sink)
        assert_physical(story, first, sink, STAGED)
        # Over the limit by now, were it another one.
        assert story.materialize(option, sink).json() == first.json()
    assert story.charged() == {"payload_bytes": len(story.data), "entries": 1, "transfers": 0}


async def test_a_decision_in_flight_keeps_its_policy(
    story: Story, operator: Operator, database_of_fleet: Database
) -> None:
    before = operator.switch(shipped("default"))
    option, sink = story.option(), story.sink()
    async with database_of_fleet.write() as holder:
        await holder.execute(text("LOCK TABLE quota_charge"))
        answering = asyncio.create_task(asyncio.to_thread(story.materialize, option, sink))
        await somebody_waits(database_of_fleet)
        after = await asyncio.to_thread(operator.switch, shipped("shared-fleet"))
        assert not answering.done()
    answer = await answering
    assert before != after
    await asyncio.to_thread(assert_physical, story, answer, sink, BASELINE)
    found = await asyncio.to_thread(story.history, answer, ["completed"])
    assert (found["policy_version"], found["selected_path"]) == (
        before,
        f"nexuskv.worker.{BASELINE}",
    )
    answer = await asyncio.to_thread(lambda: story.materialize(story.option(), story.sink()))
    found = await asyncio.to_thread(story.history, answer, ["completed"])
    assert (found["policy_version"], found["selected_path"]) == (after, f"nexuskv.worker.{STAGED}")


@pytest.fixture
async def database_of_fleet(fleet: Fleet):
    async with Database(fleet.service.database_url) as database:
        yield database


async def somebody_waits(database: Database) -> None:
    """Returns once a statement of the service waits for the table."""
    async with asyncio.timeout(10):
        while True:
            async with database.read() as session:
                waiting = await session.execute(
                    text(
                        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                        " AND query LIKE '%quota_charge%'"
                    )
                )
            if waiting.scalar_one():
                return
            await asyncio.sleep(0.02)
