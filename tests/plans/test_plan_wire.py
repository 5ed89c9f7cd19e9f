"""Bodies of `/v1/plans`: both decoders and the published schema take the same."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from app.api import plan_schemas as schemas
from app.api.match_refusals import judge
from app.api.plan_wire import decode_plan
from app.errors import NexusError
from tests.plans.fleet import EVIDENCE, SCOPE

QUERY = {"tenant": "t", "model": "m", "tokens": [1, 2, 3]}
MATCH = {"tenant": "t", "model": "m", "query_tokens": 3}
PUBLISHED = json.loads((Path(__file__).parents[2] / "openapi" / "v1.json").read_text())
SCHEMA = Draft202012Validator(
    {"$ref": "#/components/schemas/PlanRequest", "components": PUBLISHED["components"]}
)
TEXTS = [None, 1, "", "x", "é", "a\0", "a/b", "x" * 129, "x" * 600, "a\n", " ", "-a", "A.b:c-d_e"]
NUMBERS = [
    None, 0, 1, -1, 1.0, 1.5, True, "1", 65_535, 65_536, 10**6, 10**6 + 1, 2**20, 2**20 + 1, 10**12,
    10**12 + 1, 2**40, 2**40 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 1e300, [], {},
]  # fmt: skip
TARGET_FIELDS = {
    "engine_id": TEXTS, "residency": TEXTS, "hardware": TEXTS, "parallel_layout": TEXTS,
    "device_class": [*TEXTS, "cuda", "cpu"], "dp_rank": NUMBERS, "generation": NUMBERS,
    "queue_depth": NUMBERS, "running_prefill_tokens": NUMBERS, "running_decode_tokens": NUMBERS,
    "free_blocks": NUMBERS, "block_tokens": NUMBERS, "hue": [1],
}  # fmt: skip
CANDIDATE = {"instance_id": "a", "epoch": 1, "tiers": {"gpu": {"only": 1, "cumulative": 2}}}
CANDIDATE_FIELDS = {
    "instance_id": TEXTS, "epoch": NUMBERS, "dp_rank": NUMBERS, "hue": [1, None],
    "state": [*TEXTS, "live", "stale", "pending", "unknown"],
    "tiers": [
        None, {}, [], {"gpu": None}, {"gpu": {}}, {"tape": {"only": 1, "cumulative": 1}},
        {"cpu": {"only": 0, "cumulative": 2**40}}, {"cpu": {"only": -1, "cumulative": 1}},
        {"disk": {"only": 1, "cumulative": 1, "hue": 1}},
    ],
}  # fmt: skip
STATE = {"entry_id": "s", "generation": 0, "matched_tokens": 1}
STATE_FIELDS = {"entry_id": TEXTS, "generation": NUMBERS, "matched_tokens": NUMBERS, "hue": [1]}
MATCH_FIELDS = {
    "tenant": TEXTS, "model": TEXTS, "revision": TEXTS, "layout": TEXTS, "query_tokens": NUMBERS,
    "candidates": [None, [], {}, [1], [CANDIDATE] * 1_000, [CANDIDATE] * 1_001],
    "states": [None, [], {}, [1], [STATE] * 64, [STATE] * 65], "hue": [1],
}  # fmt: skip
QUERY_FIELDS = {
    "tenant": TEXTS, "model": TEXTS, "revision": TEXTS, "lora": TEXTS, "hue": [1],
    "tokens": [None, [], [1], [2**32], [-1], [1.5], "x"], "hashes": [None, [], [1], ["ab"]],
    "tokens_b64": [None, "", "AAAAAA==", "AAAAAB==", 1], "states": [None, {}, SCOPE, 1],
    "extra_keys": [None, [], [None], [["a"]], [1]], "block_tokens": NUMBERS,
}  # fmt: skip
REQUEST_FIELDS = {
    "deadline_us": NUMBERS, "slo_ttft_us": NUMBERS, "policy": NUMBERS, "hue": [1],
    "explain": [*TEXTS, "brief", "full"], "evidence": [
        None, {}, 1, EVIDENCE, EVIDENCE | {"hue": 1}, EVIDENCE | {"input_fingerprint": ""},
        EVIDENCE | {"input_fingerprint": 1}, EVIDENCE | {"model_identity": None},
    ],
    "targets": [None, [], {}, [1], [{"engine_id": "e"}] * 65],
    "query": [None, {}, 1, QUERY], "match": [None, {}, 1, MATCH],
}  # fmt: skip


def some(fields: dict[str, list[Any]], most: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """A few fields of all, each with one of its values."""
    one = st.sampled_from(sorted(fields)).flatmap(
        lambda name: st.sampled_from(fields[name]).map(lambda value: (name, value))
    )
    return st.lists(one, max_size=most).map(dict)


TARGETS = some(TARGET_FIELDS).map(lambda changed: {"engine_id": "e"} | changed)
MATCHES = st.builds(
    lambda changed, candidate, state: MATCH
    | {"candidates": [CANDIDATE | candidate], "states": [STATE | state]}
    | changed,
    some(MATCH_FIELDS, 1), some(CANDIDATE_FIELDS), some(STATE_FIELDS, 1),
)  # fmt: skip
QUERIES = some(QUERY_FIELDS).map(lambda changed: QUERY | changed)
BODIES = st.builds(
    lambda asked, targets, changed: asked | {"targets": targets} | changed,
    QUERIES.map(lambda query: {"query": query}) | MATCHES.map(lambda match: {"match": match}),
    st.lists(TARGETS, min_size=1, max_size=2),
    some(REQUEST_FIELDS),
)


def accepted_by_the_service(body: dict[str, Any]) -> bool:
    try:
        decode_plan(json.dumps(body).encode())
    except NexusError:
        return False
    return True


def accepted_by_the_model(body: dict[str, Any]) -> bool:
    try:
        judge(body, schemas.PlanRequest)
    except NexusError:
        return False
    return True


@settings(max_examples=1_500, deadline=None)
@given(BODIES)
def test_both_decoders_take_the_same(body: dict[str, Any]) -> None:
    by_model = accepted_by_the_model(body)
    assert accepted_by_the_service(body) == by_model
    # The schema says nothing of what stands in two places.
    assert SCHEMA.is_valid(body) or not by_model


def test_what_is_left_out_is_what_its_default_says() -> None:
    body = {"query": QUERY, "targets": [{"engine_id": "e"}]}
    spelt = {
        "query": QUERY, "match": None, "evidence": None, "deadline_us": None, "slo_ttft_us": None,
        "policy": None, "explain": "brief",
        "targets": [dict.fromkeys(schemas.PlanTarget.model_fields) | {
            "engine_id": "e", "dp_rank": 0,
        }],
    }  # fmt: skip
    short, long = (decode_plan(json.dumps(one).encode()) for one in (body, spelt))
    assert short.query.targets == long.query.targets
    assert (short.policy, short.full) == (long.policy, long.full) == (None, False)


def test_the_sooner_of_deadline_and_objective_counts() -> None:
    body = {"query": QUERY, "targets": [{"engine_id": "e"}], "deadline_us": 9_000}
    assert decode_plan(json.dumps(body).encode()).query.deadline_us == 9_000
    both = decode_plan(json.dumps(body | {"slo_ttft_us": 4_000}).encode())
    assert both.query.deadline_us == 4_000
