"""Parsing and writing a registration, beyond its single fields."""

import copy
import json
import random
from typing import Any

import pytest
from contract_documents import (
    recurrent_document,
    registration_document,
    replaced,
    shared_document,
    with_type,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.findings import MAX_FINDINGS
from app.contract.limits import MAX_TOKENS
from app.contract.registration import parse_registration, registration_bytes
from app.errors import ErrorCode, NexusError

KEYS = (("reuse_key", "identity"), ("entry", "identity", "key"))


def with_key(document: Any, field: str, value: Any) -> Any:
    for steps in KEYS:
        document = replaced(document, (*steps, field), value)
    return document


def refused(raw: Any) -> NexusError:
    with pytest.raises(NexusError) as caught:
        parse_registration(raw)
    return caught.value


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(item, rng) for item in value]
    if not isinstance(value, dict):
        return value
    items = [(key, shuffled(item, rng)) for key, item in value.items()]
    rng.shuffle(items)
    return dict(items)


@pytest.mark.parametrize("document", [registration_document(), recurrent_document()])
def test_what_is_written_is_what_was_read(document: dict[str, Any]) -> None:
    parsed = parse_registration(document)
    written = registration_bytes(parsed)
    assert json.loads(written) == document
    assert parse_registration(written) == parsed
    assert registration_bytes(parse_registration(written)) == written


def test_the_published_fixture_round_trips() -> None:
    for document in shared_document("locus_bridge.v1.conformance.json")["entries"]:
        assert json.loads(registration_bytes(parse_registration(document))) == document


@settings(deadline=None)
@given(st.integers())
def test_equal_content_has_equal_bytes(seed: int) -> None:
    document = recurrent_document()
    other = shuffled(document, random.Random(seed))
    text = json.dumps(other, indent=seed % 4, ensure_ascii=bool(seed % 2)).encode()
    assert registration_bytes(parse_registration(text)) == registration_bytes(
        parse_registration(document)
    )


def test_canonical_bytes_are_compact_sorted_utf8() -> None:
    written = registration_bytes(parse_registration(registration_document()))
    expected = json.dumps(
        registration_document(), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    assert written == expected.encode()


def test_absent_optional_fields_are_not_written() -> None:
    document = registration_document(
        model_revision=None, parallel=None, checkpoint=None, layer_scope=None
    )
    written = registration_bytes(parse_registration(document))
    assert written == registration_bytes(parse_registration(registration_document()))


def test_a_state_without_evidence_is_accepted() -> None:
    document = registration_document()
    del document["validation"]
    assert parse_registration(document).validation is None
    assert parse_registration(document | {"validation": None}).validation is None


def test_the_token_list_is_held_once() -> None:
    parsed = parse_registration(registration_document())
    assert parsed.reuse_key.identity is parsed.entry.identity.key


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tenant", "other"),
        ("namespace", "other"),
        ("model", "other"),
        ("engine_family", "sglang"),
        ("semantic_type", "mha_kv"),
        ("tokens", [1]),
        ("block_id", 1),
        ("page_id", None),
    ],
)
def test_the_two_keys_must_be_equal(field: str, value: Any) -> None:
    error = refused(replaced(registration_document(), (*KEYS[0], field), value))
    assert error.code is ErrorCode.INVALID_FIELD
    assert [finding.pointer for finding in error.errors] == [f"/entry/identity/key/{field}"]


@pytest.mark.parametrize("field", ["engine_family", "semantic_type"])
def test_the_descriptor_must_be_of_the_key(field: str) -> None:
    value = {"engine_family": "sglang", "semantic_type": "mla_state"}[field]
    error = refused(with_key(registration_document(), field, value))
    assert [finding.pointer for finding in error.errors] == [f"/entry/descriptor/{field}"]


@pytest.mark.parametrize(
    ("granularity", "field"), [("block", "block_tokens"), ("page", "page_tokens")]
)
def test_a_granularity_needs_its_unit(granularity: str, field: str) -> None:
    descriptor = ("entry", "descriptor")
    document = replaced(registration_document(), (*descriptor, "granularity"), granularity)
    error = refused(replaced(document, (*descriptor, "layout", field), 0))
    assert [finding.pointer for finding in error.errors] == [f"/entry/descriptor/layout/{field}"]


def test_an_empty_token_list_is_refused() -> None:
    error = refused(with_key(registration_document(), "tokens", []))
    assert [finding.pointer for finding in error.errors] == ["/entry/identity/key/tokens"]


