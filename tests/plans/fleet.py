"""Engines of a tenant and a model of their own, and plans over them."""

import time
from typing import Any
from uuid import uuid4

import httpx

from tests.engines.rig import BLOCK, prompt, told
from tests.engines.wires import packed
from tests.fixtures.service import ServiceProcess
from tests.fixtures.wire import FINGERPRINT, INPUT_IDENTITY, MODEL_IDENTITY, new_tenant

# 4,000 tokens: by the reference profile 20 ms to compute, 0.2 ms to bring from a device.
PROMPT = prompt(1_000)
EVIDENCE = {
    "model_identity": MODEL_IDENTITY,
    "input_semantic_identity": INPUT_IDENTITY,
    "input_fingerprint": FINGERPRINT,
}
IDLE = {"queue_depth": 0, "running_prefill_tokens": 0, "running_decode_tokens": 0}
SCOPE = {"engine_family": "sglang", "semantic_type": "mha_kv"}


class PlanFleet:
    """Two engines of a tenant: `warm` has 3,200 tokens of PROMPT on its device, `cold` nothing."""

    def __init__(self, service: ServiceProcess) -> None:
        self.tenant, self.model = new_tenant(), f"m-{uuid4()}"
        self.warm, self.cold = f"warm-{uuid4()}", f"cold-{uuid4()}"
        self.client = service.client()
        self.tell(self.warm, told(PROMPT[:3_200]))
        self.tell(self.cold, told(prompt(1, seed=5)))

    def tell(self, name: str, *events: Any, sequence: int = 0, **registered: Any) -> None:
        registration = {
            "instance_id": name, "model": self.model, "block_tokens": BLOCK,
            "tenants": [self.tenant], **registered,
        }  # fmt: skip
        self.client.post("/v1/engines", json=registration).raise_for_status()
        self.client.post(
            f"/v1/engines/{name}/events",
            params={"sequence": sequence},
            content=packed(*events),
            headers={"content-type": "application/octet-stream"},
        ).raise_for_status()

    def body(self, *targets: dict[str, Any], **changes: Any) -> dict[str, Any]:
        query = {"tenant": self.tenant, "model": self.model, "tokens": PROMPT}
        query |= changes.pop("query", {})
        return {"query": query, "targets": list(targets), **changes}

    def target(self, engine_id: str, **changes: Any) -> dict[str, Any]:
        return {"engine_id": engine_id, **IDLE, **changes}

    def ask(self, *targets: dict[str, Any], **changes: Any) -> httpx.Response:
        return self.client.post("/v1/plans", json=self.body(*targets, **changes))

    def plan(self, *targets: dict[str, Any], **changes: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask(*targets, **changes).raise_for_status().json()
        return answer


def reasons(plan: dict[str, Any]) -> dict[str, int]:
    """How many alternatives were not taken, by reason."""
    return {one["reason"]: one["count"] for one in plan["excluded"]}


def stored(client: httpx.Client, decision_id: str, wait_s: float = 10.0) -> dict[str, Any]:
    """The decision once it is in the history: some moments after its answer."""
    end_s = time.monotonic() + wait_s
    while True:
        answer = client.get(f"/v1/decisions/{decision_id}")
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            return found
        assert time.monotonic() < end_s, answer.text
