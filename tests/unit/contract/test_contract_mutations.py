"""Every single fault in a registration is refused, and the refusal points at it."""

import json
import math
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from contract_documents import dropped, places, pointer, recurrent_document, replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.registration import parse_registration
from app.contract.schema import STATE_CONTRACT_FILE, schemas
from app.errors import ErrorCode, NexusError

DOCUMENT = recurrent_document()
PLACES = list(places(DOCUMENT))
OPTIONAL = {
    "/validation",
    *(f"/reuse_key/identity/{name}" for name in ("block_id", "page_id")),
    *(f"/entry/identity/key/{name}" for name in ("block_id", "page_id")),
    *(f"/entry/{name}" for name in ("model_revision", "adapter_revision", "parallel")),
    *(f"/entry/{name}" for name in ("layer_scope", "position_convention", "checkpoint")),
    "/entry/parallel/tp",
    "/entry/parallel/pp",
    "/entry/checkpoint/step",
    "/entry/checkpoint/parent",
}
NULLABLE = OPTIONAL | {
    "/validation/model_identity/adapter_revision",
    "/validation/input_semantic_identity/multimodal_preprocessing",
}
MAPS = "/entry/descriptor/layout_metadata"
UNSUPPORTED = ("engine_family", "semantic_type")
EMPTY_IS_REFUSED = ("tenant", "entry_id", "lineage", "locator", "fingerprint", "model", "namespace")


def refused(document: Any) -> NexusError:
    with pytest.raises(NexusError) as caught:
        parse_registration(document)
    return caught.value


def found(document: Any, at: str) -> ErrorCode:
    """The code of the finding at a pointer; there must be exactly one finding, and only there."""
    error = refused(document)
    assert [finding.pointer for finding in error.errors] == [at]
    assert error.errors[0].detail
    return error.errors[0].code


def fields() -> Iterator[tuple[Any, ...]]:
    for steps, value in PLACES:
        if steps:
            yield steps, value, pointer(steps)


def test_the_unchanged_document_is_accepted() -> None:
    assert parse_registration(DOCUMENT).entry.identity.entry_id == "state-9"


def test_a_dropped_field_is_named() -> None:
    checked = 0
    for steps, _, at in fields():
        if isinstance(steps[-1], int) or at in OPTIONAL or at.startswith(MAPS + "/"):
            continue
        assert found(dropped(DOCUMENT, steps), at) is ErrorCode.MISSING_FIELD
        checked += 1
    assert checked > 60


def test_an_optional_field_may_be_dropped_or_null() -> None:
    for steps, _, at in fields():
        if at in OPTIONAL and "_id" not in at:
            parse_registration(dropped(DOCUMENT, steps))
            parse_registration(replaced(DOCUMENT, steps, None))


def test_an_added_field_is_named_in_every_object() -> None:
    checked = 0
    for steps, value in PLACES:
        at = pointer(steps)
        if isinstance(value, dict) and at != MAPS:
            document = replaced(DOCUMENT, steps, value | {"x/~": 1}) if steps else None
            document = document or DOCUMENT | {"x/~": 1}
            assert found(document, f"{at}/x~1~0") is ErrorCode.UNKNOWN_FIELD
            checked += 1
    assert checked > 15


WRONG = [True, 7, 1.0, 1.5, math.nan, math.inf, "text", None, [], {}, b"bytes"]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_value_of_another_type_is_named(wrong: Any) -> None:
    checked = 0
    for steps, value, at in fields():
        nullable = at in NULLABLE or "_id" in str(steps[-1])
        if type(value) is type(wrong) or value is None or (wrong is None and nullable):
            continue
        assert found(replaced(DOCUMENT, steps, wrong), at) is ErrorCode.INVALID_FIELD
        checked += 1
    assert checked > 40


@pytest.mark.parametrize("number", [10**30, -(10**30), 2**63, -2])
def test_a_number_out_of_range_is_named(number: int) -> None:
    checked = 0
    for steps, value, at in fields():
        if isinstance(value, int) and not isinstance(value, bool):
            assert found(replaced(DOCUMENT, steps, number), at) is ErrorCode.INVALID_FIELD
            checked += 1
    assert checked > 15