def test_a_million_tokens_are_accepted_and_one_more_is_not() -> None:
    tokens = [7] * MAX_TOKENS
    accepted = with_key(registration_document(), "tokens", tokens)
    assert len(parse_registration(accepted).entry.identity.key.tokens) == MAX_TOKENS
    error = refused(with_key(registration_document(), "tokens", [*tokens, True]))
    assert [finding.pointer for finding in error.errors] == [
        "/reuse_key/identity/tokens",
        "/entry/identity/key/tokens",
    ]


@pytest.mark.parametrize("family", ["unknown", "tensorrt", "SGLANG"])
def test_an_engine_that_is_not_known_is_unsupported(family: str) -> None:
    document = with_key(registration_document(), "engine_family", family)
    document = replaced(document, ("entry", "descriptor", "engine_family"), family)
    assert refused(document).code is ErrorCode.UNSUPPORTED_IDENTITY


def test_a_semantic_type_that_is_not_known_is_unsupported() -> None:
    error = refused(with_type(registration_document(), "rwkv_state"))
    assert error.code is ErrorCode.UNSUPPORTED_IDENTITY
    assert error.status == 422


def test_a_malformed_field_outweighs_an_unsupported_identity() -> None:
    document = replaced(
        with_type(registration_document(), "rwkv_state"), ("entry", "location", "tier"), 5
    )
    error = refused(document)
    assert error.code is ErrorCode.INVALID_FIELD
    assert len(error.errors) == 4


def test_another_schema_version_explains_every_other_finding() -> None:
    document = registration_document(added_in_v2=1)
    version = ("entry", "descriptor", "schema_version")
    error = refused(replaced(document, version, "nexuskv.contract.v2"))
    assert error.code is ErrorCode.UNSUPPORTED_NEXUSKV_SCHEMA
    assert error.status == 422
    assert len(error.errors) == 2


def test_findings_are_bounded() -> None:
    error = refused(with_key(registration_document(), "tokens", [-1] * 5000))
    assert len(error.errors) == MAX_FINDINGS


TEXT = json.dumps(registration_document())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        TEXT[:-1].encode(),
        TEXT.encode() + b"{}",
        TEXT.replace("[1, 5", "[NaN, 5").encode(),
        TEXT.replace("[1, 5", "[01, 5").encode(),
        TEXT.replace("[1, 5", "[1e999, NaN, 5").encode(),
        TEXT.replace("acme", "\\ud800").encode(),
        TEXT.replace("acme", "\x01").encode(),
        TEXT.encode().replace(b"acme", b"\xff\xfe"),
        TEXT.encode("utf-16"),
        b'{"reuse_key":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    ],
    ids=range(12),
)
def test_what_is_not_json_is_refused_as_such(raw: bytes) -> None:
    assert refused(raw).code is ErrorCode.INVALID_JSON


@pytest.mark.parametrize("raw", [b"null", b"[]", b'"text"', b"5"])
def test_json_that_is_no_object_has_the_wrong_shape(raw: bytes) -> None:
    error = refused(raw)
    assert error.code is ErrorCode.INVALID_BODY
    assert [finding.pointer for finding in error.errors] == [""]


@pytest.mark.parametrize("number", ["1e999", "9" * 6000, "-0.0", "1e2", "99999999999999999999"])
def test_a_number_that_no_machine_holds_is_named(number: str) -> None:
    raw = TEXT.replace('"generation": 4294967295', f'"generation": {number}').encode()
    assert raw != TEXT.encode()
    error = refused(raw)
    assert [finding.pointer for finding in error.errors] == ["/entry/identity/version/generation"]


def test_an_escaped_backslash_is_not_a_nul() -> None:
    document = copy.deepcopy(registration_document())
    document["entry"]["policy_hint"]["admission_hint"] = "C:\\u0000"
    hint = parse_registration(json.dumps(document).encode()).entry.policy_hint.admission_hint
    assert hint == "C:\\u0000"
    assert parse_registration(document).entry.policy_hint.admission_hint == "C:\\u0000"
    document["entry"]["policy_hint"]["admission_hint"] = "\x00"
    for raw in (document, json.dumps(document).encode()):
        assert [finding.pointer for finding in refused(raw).errors] == [
            "/entry/policy_hint/admission_hint"
        ]


def test_a_message_does_not_repeat_what_the_caller_sent() -> None:
    document = replaced(registration_document(), ("entry", "location", "tier"), "s3cret-value")
    error = refused(document)
    assert "s3cret" not in error.message + "".join(finding.detail for finding in error.errors)
