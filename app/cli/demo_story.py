"""The whole story of one state, told by a client: from the upload of its bytes to the outcome."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import msgspec
from xxhash import xxh3_128_hexdigest

from app.clock import Clock
from app.contract.registration import parse_registration
from app.contract.sizes import payload_bytes
from app.transfer.wire import CHECKSUM_HEADER, SINK_NAMESPACE

TENANT: Final = "demo"
SOURCE, TARGET = "node-a", "node-b"
PAYLOAD_ID: Final = "prompt-1"
ENGINE: Final = {"engine_id": "engine-1", "engine_generation": 1}
_WAIT_S: Final = 20.0
_POLL_S: Final = 0.05
_BRIDGE: Final = "locus.nexuskv-bridge.v1"
_CONTRACT: Final = "nexuskv.contract.v1"
_MODEL: Final = {"model_revision": "demo-1", "adapter_revision": None, "execution_profile": "std"}
_INPUT: Final = {
    "tokenizer": {"kind": "tokenizer", "revision": "v1", "fingerprint": "tokenizer-v1"},
    "template": {"kind": "template", "revision": "v1", "fingerprint": "template-v1"},
    "multimodal_preprocessing": None,
}


class StoryError(Exception):
    """A step did not go as it should; the message says which and how."""


def patiently(look: Callable[[], bool], clock: Clock, wait_s: float, otherwise: str) -> None:
    """Returns once `look` says so; raises StoryError, saying what is wrong, after `wait_s`."""
    end_us = clock.monotonic_us() + round(wait_s * 1_000_000)
    pause = threading.Event()
    while not look():
        if clock.monotonic_us() > end_us:
            raise StoryError(otherwise)
        pause.wait(_POLL_S)


@dataclass(slots=True)
class Told:
    """One step as it happened."""

    title: str
    request: str
    facts: dict[str, Any]


@dataclass(slots=True)
class Story:
    """A client of the API at `url` with an admin's key, and of its workers with their tokens."""

    url: str
    key: str
    tokens: int
    random_bytes: Callable[[int], bytes]
    clock: Clock
    payload: bytes = b""
    registration: dict[str, Any] = field(default_factory=dict)
    lookup: dict[str, Any] = field(default_factory=dict)
    estimate: dict[str, Any] = field(default_factory=dict)
    sink_id: str = ""
    receipt: dict[str, Any] = field(default_factory=dict)
    content: bytes = b""
    decision_id: str = ""

    def tell(self) -> Iterator[Told]:
        """Runs the steps one by one. Raises StoryError at the first that goes wrong."""
        for step in (
            self._upload, self._register, self._look_up, self._estimate, self._create_sink,
            self._materialize, self._read_back, self._consume, self._history,
        ):  # fmt: skip
            yield step()

    @property
    def prompt(self) -> list[int]:
        return [(position * 7_919) % 50_000 for position in range(self.tokens)]

    def _upload(self) -> Told:
        self.registration = _registration(self.prompt)
        descriptor = parse_registration(self.registration).entry.descriptor
        state_bytes = payload_bytes(descriptor, self.tokens)
        assert state_bytes is not None
        self.payload = self.random_bytes(state_bytes)
        path = f"/v1/payloads/{PAYLOAD_ID}"
        worker, token = self._token(SOURCE, "put_payload", payload_id=PAYLOAD_ID)
        answer = _checked(
            httpx.put(worker + path, content=self.payload, headers=_bearer(token), timeout=_WAIT_S)
        )
        return Told(
            f"An engine uploads the state's bytes to worker {SOURCE}",
            f"PUT {worker}{path}",
            {"payload_bytes": len(self.payload), "xxh3_128": answer.headers[CHECKSUM_HEADER]},
        )

    def _register(self) -> Told:
        found = self._api("POST", "/v1/states", {"entries": [self.registration]})["results"][0]
        location = self.registration["entry"]["location"]
        return Told(
            "It registers the state",
            "POST /v1/states",
            {"entry_id": found["entry_id"], "result": found["result"], **location},
        )

    def _look_up(self) -> Told:
        """Another prompt that begins with the same tokens."""
        key = self.registration["entry"]["identity"]["key"]
        identity = {
            name: key[name]
            for name in ("tenant", "namespace", "model", "engine_family", "semantic_type")
        }
        body = {
            "schema_version": _BRIDGE,
            "nexuskv_schema_version": _CONTRACT,
            "identity": identity | {"tokens": [*self.prompt, 1, 2, 3]},
            "locus_model_identity": _MODEL,
            "locus_input_semantic_identity": _INPUT,
            "input_fingerprint": "demo-longer-prompt",
        }
        found = self._api("POST", "/locus/v1/lookup", body)["match_result"]
        if found is None:
            raise StoryError("the lookup found nothing")
        self.lookup = found
        return Told(
            "An orchestrator looks a longer prompt up",
            "POST /locus/v1/lookup",
            {"classification": found["classification"], **found["matched_extent"]},
        )

    def _estimate(self) -> Told:
        location = self.lookup["entry"]["location"]
        body = {
            "schema_version": _BRIDGE,
            "source_handle": self.lookup["validation"]["source_handle"],
            "source_state": self.lookup["entry"]["identity"]["entry_id"],
            "source_locator": location["locator"],
            "source_tier": location["tier"],
            "target_id": "target-1",
            "target_engine_id": ENGINE["engine_id"],
            "target_engine_generation": ENGINE["engine_generation"],
            "target_residency": TARGET,
        }
        self.estimate = self._api("POST", "/locus/v1/estimate", body)
        return Told(
            f"It asks what bringing it to {TARGET} would cost",
            "POST /locus/v1/estimate",
            {name: self.estimate[name] for name in
             ("locality", "topology_path", "estimated_transfer_micros")},
        )  # fmt: skip

    def _create_sink(self) -> Told:
        worker, token = self._token(TARGET, "create_sink")
        body = {"payload_bytes": len(self.payload), **ENGINE}
        answer = _checked(
            httpx.post(f"{worker}/v1/sinks", json=body, headers=_bearer(token), timeout=_WAIT_S)
        ).json()
        self.sink_id = answer["sink_id"]
        return Told(
            f"The engine makes a sink on {TARGET}: memory that it lets be filled",
            f"POST {worker}/v1/sinks",
            {"sink_id": self.sink_id, "state": answer["state"]},
        )

    def _materialize(self) -> Told:
        body = {
            "schema_version": _BRIDGE,
            "option_id": self.estimate["option_id"],
            "option_handle": self.estimate["option_handle"],
            "import_id": "import-1",
            "target_id": "target-1",
            "target_engine_id": ENGINE["engine_id"],
            "target_engine_generation": ENGINE["engine_generation"],
            "sink_namespace": SINK_NAMESPACE,
            "sink_value": self.sink_id,
        }
        answer = self._ask("POST", "/locus/v1/materialize", body)
        self.decision_id = answer.headers["x-nexuskv-decision-id"]
        self.receipt = answer.json()
        evidence = self.receipt["evidence"]
        return Told(
            "It materializes: the bytes go from worker to worker and are verified there",
            "POST /locus/v1/materialize",
            {
                "level": evidence["level"],
                "execution_backend": evidence["execution_backend"],
                "bytes_transferred": self.receipt["bytes_transferred"],
                **self.receipt["receipt"],
            },
        )

    def _read_back(self) -> Told:
        worker, token = self._token(TARGET, "read_sink", sink_id=self.sink_id)
        path = f"/v1/sinks/{self.sink_id}/content"
        content = _checked(
            httpx.get(worker + path, headers=_bearer(token), timeout=_WAIT_S)
        ).content
        self.content = content
        checksum = xxh3_128_hexdigest(content)
        if content != self.payload or not self.receipt["receipt"]["value"].endswith(checksum):
            raise StoryError("the sink holds other bytes than the receipt says")
        return Told(
            "The engine reads the sink: the bytes are those that were uploaded",
            f"GET {worker}{path}",
            {"content_bytes": len(content), "xxh3_128": checksum, "equal": True},
        )

    def _consume(self) -> Told:
        worker, token = self._token(TARGET, "finish_sink", sink_id=self.sink_id)
        path = f"/v1/sinks/{self.sink_id}:consume"
        answer = _checked(
            httpx.post(worker + path, json=ENGINE, headers=_bearer(token), timeout=_WAIT_S)
        ).json()
        return Told(
            "The runtime takes it: its word is the decision's outcome",
            f"POST {worker}{path}",
            {"state": answer["state"]},
        )

    def _history(self) -> Told:
        path = f"/v1/decisions/{self.decision_id}"
        found: dict[str, Any] = {}
        statuses: list[str] = []

        def whole() -> bool:
            found.update(self._ask("GET", path, None, allow=(200, 404)).json())
            statuses[:] = [outcome["status"] for outcome in found.get("outcomes", ())]
            return "consumed" in statuses

        patiently(whole, self.clock, _WAIT_S, "the runtime's word did not reach the history")
        return Told(
            "The history has it all",
            f"GET {path}",
            {
                "chain": [f"{link['kind']}: {link['outcome']}" for link in found["chain"]],
                "outcomes": statuses,
                "path": found["path"],
                "policy_version": found["policy_version"],
            },
        )

    def _token(self, worker: str, direction: str, **ids: str) -> tuple[str, str]:
        """(the worker's URL, a token for one thing there)."""
        body = {"worker": worker, "tenant": TENANT, "direction": direction, **ids}
        found = self._api("POST", "/v1/worker-tokens", body)
        return found["url"], found["token"]

    def _api(self, method: str, path: str, body: Any) -> Any:
        return self._ask(method, path, body).json()

    def _ask(
        self, method: str, path: str, body: Any, allow: tuple[int, ...] = ()
    ) -> httpx.Response:
        answer = httpx.request(
            method, self.url + path, json=body, headers=_bearer(self.key), timeout=_WAIT_S
        )
        return answer if answer.status_code in allow else _checked(answer)


