"""The tour of the README: what a Locus client does, with nothing but the standard library.

python3 docs/tour/tour.py [URL] [API_KEY]
"""

import json
import sys
import time
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9099"
KEY = sys.argv[2] if len(sys.argv) > 2 else None
BRIDGE = "locus.nexuskv-bridge.v1"
HISTORY_WAIT_S = 15


def call(
    method: str, path: str, body: dict | None = None, allow: tuple[int, ...] = ()
) -> tuple[dict, Message]:
    """The decoded answer of the API and its headers."""
    data = json.dumps(body).encode() if body is not None else None
    return send(method, URL + path, KEY, data, "application/json", allow=allow)


def send(
    method: str,
    url: str,
    key: str | None,
    data: bytes | None,
    content_type: str,
    *,
    allow: tuple[int, ...] = (),
) -> tuple[dict, Message]:
    headers = {"content-type": content_type}
    if key:
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"{}"), answer.headers
    except urllib.error.HTTPError as error:
        if error.code in allow:
            return json.loads(error.read()), error.headers
        sys.exit(f"{url} answered {error.code}: {error.read().decode()}")
    except urllib.error.URLError as error:
        sys.exit(f"No NexusKV at {url} ({error.reason}). Start it with `make up`.")


def show(title: str, **values: object) -> None:
    print(f"\n{title}")
    for name, value in values.items():
        print(f"  {name:<16} {value}")


batch = json.loads(Path(__file__).with_name("state.json").read_text())
state = batch["entries"][0]
registered, _ = call("POST", "/v1/states", batch)
show("1. An engine registers a state", **registered["results"][0])

# A prompt that begins with the registered one and goes on.
identity = state["reuse_key"]["identity"]
query = {name: value for name, value in identity.items() if name not in ("block_id", "page_id")}
query["tokens"] = [*identity["tokens"], 900, 901, 902]
found, headers = call(
    "POST",
    "/locus/v1/lookup",
    {
        "schema_version": BRIDGE,
        "nexuskv_schema_version": "nexuskv.contract.v1",
        "identity": query,
        "locus_model_identity": state["validation"]["model_identity"],
        "locus_input_semantic_identity": state["validation"]["input_semantic_identity"],
        "input_fingerprint": "another prompt",
    },
)
match = found["match_result"]
entry = match["entry"]
show(
    "2. An orchestrator looks up a longer prompt",
    classification=match["classification"],
    matched_tokens=f"{match['matched_extent']['units']} of {len(query['tokens'])}",
    entry_id=entry["identity"]["entry_id"],
    location=entry["location"]["locator"],
    decision=headers["X-NexusKV-Decision-Id"],
)

target = {"target_id": "t-1", "target_engine_id": "engine-1", "target_engine_generation": 1}
option, headers = call(
    "POST",
    "/locus/v1/estimate",
    {
        "schema_version": BRIDGE,
        "source_state": entry["identity"]["entry_id"],
        "source_handle": match["validation"]["source_handle"],
        "source_locator": entry["location"]["locator"],
        "source_tier": entry["location"]["tier"],
        "target_residency": "node-b",
        **target,
    },
)
show(
    "3. What would it cost to bring it to node-b?",
    locality=option["locality"],
    path=option["topology_path"],
    transfer_us=option["estimated_transfer_micros"],
    option_id=option["option_id"],
)

done, headers = call(
    "POST",
    "/locus/v1/materialize",
    {
        "schema_version": BRIDGE,
        "option_id": option["option_id"],
        "option_handle": option["option_handle"],
        "import_id": f"import-of-{option['option_id']}",
        "sink_namespace": "example.sink.v1",
        "sink_value": "sink-1",
        **target,
    },
)
show(
    "4. Bring it (protocol evidence: nothing is moved yet, and the receipt says so)",
    receipt=done["receipt"]["value"],
    evidence=done["evidence"]["level"],
    verified=done["evidence"]["physical_transfer_verified"],
    bytes=done["bytes_transferred"],
)

