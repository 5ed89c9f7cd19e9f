"""A tier of a node is read by as many transfers as the topology says, and no more."""

from typing import Any

from tests.lifecycle.in_process import InProcess
from tests.plans.conftest import Standing
from tests.plans.fleet import EVIDENCE, IDLE, PROMPT, SCOPE, reasons

TOPOLOGY = """
schema_version: nexuskv.topology.v1
nodes: [{name: node-a}, {name: node-b}]
engines: []
links: []
tiers: [{node: node-a, tier: host_dram, capacity_bytes: 1000000, max_in_flight: 1}]
"""


async def test_a_tier_that_is_read_by_as_many_as_it_takes_is_left_alone(
    process: InProcess, standing: Standing
) -> None:
    await process.services.topology_store.put(TOPOLOGY, "tests")
    await process.services.topology.refresh()
    await process.register("tiers", "state-1", tokens=PROMPT)
    query = {"tenant": "tiers", "model": "model-1", "tokens": [*PROMPT, 1], "states": SCOPE}
    target = {"engine_id": "e1", "residency": "node-b", **IDLE}

    async def plan() -> dict[str, Any]:
        body = {"query": query, "targets": [target], "evidence": EVIDENCE}
        found: dict[str, Any] = (await process.post("/v1/plans", body)).raise_for_status().json()
        return found

    first = await plan()
    assert (first["action"], first["chosen"]["source"]["node"]) == ("transfer", "node-a")
    second = await plan()
    assert (second["action"], reasons(second)) == ("recompute", {"link_busy": 1})
    # The first one is over by now.
    standing.at_us = first["chosen"]["transfer_us"]
    assert (await plan())["action"] == "transfer"
