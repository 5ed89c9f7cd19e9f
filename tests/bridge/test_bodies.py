"""What a body may hold: the fast decoder and the published models accept and refuse alike."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.bridge import schemas
from app.bridge.wire import BridgeDecoder, judge
from app.errors import NexusError
from tests.fixtures.wire import estimate_body, lookup_body, materialize_body

OPTION = {"option_id": "opt_" + "0" * 32, "option_handle": "nkvo1.x"}
VALID = {
    "lookup": lookup_body("tenant"),
    "estimate": estimate_body("nkvs1.x"),
    "materialize": materialize_body(OPTION),
}
MODELS = {
    "lookup": schemas.LookupRequest,
    "estimate": schemas.EstimateRequest,
    "materialize": schemas.MaterializeRequest,
}
ODD_VALUES = [
    None, True, False, 0, -1, 1, 1.0, 1.5, 2**31, 2**32, 2**63, 2**64, 10**30,
    "", "x", "é", "x" * 129, "x" * 513, "x" * 4097, "\x00", "a\x00b", "\x7f", "\u2028",
    [], [0], ["0"], [True], [1.0], [-1], [2**32], [2**32 - 1], {}, {"kind": "x"}, {"a": 1},
]  # fmt: skip


def fast_verdict(operation, body):
    try:
        getattr(BridgeDecoder(), operation)(body)
    except NexusError as error:
        return error.code
    return None


def model_verdict(operation, body):
    try:
        judge(body, MODELS[operation])
    except NexusError as error:
        return error.code
    return None


def paths(value, at=()):
    yield at
    if isinstance(value, dict):
        for name, item in value.items():
            yield from paths(item, (*at, name))


def changed(value, path, change):
    copied = json.loads(json.dumps(value))
    holder = copied
    for part in path[:-1]:
        holder = holder[part]
    change(holder, path[-1])
    return copied


@pytest.mark.parametrize("operation", VALID)
def test_valid_bodies_pass_both(operation):
    body = json.dumps(VALID[operation]).encode()
    assert fast_verdict(operation, body) is None
    assert model_verdict(operation, body) is None


@pytest.mark.parametrize("operation", VALID)
def test_every_single_change_is_judged_alike(operation):
    base = VALID[operation]
    compared = refused = 0
    for path in paths(base):
        if not path:
            continue
        mutants = [changed(base, path, lambda holder, name: holder.pop(name))]
        mutants.append(changed(base, path, lambda holder, name: holder.update({name + "_x": 1})))
        mutants += [
            changed(base, path, lambda holder, name, value=value: holder.update({name: value}))
            for value in ODD_VALUES
        ]
        for mutant in mutants:
            for text in (json.dumps(mutant), json.dumps(mutant, ensure_ascii=False)):
                body = text.encode("utf-8", "surrogatepass")
                fast, model = fast_verdict(operation, body), model_verdict(operation, body)
                assert fast == model, (path, text[:400], fast, model)
                compared += 1
                refused += fast is not None
    assert compared > refused > compared // 2


@given(
    operation=st.sampled_from(sorted(VALID)),
    noise=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=12,
    ),
    field=st.text(max_size=12),
)
def test_arbitrary_json_is_judged_alike(operation, noise, field):
    for value in (noise, {**VALID[operation], field: noise}):
        body = json.dumps(value).encode()
        assert fast_verdict(operation, body) == model_verdict(operation, body)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_crash(body):
    for operation in VALID:
        assert fast_verdict(operation, body) is not None


def test_a_unicode_escape_is_the_character_it_stands_for():
    body = json.dumps(lookup_body("t\u00e4nant")).encode()
    assert b"\\u00e4" in body
    decoded = BridgeDecoder().lookup(body)
    assert decoded.identity.tenant == "t\u00e4nant"
    assert decoded.evidence.model_identity.model_revision == "rev-1"


def test_equal_evidence_has_one_number_and_other_evidence_another():
    decoder = BridgeDecoder()
    first = decoder.lookup(json.dumps(lookup_body("a")).encode())
    again = decoder.lookup(json.dumps(lookup_body("b", tokens=[1])).encode())
    other = lookup_body("a")
    other["locus_model_identity"]["model_revision"] = "rev-9"
    different = decoder.lookup(json.dumps(other).encode())
    assert first.evidence_number == again.evidence_number != different.evidence_number


def test_the_first_fault_decides_and_all_are_listed():
    body = lookup_body("tenant")
    del body["input_fingerprint"]
    body["identity"]["tokens"] = [1, -1, "x"]
    body["surplus"] = 1
    with pytest.raises(NexusError) as refused:
        BridgeDecoder().lookup(json.dumps(body).encode())
    assert refused.value.code == "missing_field"
    assert [finding.code for finding in refused.value.errors] == [
        "missing_field",
        "unknown_field",
        "invalid_field",
        "invalid_field",
    ]


def test_not_a_number_is_not_json():
    body = json.dumps({**lookup_body("t"), "input_fingerprint": math.nan}).encode()
    assert fast_verdict("lookup", body) == "invalid_json"


def test_the_published_models_are_strict():
    with pytest.raises(ValidationError):
        schemas.EstimateRequest.model_validate(
            {**VALID["estimate"], "target_engine_generation": "1"}
        )