decision_id = headers["X-NexusKV-Decision-Id"]
show("5. The history: one decision for each answer, chained", tenant=identity["tenant"])
deadline_s = time.monotonic() + HISTORY_WAIT_S
# Decisions are stored in batches, a fraction of a second behind the answers.
while "chain" not in (history := call("GET", f"/v1/decisions/{decision_id}", allow=(404,))[0]):
    if time.monotonic() > deadline_s:
        sys.exit(f"The history has no decision {decision_id} after {HISTORY_WAIT_S} s: {history}")
    time.sleep(0.1)
for item in history["chain"]:
    print(f"  {item['kind']:<12} {item['outcome']:<13} {' > '.join(item['path'])}")

WORKER, PAYLOAD, COPY = "local", "tour-prompt", "tour-copy"
tenant = identity["tenant"]
heard = {one["name"] for one in call("GET", "/v1/workers")[0]["items"] if one["available"]}
if WORKER not in heard:
    sys.exit(f"\nSteps 6 to 8 need a worker named {WORKER}, which `make up` starts.")


def with_token(direction: str, method: str, payload_id: str, data: bytes | None = None) -> dict:
    """One request of the worker, with a token for just that."""
    asked = {"worker": WORKER, "tenant": tenant, "direction": direction, "payload_id": payload_id}
    token, _ = call("POST", "/v1/worker-tokens", asked)
    url = f"{token['url']}/v1/payloads/{payload_id}"
    return send(method, url, token["token"], data, "application/octet-stream")[0]


uploaded = with_token("put_payload", "PUT", PAYLOAD, b"what an engine computed" * 1000)
show(
    "6. The engine puts the state's bytes on a worker, with a token for that payload alone",
    payload=uploaded["payload_id"],
    bytes=uploaded["payload_bytes"],
    checksum=uploaded["checksum"],
)

entry_id = "system-prompt-on-a-worker"
key = {**identity, "namespace": "tour-transfers"}
stored = {**state, "reuse_key": {"identity": key}, "entry": dict(state["entry"])}
stored["entry"]["location"] = {**state["entry"]["location"], "tier": "host_dram"}
stored["entry"]["location"]["locator"] = f"node://{WORKER}/state/{PAYLOAD}"
stored["entry"]["identity"] = {**state["entry"]["identity"], "key": key, "entry_id": entry_id}
call("POST", "/v1/states", {"entries": [stored]})
moves = {}
for action in ("prefetch", "store"):
    moved, _ = call(
        "POST",
        "/v1/transfers",
        {
            "transfer_id": f"tour-{action}-{decision_id}",
            "action": action,
            "tenant": tenant,
            "entry_id": entry_id,
            "target_worker": WORKER,
            "payload_id": COPY,
        },
    )
    moves[action] = f"{moved['status']}, {moved['bytes_transferred']} bytes"
show(
    "7. NexusKV brings a copy ahead of its use: POST /v1/transfers",
    **moves,
    backend=moved["backend"],
    locator=moved["locator"],
)

quota, _ = call("GET", f"/v1/quotas/{tenant}")
show(
    "8. What the tenant's copies hold, and what its policy allows (0 is unlimited)",
    mode=quota["mode"],
    payload_bytes=quota["payload_bytes"],
    entries=quota["entries"],
    max_payload_bytes=quota["limits"]["max_payload_bytes"],
)
for payload_id in (COPY, PAYLOAD):
    with_token("delete_payload", "DELETE", payload_id)

# The same prompt, once the engines run another revision of the model.
refused, headers = call(
    "POST",
    "/locus/v1/lookup",
    {
        "schema_version": BRIDGE,
        "nexuskv_schema_version": "nexuskv.contract.v1",
        "identity": query,
        "locus_model_identity": {**state["validation"]["model_identity"], "model_revision": "next"},
        "locus_input_semantic_identity": state["validation"]["input_semantic_identity"],
        "input_fingerprint": "another prompt",
    },
    allow=(409,),
)
decision_id = headers["X-NexusKV-Decision-Id"]
show(
    "9. After an upgrade of the model the state is not reused; the console says why",
    answer=refused["error"]["code"],
    decision=decision_id,
    console=f"{URL}/console/decisions/{decision_id}",
)
