"""Plans of the application in the test's loop: time, dry runs, exploring, crowds, no database."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from app.clock import seeded_random
from app.control.keys import Scope
from app.lifecycle.plan import explores
from tests.engines.rig import BLOCK, prompt, told
from tests.engines.wires import packed
from tests.fixtures.service import make_key
from tests.lifecycle.gate import Gate
from tests.lifecycle.in_process import InProcess, running
from tests.plans.conftest import Standing
from tests.plans.fleet import IDLE, reasons
from tests.policies.documents import document
from tests.profiles.documents import document as profile

PROMPT = prompt(1_000)
PATH = {"tier": "device", "latency_us": 0, "bytes_per_us": 200, "uncertainty": 0.1}


@pytest.fixture
async def process(database_url: str) -> AsyncIterator[InProcess]:
    async with running(database_url) as process:
        yield process


class Fleet:
    """`holder` has the whole prompt on its device, `n0` to `n7` nothing, each on its own node.

    A token takes 2 ms to compute, the prompt 2.6 s to bring; the links take `most` transfers.
    """

    def __init__(self, process: InProcess) -> None:
        self.process, self.client = process, process.client
        self.model, self.holder = f"m-{uuid4()}", f"holder-{uuid4()}"
        self.others = [f"n{number}" for number in range(8)]

    async def made(self, *, most: int = 0, uncertainty: float = 0.1) -> "Fleet":
        await self.tell(self.holder, PROMPT)
        for name in self.others:
            await self.tell(name, prompt(1, seed=9))
        path = PATH | {"uncertainty": uncertainty}
        await self.send("POST", "/v1/profiles", profile(2_000, model=self.model, paths=[path]))
        links = [
            {"source": self.holder, "target": name, "bandwidth_bytes_per_us": 200,
             "latency_us": 0, "max_in_flight": most}
            for name in self.others
        ]  # fmt: skip
        nodes = [{"name": name} for name in (self.holder, *self.others)]
        await self.send("PUT", "/v1/topology", {
            "schema_version": "nexuskv.topology.v1", "nodes": nodes, "links": links,
        })  # fmt: skip
        return self

    async def send(self, method: str, path: str, body: Any) -> Any:
        return (await self.client.request(method, path, json=body)).raise_for_status().json()

    async def tell(self, name: str, tokens: list[int]) -> None:
        spec = {"instance_id": name, "model": self.model, "block_tokens": BLOCK, "tenants": ["t"]}
        await self.send("POST", "/v1/engines", spec)
        answer = await self.client.post(
            f"/v1/engines/{name}/events?sequence=0", content=packed(told(tokens)),
            headers={"content-type": "application/octet-stream"},
        )  # fmt: skip
        answer.raise_for_status()

    async def ask(self, *targets: dict[str, Any], **changes: Any) -> httpx.Response:
        query = {"tenant": "t", "model": self.model, "tokens": PROMPT}
        body = {"query": query, "targets": list(targets)}
        key = changes.pop("key", None)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await self.client.post("/v1/plans", json=body | changes, headers=headers)

    async def plan(self, *targets: dict[str, Any], **changes: Any) -> dict[str, Any]:
        answer: dict[str, Any] = (await self.ask(*targets, **changes)).raise_for_status().json()
        return answer

    async def policy(self, *, active: bool = False, **bounds: Any) -> int:
        whole = document(schema_version="nexuskv.execution_policy.v2", cost_bounds=bounds)
        number: int = (await self.send("POST", "/v1/policies", whole))["number"]
        if active:
            await self.send("POST", f"/v1/policies/{number}:activate", {})
        return number


def idle(name: str, **changes: Any) -> dict[str, Any]:
    return {"engine_id": name, **IDLE, **changes}


async def test_a_link_is_free_again_once_its_transfer_should_be_over(
    process: InProcess, standing: Standing
) -> None:
    fleet = await Fleet(process).made(most=1)
    first = await fleet.plan(idle("n0"))
    assert (first["action"], reasons(first)) == ("transfer", {"slower": 1})
    busy = await fleet.plan(idle("n0"))
    assert (busy["action"], reasons(busy)) == ("recompute", {"link_busy": 1})
    # Another link has a count of its own, and another topology knows what runs.
    assert (await fleet.plan(idle("n1")))["action"] == "transfer"
    found = await fleet.send("GET", "/v1/topology", None)
    again = found["topology"]["document"] | {"tiers": [
        {"node": "n0", "tier": "host_dram", "capacity_bytes": 1}
    ]}  # fmt: skip
    await fleet.send("PUT", "/v1/topology", again)
    assert reasons(await fleet.plan(idle("n0"))) == {"link_busy": 1}
    standing.at_us += first["chosen"]["transfer_us"]
    assert (await fleet.plan(idle("n0")))["action"] == "transfer"


async def test_plans_at_once_reserve_no_more_than_a_link_takes(
    process: InProcess, standing: Standing
) -> None:
    fleet = await Fleet(process).made(most=1)
    plans = await asyncio.gather(*(fleet.plan(idle("n0")) for _ in range(24)))
    assert Counter(plan["action"] for plan in plans) == {"transfer": 1, "recompute": 23}
    assert sum(reasons(plan) == {"link_busy": 1} for plan in plans) == 23
    assert len({plan["decision_id"] for plan in plans}) == 24
    standing.at_us += max(plan["chosen"]["transfer_us"] or 0 for plan in plans)
    assert (await fleet.plan(idle("n0")))["action"] == "transfer"


async def test_a_quota_of_transfers_counts_the_tenants_own(
    process: InProcess, standing: Standing
) -> None:
    fleet = await Fleet(process).made()
    quota = {
        "mode": "enforced", "max_payload_bytes": 0, "max_entries": 0, "max_concurrent_transfers": 1,
    }  # fmt: skip
    whole = document(quota_admission_policy=quota)
    number = (await fleet.send("POST", "/v1/policies", whole))["number"]
    await fleet.send("POST", f"/v1/policies/{number}:activate", {})
    first = await fleet.plan(idle("n0"))
    assert first["action"] == "transfer"
    refused = await fleet.plan(idle("n1"))
    assert (refused["action"], reasons(refused)) == ("recompute", {"quota": 1})
    standing.at_us += first["chosen"]["transfer_us"]
    assert (await fleet.plan(idle("n1")))["action"] == "transfer"


async def test_a_dry_run_leaves_nothing(process: InProcess, database_url: str) -> None:
    fleet = await Fleet(process).made(most=1)
    number = await fleet.policy(min_gain_us=0)
    answers = [await fleet.ask(idle("n0"), policy=number) for _ in range(3)]
    for answer in answers:
        plan = answer.raise_for_status().json()
        assert (plan["action"], plan["decision_id"]) == ("transfer", None)
        assert plan["policy_version"].startswith(f"{number}:")
        assert "x-nexuskv-decision-id" not in answer.headers
    assert await process.decisions(kind="plan") == []
    assert len(process.services.planning.reservations) == 0
    unknown = await fleet.ask(idle("n0"), policy=999_999)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    scopes = (Scope.BRIDGE,), (Scope.BRIDGE, Scope.POLICIES_READ)
    without, allowed = (make_key(database_url, *given) for given in scopes)
    refused = await fleet.ask(idle("n0"), policy=number, key=without)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await fleet.ask(idle("n0"), key=without)).status_code == 200
    process.clock.advance(60)
    assert (await fleet.ask(idle("n0"), policy=number, key=allowed)).status_code == 200


def test_what_is_explored_is_settled_by_the_id_and_a_share_of_all() -> None:
    chance = seeded_random(7)
    ids = [UUID(int=chance.getrandbits(128), version=4) for _ in range(20_000)]
    for share in (0.0, 0.01, 0.1):
        taken = [one for one in ids if explores(one, share)]
        assert taken == [one for one in ids if explores(one, share)]
        assert abs(len(taken) - 20_000 * share) <= 4 * (20_000 * share) ** 0.5
    # A larger share explores what a smaller one does, and more.
    few, many = ({one for one in ids if explores(one, share)} for share in (0.01, 0.1))
    assert few < many


async def test_what_is_uncertain_is_tried_for_a_share_and_never_too_late(
    process: InProcess,
) -> None:
    fleet = await Fleet(process).made(uncertainty=5)
    certain = await fleet.plan(idle("n0"))
    assert reasons(certain) == {"gain_uncertain": 1}
    brings_us = next(
        one["total_us"] for one in certain["alternatives"] if one["source"] is not None
    )
    await fleet.policy(active=True, exploration_share=0.1)
    plans = [await fleet.plan(idle("n0")) for _ in range(200)]
    explored = [plan for plan in plans if plan["explored"]]
    assert 1 <= len(explored) <= 60
    for plan in plans:
        by_id = explores(UUID(plan["decision_id"]), 0.1)
        assert plan["explored"] == by_id
        assert plan["action"] == ("transfer" if by_id else "recompute")
    late = [await fleet.plan(idle("n0"), deadline_us=brings_us // 2) for _ in range(200)]
    assert not any(plan["explored"] for plan in late)


async def test_a_popular_prefix_does_not_overload_its_holder(process: InProcess) -> None:
    """Fifty requests for it: each waits behind those before it, as its caller reports."""
    fleet = await Fleet(process).made()
    loads = dict.fromkeys((fleet.holder, *fleet.others), 0)
    depths, chosen = Counter[str](), Counter[str]()
    for _ in range(50):
        plan = await fleet.plan(
            *(
                idle(name, queue_depth=depths[name], running_prefill_tokens=tokens)
                for name, tokens in loads.items()
            )
        )
        way = plan["chosen"]
        name = way["engine_id"]
        chosen[name] += 1
        depths[name] += 1
        loads[name] += max(way["computed_tokens"], 400)
        # Nobody waits where another target would have had it sooner.
        others = [one["total_us"] for one in plan["alternatives"] if one["lost"] == "slower"]
        assert way["total_us"] <= min(others)
    assert chosen[fleet.holder] < 25
    assert len(chosen) == 9
    queued_us = {name: 2_000 * tokens for name, tokens in loads.items()}
    # Beyond the others by no more than what bringing the whole prompt takes.
    assert queued_us[fleet.holder] <= max(queued_us[one] for one in fleet.others) + 4_000 * 2_000


async def test_plans_are_made_without_a_database_and_stored_later(database_url: str) -> None:
    async with Gate(database_url) as gate, running(database_url, served_url=gate.url) as process:
        fleet = await Fleet(process).made()
        gate.close()
        plans = [await fleet.plan(idle("n0"), idle(fleet.holder)) for _ in range(20)]
        assert {plan["action"] for plan in plans} == {"route_to_state"}
        number = plans[0]["decision_id"]
        away = await process.client.get(f"/v1/plans/{number}")
        assert (away.status_code, away.json()["code"]) == (503, "database_unavailable")
        gate.open()
        process.clock.advance(2)
        kept = await process.decisions(kind="plan")
        assert {one["decision_id"] for one in kept} == {plan["decision_id"] for plan in plans}
        found = await process.client.get(f"/v1/plans/{number}")
        assert found.raise_for_status().json()["chosen"] == plans[0]["chosen"]
