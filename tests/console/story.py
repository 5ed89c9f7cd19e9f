"""A service with something to look at: states, decisions of every ending, engines and workers.

What the tests of the console and the pictures in its documentation show.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.fixtures.service import ServiceProcess, decisions_of
from tests.fixtures.wire import (
    INPUT_IDENTITY,
    MODEL_IDENTITY,
    estimate_body,
    heartbeat_body,
    lookup,
    materialize_body,
    register,
    registration,
    source_handle,
)
from tests.process.waiting import until

TENANT = "acme"
MODEL = "llama-3-8b"
POLICY = Path(__file__).resolve().parents[2] / "policies" / "default.yaml"
SYSTEM_PROMPT = list(range(2_000))
AGENT_PROMPT = list(range(5_000, 6_500))
LOST_PROMPT = list(range(9_000, 9_600))
HERE, GONE = "node-a", "node-gone"
SILENCE_S = "1.5"
GIB = 1 << 30
LOAD = {
    "capacity_bytes": 64 * GIB, "used_bytes": 41 * GIB, "pinned_bytes": 3 * GIB,
    "payloads": 812, "sinks": 4, "transfers": 2,
}  # fmt: skip
NEW_MODEL = {**MODEL_IDENTITY, "model_revision": "rev-2"}


@dataclass
class Story:
    """Ids of decisions, by how they ended."""

    service: ServiceProcess
    ids: dict[str, str] = field(default_factory=dict)
    policies: list[int] = field(default_factory=list)


def tell(service: ServiceProcess, *, rounds: int = 3) -> Story:
    story = Story(service)
    with service.client() as client:
        _policies(client, story)
        _workers(client)
        _states(client)
        until(lambda: not client.get(f"/v1/workers/{GONE}").json()["available"], GONE)
        beat(client, HERE, load=LOAD, tiers=["host_dram", "local_ssd"])
        _engine(client)
        for _ in range(rounds):
            _requests(client)
        story.ids |= _chain(client)
        _plan(client)
        found = decisions_of(client, 7 * rounds + 4, tenant=TENANT)
        for one in found:
            story.ids.setdefault(one["outcome"], one["decision_id"])
    return story


def beat(client: httpx.Client, name: str, **changes: Any) -> None:
    client.put(f"/v1/workers/{name}", json=heartbeat_body(**changes)).raise_for_status()


def _policies(client: httpx.Client, story: Story) -> None:
    yaml = {"content-type": "application/yaml"}
    first = POLICY.read_text(encoding="utf-8")
    second = first.replace("on_policy_denial: true", "on_policy_denial: false")
    assert second != first
    for text, message in ((first, "as shipped"), (second, "skip what the policy denies")):
        answer = client.post(
            "/v1/policies", params={"message": message}, content=text, headers=yaml
        )
        story.policies.append(answer.raise_for_status().json()["number"])
    client.post(
        f"/v1/policies/{story.policies[0]}:activate", params={"message": "first roll-out"}
    ).raise_for_status()


def _workers(client: httpx.Client) -> None:
    beat(client, HERE, load=LOAD, tiers=["host_dram", "local_ssd"])
    beat(client, GONE, instance_id="0192f0c1-2345-7abc-8def-0123456789ac", load=LOAD)


def _states(client: httpx.Client) -> None:
    common = {"model": MODEL}
    results = register(
        client,
        registration(TENANT, "system-prompt", tokens=SYSTEM_PROMPT, **common),
        registration(
            TENANT, "agent-prompt", tokens=AGENT_PROMPT, locator="pool://agents/1", **common
        ),
        registration(
            TENANT, "lost-prompt", tokens=LOST_PROMPT, **common,
            locator=f"node://{GONE}/state/lost-prompt",
        ),
        registration("globex", "their-prompt", model=MODEL),
    )  # fmt: skip
    assert {one["status"] for one in results} == {201}, results


def _engine(client: httpx.Client) -> None:
    for name in ("vllm-0", "vllm-1"):
        spec = {"instance_id": name, "model": MODEL, "block_tokens": 16, "tenants": [TENANT]}
        client.post("/v1/engines", json=spec).raise_for_status()
    for number in (0, 1, 2):
        block = {
            "type": "BlockStored", "block_hashes": [number + 1],
            "parent_block_hash": number or None, "token_ids": list(range(16)), "block_size": 16,
            "medium": "GPU",
        }  # fmt: skip
        _push(client, "vllm-0", number, [block])
    _push(client, "vllm-1", 0, [])
    _push(client, "vllm-1", 7, [], lost=True)


def _push(
    client: httpx.Client, name: str, number: int, events: list[Any], *, lost: bool = False
) -> None:
    answer = client.post(
        f"/v1/engines/{name}/events",
        params={"sequence": number, "lost": lost},
        content=msgspec.msgpack.encode([time.time(), events, 0]),
        headers={"content-type": "application/msgpack"},
    )
    assert answer.status_code == 200, answer.text


def _requests(client: httpx.Client) -> None:
    """Lookups of each ending; what they are answered is not what this is about."""
    common = {"model": MODEL}
    longer = [*SYSTEM_PROMPT, 1, 2, 3]
    for changes in (
        {"tokens": longer},
        {"tokens": SYSTEM_PROMPT[:900]},
        {"tokens": [*AGENT_PROMPT, 7]},
        {"tokens": [77, 78, 79, 80]},
        {"tokens": longer, "model_identity": NEW_MODEL},
        {"tokens": longer, "semantic_type": "no_such_kind"},
        {"tokens": [*LOST_PROMPT, 1]},
    ):
        answer = lookup(client, TENANT, **common, **changes)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text


def _plan(client: httpx.Client) -> None:
    """A busy engine and an idle one, states of which one may be brought, and one that may not."""
    scope = {"engine_family": "sglang", "semantic_type": "mha_kv"}
    evidence = {
        "model_identity": MODEL_IDENTITY, "input_semantic_identity": INPUT_IDENTITY,
        "input_fingerprint": "of-the-plan",
    }  # fmt: skip
    tokens = [*SYSTEM_PROMPT, *range(30_000, 31_000)]
    body = {
        "query": {"tenant": TENANT, "model": MODEL, "tokens": tokens, "states": scope},
        "evidence": evidence,
        "targets": [
            {"engine_id": "vllm-0", "residency": "node-b", "queue_depth": 3,
             "running_prefill_tokens": 9_000, "running_decode_tokens": 40_000},
            {"engine_id": "vllm-1", "residency": "node-c", "queue_depth": 0,
             "running_prefill_tokens": 400},
            {"engine_id": "vllm-9"},
        ],
    }  # fmt: skip
    client.post("/v1/plans", json=body).raise_for_status()


def _chain(client: httpx.Client) -> dict[str, str]:
    handle = source_handle(client, TENANT, model=MODEL, tokens=[*SYSTEM_PROMPT, 1, 2, 3])
    body = estimate_body(handle, "system-prompt")
    option = client.post("/locus/v1/estimate", json=body).raise_for_status().json()
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    client.post(
        "/locus/v1/materialize",
        json=materialize_body(option),
        headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
    ).raise_for_status()
    found = decisions_of(client, 1, tenant=TENANT, outcome="acknowledged")[0]
    client.post(
        f"/v1/decisions/{found['decision_id']}/outcome",
        json={"status": "consumed", "observed_us": 640, "tokens": len(SYSTEM_PROMPT)},
    ).raise_for_status()
    return {"trace": trace, "acknowledged": found["decision_id"], "chain": found["root_id"]}
