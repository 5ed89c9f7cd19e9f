"""A plan made again from its record: the same one, or an answer that says why there is none."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from sqlalchemy import text

from app.contract.enums import DeviceClass
from app.db.session import Database
from app.decisions.record import DecisionKind
from app.errors import ErrorCode, NexusError
from app.lifecycle.plan_again import planned_again
from app.lifecycle.plan_question import Asked, Note, Origin
from app.lifecycle.plan_record import asked_again, record_of, recorded_of
from app.lifecycle.plan_told import Teller
from app.planner.choose import plan
from app.planner.question import PlanExclusion, Question
from app.policy.document import load_policy
from app.policy.provider import ActivePolicy
from app.settings import DEFAULT_POLICY_FILE
from tests.fixtures.database import run_elsewhere
from tests.fixtures.service import ServiceProcess
from tests.plans.fleet import PlanFleet, stored
from tests.profiles.documents import document as profile
from tests.topology.fleets import link
from tests.unit.planner.questions import question, source, target
from tests.unit.planner.test_planner_oracle import BARRED, QUESTIONS, barring, usable

POLICY = load_policy(DEFAULT_POLICY_FILE.read_bytes())
ACTIVE = ActivePolicy(POLICY, "1:x", None)


def asked_of(asked: Question) -> Asked:
    origins = tuple(
        Origin("state" if n % 2 else "engine", one.entry_id, None, n)
        for n, one in enumerate(asked.sources)
    )
    return Asked(asked, origins, (Note("somebody", "says so"),))


def written(asked: Asked, topology: int | None = 1) -> Any:
    """A row of the history, as the database gives it back."""
    devices = tuple([DeviceClass.CUDA, None][n % 2] for n in range(len(asked.question.targets)))
    record = json.loads(msgspec.json.encode(record_of(asked, devices, topology)))
    return SimpleNamespace(kind=DecisionKind.PLAN, inputs={"v": 1, "plan": record}), devices


@settings(max_examples=200, deadline=None)
@given(asked=st.builds(barring, QUESTIONS.filter(usable), BARRED), explore=st.booleans())
def test_what_is_recorded_makes_the_same_plan(asked: Question, *, explore: bool) -> None:
    known = asked_of(structs.replace(asked, explore=explore))
    row, devices = written(known)
    # What the topology itself says has nothing on its way.
    bare = asked.links.copy()
    for nodes, running in list(bare.running.items()):
        bare.begin(*nodes, -running)
    again, same_devices = asked_again(recorded_of(row), bare)
    assert same_devices == devices
    assert again.notes == known.notes
    made, before = plan(again.question), plan(known.question)
    assert Teller(again, POLICY, devices).plan(made) == Teller(known, POLICY, devices).plan(before)


def corrupt(change: Any) -> NexusError:
    """What is answered where a record was changed."""
    asked = question(targets=(target(), target("e2")), sources=(source(), source("s2")))
    row, _ = written(asked_of(structs.replace(asked, barred={(0, 1): PlanExclusion.QUOTA})))
    row.estimate, row.policy_version = {"total_us": 0}, "1:x"
    change(row.inputs["plan"])
    with pytest.raises(NexusError) as caught:
        planned_again(row, recorded_of(row), ACTIVE, plan_links(), full=True)
    return caught.value


def plan_links() -> Any:
    return question().links


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.clear(),
        lambda record: record.update(v=2),
        lambda record: record.update(v="1"),
        lambda record: record.update(tokens=0),
        lambda record: record.update(tokens=-5),
        lambda record: record.update(targets=[]),
        lambda record: record.update(profiles=[]),
        lambda record: record.update(origins=[]),
        lambda record: record.update(barred={"quota": [[7, 0]]}),
        lambda record: record.update(barred={"quota": [[0, -3]]}),
        lambda record: record.update(barred={"whim": [[0, 0]]}),
        lambda record: record.update(barred={"slower": [[0, 0]]}),
        lambda record: record["targets"][0].update(profile=-1),
        lambda record: record["targets"][0].update(engine_id="e1/rank"),
        lambda record: record["targets"][0].update(queued_prefill_tokens=10**300),
        lambda record: record["sources"][0].update(tier="tape"),
        lambda record: record["sources"][0].update(tokens=[]),
        lambda record: record["profiles"][0]["prefill"].update(per_pair_us=1e300),
        lambda record: record.update(bounds=None),
        lambda record: record.update(in_flight=[["a", "b"]]),
        # Whole, and not what was answered: another planner made it.
        lambda record: record.update(tokens=6_000),
    ],
)
def test_a_record_that_is_broken_is_not_made_again(change: Any) -> None:
    assert corrupt(change).code is ErrorCode.NOT_RERUNNABLE


@pytest.fixture
def fleet(module_service: ServiceProcess) -> Iterator[PlanFleet]:
    made = PlanFleet(module_service)
    yield made
    made.client.close()


def put(fleet: PlanFleet, latency_us: float) -> int:
    document = {
        "schema_version": "nexuskv.topology.v1",
        "nodes": [{"name": "a"}, {"name": "b"}],
        "engines": [
            {"engine_id": fleet.warm, "node": "a"}, {"engine_id": fleet.cold, "node": "b"}
        ],
        "links": [link(latency_us=latency_us, bandwidth_bytes_per_us=50, max_in_flight=2)],
    }  # fmt: skip
    answer = fleet.client.put("/v1/topology", json=document).raise_for_status()
    version: int = answer.json()["version"]
    return version


def copied(service: ServiceProcess, decision_id: str, changes: str) -> str:
    """The id of a copy of a decision with other columns: the history is insert-only."""
    statement = (
        "INSERT INTO decision SELECT (jsonb_populate_record(one, jsonb_build_object("
        f"'decision_id', CAST(:copy AS text), {changes}))).*"
        " FROM decision AS one WHERE decision_id = CAST(:id AS uuid)"
    )
    # Of the same moment, by which a decision is found.
    copy = decision_id[:-12] + uuid4().hex[:12]

    async def insert() -> None:
        database = Database(service.database_url, pool_connections=1)
        try:
            async with database.write() as session:
                await session.execute(text(statement), {"id": decision_id, "copy": copy})
        finally:
            await database.close()

    run_elsewhere(insert())
    return copy


def explained(fleet: PlanFleet, decision_id: str) -> tuple[int, Any]:
    answer = fleet.client.get(f"/v1/plans/{decision_id}")
    return answer.status_code, answer.json().get("chosen") or answer.json()["code"]


def test_its_own_transfer_and_later_topologies_change_nothing(fleet: PlanFleet) -> None:
    """The third finds two on the link, of seconds each, and the link full."""
    slow = profile(100_000, model=fleet.model, paths=[])
    fleet.client.post("/v1/profiles", json=slow).raise_for_status()
    version = put(fleet, 50_000 / 7)
    made = [fleet.plan(fleet.target(fleet.cold)) for _ in range(3)]
    assert [one["action"] for one in made] == ["transfer", "transfer", "recompute"]
    assert made[1]["chosen"]["transfer_us"] > made[0]["chosen"]["transfer_us"]
    assert {one["topology_version"] for one in made} == {version}
    stored(fleet.client, made[2]["decision_id"])
    put(fleet, 3)
    for one in made:
        assert explained(fleet, one["decision_id"]) == (200, one["chosen"])


@pytest.mark.parametrize(
    "changes",
    [
        "'inputs', jsonb_build_object()",
        "'inputs', jsonb_build_array(1)",
        "'inputs', jsonb_set(inputs, ARRAY['plan', 'v'], to_jsonb(2))",
        "'inputs', jsonb_set(inputs, ARRAY['plan', 'topology'], to_jsonb(10000))",
        "'inputs', jsonb_set(inputs, ARRAY['plan', 'tokens'], to_jsonb(1))",
        "'policy_version', 'nobody knows'",
        "'policy_version', 'file\\:sha256\\:0'",
    ],
)
def test_what_cannot_be_made_again_is_said_to_be(
    fleet: PlanFleet, module_service: ServiceProcess, changes: str
) -> None:
    plan = fleet.plan(fleet.target(fleet.cold))
    stored(fleet.client, plan["decision_id"])
    whole = copied(module_service, plan["decision_id"], "'tenant', tenant")
    assert explained(fleet, whole) == (200, plan["chosen"])
    broken = copied(module_service, plan["decision_id"], changes)
    assert explained(fleet, broken) == (409, "not_rerunnable")
