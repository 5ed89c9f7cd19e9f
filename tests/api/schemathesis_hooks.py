"""What JSON Schema cannot say about this API, said to schemathesis."""

import itertools
from typing import Any

import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.openapi.checks import UnsupportedMethodResponse

# This wire answers every unknown method with its own 404, as the reference does.
BRIDGE_PATHS = ("/locus/v1/lookup", "/locus/v1/estimate", "/locus/v1/materialize", "/healthz")
_numbers = itertools.count()


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Makes bodies what their schema means where it has no words for it."""
    # For JSON Schema 1.0 is an integer; a strict decoder, and the reference's, takes it for none.
    case.body = with_plain_integers(case.body)
    if case.meta.generation.mode.is_positive:
        # A string that only this API makes up, and only for one set of filters.
        case.query.pop("cursor", None)
        if case.operation.label == "POST /v1/states":
            for entry in case.body["entries"]:
                make_consistent(entry)


@schemathesis.hook
def filter_failure(context: HookContext, failure: Any, case: Case, response: Response) -> bool:
    """False drops a failure: only the one of which the published contract says otherwise."""
    return not (
        isinstance(failure, UnsupportedMethodResponse)
        and case.path in BRIDGE_PATHS
        and response.status_code == 404
        and response.json()["error"]["code"] == "not_found"
    )


def with_plain_integers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [with_plain_integers(item) for item in value]
    if isinstance(value, dict):
        return {name: with_plain_integers(item) for name, item in value.items()}
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