def _checked(answer: httpx.Response) -> httpx.Response:
    if not answer.is_success:
        raise StoryError(f"{answer.request.url} answered {answer.status_code}: {answer.text}")
    return answer


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _registration(prompt: list[int]) -> dict[str, Any]:
    """A small grouped-query state: 4 layers, 2 heads of 64, half precision."""
    shape = ["layers", "tokens", "2", "64"]
    key = {
        "tenant": TENANT, "namespace": "default", "model": "demo-model", "engine_family": "vllm",
        "semantic_type": "gqa_kv", "tokens": prompt, "block_id": None, "page_id": None,
    }  # fmt: skip
    entry = {
        "identity": {
            "key": key,
            "entry_id": "demo-state",
            "version": {"generation": 1, "lineage": "demo"},
        },
        "descriptor": {
            "schema_version": _CONTRACT,
            "descriptor_id": "demo-gqa",
            "engine_family": "vllm",
            "semantic_type": "gqa_kv",
            "granularity": "block",
            "tensor_specs": [
                {"name": name, "role": role, "dtype": "float16", "shape": shape}
                for name, role in (("k_cache", "key"), ("v_cache", "value"))
            ],
            "quantization": {"scheme": "none", "bits": 16, "group_size": 0},
            "layout": {"layout": "paged", "page_tokens": 16, "block_tokens": 16, "packed": False},
            "compatibility_flags": ["exact_reuse", "prefix_reuse", "block_reuse"],
            "transfer_paths": [],
            "materialization": {
                "capabilities": ["full", "partial", "prefetch", "fallback_recompute"],
                "tier_kinds": [], "device_classes": [], "buffer_kinds": [],
            },
            "layout_metadata": {"layers": "4"},
        },
        "location": {"tier": "host_dram", "locator": f"node://{SOURCE}/state/{PAYLOAD_ID}"},
        "policy_hint": {"reusable": True, "admission_hint": "demo", "eviction_hint": "retain"},
    }  # fmt: skip
    return {
        "reuse_key": {"identity": key},
        "entry": entry,
        "validation": {
            "model_identity": _MODEL,
            "input_semantic_identity": _INPUT,
            "input_fingerprint": "demo-prompt",
        },
    }


def as_json(told: list[Told], story: Story) -> bytes:
    """The steps and the last answer's receipt, for a program."""
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "steps": told,
                "receipt": story.receipt,
                "decision_id": story.decision_id,
            }
        ),
        indent=2,
    )
