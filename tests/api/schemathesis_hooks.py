"""What JSON Schema cannot say about this API, said to schemathesis."""

import itertools
import os
from typing import Any

import msgspec
import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.core.failures import AcceptedNegativeData
from schemathesis.openapi.checks import UnsupportedMethodResponse

from tests.fixtures.wire import (
    FORGETTABLE,
    FORGETTABLE_RANKS,
    KNOWN_ENGINE,
    KNOWN_STATE,
    KNOWN_TRANSFER,
    KNOWN_WORKER,
)

# This wire answers every unknown method with its own 404, as the reference does.
BRIDGE_PATHS = ("/locus/v1/lookup", "/locus/v1/estimate", "/locus/v1/materialize", "/healthz")
POLICY_CHECK = "POST /v1/policies:validate"
CHECKS = (POLICY_CHECK, "POST /v1/profiles:validate")
POLICY_UPLOADS = ("POST /v1/policies", POLICY_CHECK)
DAY_S = 86_400
_numbers = itertools.count()
_ranks = itertools.count()


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Makes bodies what their schema means where it has no words for it."""
    # For JSON Schema 1.0 is an integer; a strict decoder, and the reference's, takes it for none.
    case.body = with_plain_integers(case.body)
    if case.meta.generation.mode.is_positive:
        # A string that only this API makes up, and only for one set of filters.
        case.query.pop("cursor", None)
        make_reachable(case)
        if case.operation.label == "POST /v1/states":
            for entry in case.body["entries"]:
                make_consistent(entry)
        if case.operation.label in POLICY_UPLOADS:
            # The order holds exactly the enabled backends.
            case.body["backend_priority_order"] = case.body["enabled_transfer_backends"][::-1]
            # Its names are kinds of decisions.
            case.body["history_durability"] = dict.fromkeys(
                ("lookup",), next(iter(case.body.get("history_durability", {}).values()), "spooled")
            )
        if case.operation.label == "POST /v1/policies/{number}:activate":
            # Another condition than that of now is 412, as it should be.
            case.headers.pop("If-Match", None)
        if case.operation.label == "PUT /v1/topology":
            make_topology(case)
        make_query(case)
        make_engine(case)
        make_history(case)
    if case.operation.label == "GET /v1/decisions/stream" and is_a_time(case.query.get("for_s")):
        # A stream goes on for as long as it may.
        case.query["for_s"] = 0


def make_topology(case: Case) -> None:
    """Names are given once, and are those of nodes; another condition than that of now is 412."""
    case.headers.pop("If-Match", None)
    case.query.pop("expected_version", None)
    case.body["nodes"] = [{"name": "a"}, {"name": "b"}]
    for name in ("engines", "links", "tiers"):
        case.body[name] = case.body.get(name, [])[:1]
        for item in case.body[name]:
            item |= {field: "a" for field in ("node", "source", "target") if field in item}


def is_a_time(for_s: Any) -> bool:
    """Whether a stream would begin: without one, too, and with one in a list."""
    if not for_s:
        return True
    try:
        return 0 <= float(for_s[0] if isinstance(for_s, list) else for_s) <= DAY_S
    except (TypeError, ValueError):
        return False


def make_reachable(case: Case) -> None:
    """Workers are on listed hosts; a token and a transfer are of what there is."""
    if case.operation.label == "PUT /v1/workers/{name}":
        case.body |= {"url": "http://127.0.0.1:7000", "data_address": "127.0.0.1:7001"}
    if case.operation.label == "POST /v1/worker-tokens":
        direction = case.body["direction"]
        needs = {
            "payload_id": direction.endswith("_payload") or direction in {"transfer", "fetch"},
            "sink_id": direction in {"read_sink", "finish_sink", "fetch"},
            "target_worker": direction == "fetch",
            "target_payload_id": False,
        }
        case.body["worker"] = KNOWN_WORKER
        for name, needed in needs.items():
            case.body[name] = f"{name}-1" if needed else None
    if case.operation.label == "POST /v1/transfers":
        # An id stands for one transfer: most are to be the first of theirs.
        transfer_id = f"{case.body['transfer_id'][:100]}-{next(_numbers)}"
        case.body |= KNOWN_STATE | {"transfer_id": transfer_id}
    elif case.operation.label == "POST /v1/prefetches":
        case.body |= KNOWN_STATE | {"prefetch_id": f"ahead-{next(_numbers)}"}
    elif case.operation.label.endswith("/v1/transfers/{transfer_id}"):
        case.path_parameters["transfer_id"] = KNOWN_TRANSFER
        case.query["tenant"] = KNOWN_STATE["tenant"]


def make_engine(case: Case) -> None:
    """An engine whose fields agree; frames that are frames, of an engine that takes them."""
    label = case.operation.label
    if label == "POST /v1/engines":
        case.query["replace"] = True
        case.body |= {"tenants": ["default"], "salts": {}, "attach": "connect", "topic": ""}
        case.body |= {"model": "scratch", "revision": "", "layout": ""}
        case.body |= {"endpoint": None, "replay_endpoint": None, "states": [], "groups": []}
    if label == "POST /v1/engines/{instance_id}/events":
        case.path_parameters["instance_id"] = KNOWN_ENGINE["instance_id"]
        case.query |= {"dp_rank": 0, "lost": True}
        case.body = msgspec.msgpack.encode([1.5, []])
    if label == "DELETE /v1/engines/{instance_id}":
        case.path_parameters["instance_id"] = FORGETTABLE
        case.query["dp_rank"] = next(_ranks) % FORGETTABLE_RANKS
    if label == "GET /v1/engines":
        case.query.pop("model", None)


def make_history(case: Case) -> None:
    """Times in order, the id of no event, and details that fit."""
    label = case.operation.label
    if label == "GET /v1/decisions/summary":
        # Any two times are out of order, or too many minutes apart, half of the time.
        case.query.pop("from", None)
        case.query.pop("to", None)
    if label == "GET /v1/decisions/stream":
        case.headers.pop("Last-Event-ID", None)
    if label == "GET /v1/decisions/{decision_id}/rerun":
        case.path_parameters["decision_id"] = os.environ["NEXUSKV_TEST_LOOKUP"]
        # Versions of policies come and go while this runs.
        case.query.pop("policy", None)
    if label == "GET /v1/plans/{decision_id}":
        case.path_parameters["decision_id"] = os.environ["NEXUSKV_TEST_PLAN"]
    if label.startswith("POST /v1/decisions/"):
        for report in case.body.get("reports", [case.body]):
            report["detail"] = {"seen": len(report.get("detail", {}))}


def make_query(case: Case) -> None:
    """A packed prompt is whole words, and the URL has its fields; with JSON it has none."""
    path, model = case.operation.path, KNOWN_ENGINE["model"]
    if path == "/indexer/workers":
        # Spellings of one field, which must not differ.
        case.query = {name: case.query[name] for name in list(case.query)[:1]}
    if path in ("/v1/match", "/indexer/query"):
        if case.media_type == "application/octet-stream":
            case.body = bytes(4 * (len(case.body) // 4)) if isinstance(case.body, bytes) else b""
            case.query |= {"tenant": "default", "model": model}
            if path == "/indexer/query":
                case.query = {"model": model}
        else:
            case.query.clear()
    if path == "/v1/match" and isinstance(case.body, dict):
        # Whatever is in extra keys, however deep, its integers have 64 bits.
        for query in case.body["queries"]:
            if query.get("extra_keys"):
                query["extra_keys"] = with_small_integers(query["extra_keys"])
    if path == "/v1/plans" and isinstance(case.body, dict):
        # Either a query of tokens or an earlier match; targets once; objectives within deadlines.
        query = case.body.get("query") or {"tenant": "default", "model": model}
        plain = {"tokens": [1, 2, 3], "tokens_b64": None, "hashes": None, "extra_keys": None}
        case.body |= {"query": query | plain, "match": None, "policy": None, "slo_ttft_us": None}
        case.body["targets"] = case.body["targets"][:1]
    if path.startswith("/indexer/query") and isinstance(case.body, dict):
        # What nobody registered is 404, and other tenants are as well.
        named = "model_name" if case.body.get("model_name") is not None else "model"
        case.body |= {"model": None, "modelname": None, "model_name": None} | {named: model}
        case.body |= {"tenant_id": None, "routing_group": None, "instance_id": None}
        case.body |= {"additional_salt": None, "additionalsalt": None}
    if path in ("/indexer/register", "/indexer/unregister"):
        engine = {"instance_id": "scratch", "modelname": "scratch", "model_name": None}
        case.body |= engine | {"model": None, "routing_group": None, "additionalsalt": None}
    if path == "/indexer/register":
        # One rank has one registration; the engine is on a listed host.
        case.body |= {"dp_rank": next(_numbers), "endpoint": "tcp://127.0.0.1:9"}
        case.body["replay_endpoint"] = None
    if path == "/indexer/unregister":
        case.body["dp_rank"] = None


@schemathesis.hook
def filter_failure(context: HookContext, failure: Any, case: Case, response: Response) -> bool:
    """False drops a failure: only those of which the published contract says otherwise."""
    if isinstance(failure, UnsupportedMethodResponse):
        return not (
            case.path in BRIDGE_PATHS
            and response.status_code == 404
            and response.json()["error"]["code"] == "not_found"
        )
    if isinstance(failure, AcceptedNegativeData) and case.operation.label in CHECKS:
        # To find a document wrong is what the route is for.
        return response.status_code != 200 or response.json()["valid"]
    return True


def with_plain_integers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [with_plain_integers(item) for item in value]
    if isinstance(value, dict):
        return {name: with_plain_integers(item) for name, item in value.items()}
    return value


def with_small_integers(value: Any) -> Any:
    if isinstance(value, int):
        return max(-(2**63), min(value, 2**64 - 1))
    if isinstance(value, list):
        return [with_small_integers(item) for item in value]
    if isinstance(value, dict):
        return {name: with_small_integers(item) for name, item in value.items()}
    return value


def make_consistent(registration: dict[str, Any]) -> None:
    """The key is named twice and the descriptor repeats parts of it; all must agree."""
    key = registration["reuse_key"]["identity"]
    key["tokens"] = key["tokens"] or [0]
    if key["engine_family"] == "unknown":
        key["engine_family"] = "vllm"
    identity = registration["entry"]["identity"]
    identity["key"] = key
    # Registered once already it would be a conflict: most are to get all the way.
    identity["entry_id"] = f"{identity['entry_id'][:500]}-{next(_numbers)}"
    descriptor = registration["entry"]["descriptor"]
    for field in ("engine_family", "semantic_type"):
        descriptor[field] = key[field]
    for field in ("block_tokens", "page_tokens"):
        descriptor["layout"][field] = descriptor["layout"][field] or 1