@pytest.mark.parametrize("text", ["x" * 2049, "a\x00b", "a\ud800b", "\udfff"], ids=ascii)
def test_a_text_that_cannot_be_kept_is_named(text: str) -> None:
    checked = 0
    for steps, value, at in fields():
        if isinstance(value, str):
            code = found(replaced(DOCUMENT, steps, text), at)
            if steps[-1] == "schema_version":
                assert code is ErrorCode.UNSUPPORTED_NEXUSKV_SCHEMA
            elif steps[-1] in UNSUPPORTED:
                assert code is ErrorCode.UNSUPPORTED_IDENTITY
            else:
                assert code is ErrorCode.INVALID_FIELD
            checked += 1
    assert checked > 50


def test_an_empty_name_is_named() -> None:
    for steps, _, at in fields():
        if steps[-1] in EMPTY_IS_REFUSED and isinstance(_, str):
            if at == "/entry/checkpoint/lineage":
                continue  # an unknown value: accepted, and never reusable
            assert found(replaced(DOCUMENT, steps, ""), at) is ErrorCode.INVALID_FIELD


@pytest.mark.parametrize("key", ["", "x" * 513, "a\x00", "\ud800", 5])
def test_a_bad_key_of_a_map_is_named(key: Any) -> None:
    changed = replaced(DOCUMENT, ("entry", "descriptor", "layout_metadata"), {key: "1"})
    error = refused(changed)
    assert {finding.code for finding in error.errors} == {ErrorCode.INVALID_FIELD}
    assert all(finding.pointer.startswith(f"{MAPS}/") for finding in error.errors)
    "".join(finding.pointer for finding in error.errors).encode()


@settings(deadline=None)
@given(st.lists(st.sampled_from(list(fields())), min_size=2, max_size=8), st.data())
def test_all_findings_are_reported_at_once(chosen: list[tuple[Any, ...]], data: Any) -> None:
    """Several faults that do not hide one another are all found, in JSON text as in values."""
    taken: list[tuple[Any, ...]] = []
    for steps, value, _ in chosen:
        clear = all(steps[: len(t)] != t and t[: len(steps)] != steps for t in taken)
        if clear and isinstance(value, str | int | list):
            taken.append(steps)
    document = DOCUMENT
    for steps in taken:
        document = replaced(document, steps, data.draw(st.sampled_from([{}, {"a": 1}, 0.5])))
    if taken:
        expected = {pointer(steps) for steps in taken}
        assert {finding.pointer for finding in refused(document).errors} == expected
        assert {finding.pointer for finding in refused(json.dumps(document).encode()).errors} == (
            expected
        )


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
VALIDATOR = jsonschema.Draft202012Validator(
    schemas()[STATE_CONTRACT_FILE]["$defs"]["Registration"]
    | {"$defs": schemas()[STATE_CONTRACT_FILE]["$defs"]}
)


@settings(deadline=None)
@given(st.sampled_from([place for place in PLACES if place[0]]), ANY_JSON)
def test_the_published_schema_accepts_what_is_accepted(place: Any, value: Any) -> None:
    """The schema, the parser on text, and the parser on values agree on the form.

    Two differences are intended: consistency is beyond a schema, and JSON Schema takes 1.0 for an
    integer.
    """
    document = replaced(DOCUMENT, place[0], value)
    text = json.dumps(document).encode()
    verdicts = []
    for form in (text, document):
        try:
            parse_registration(form)
        except NexusError as error:
            consistency = all("must equal" in finding.detail for finding in error.errors)
            verdicts.append(consistency and bool(error.errors))
        else:
            verdicts.append(True)
    assert verdicts[0] == verdicts[1]
    whole_float = any(isinstance(v, float) and v.is_integer() for _, v in places(value))
    if not whole_float and value != []:
        assert VALIDATOR.is_valid(document) == verdicts[0]
