"""Which difference excludes a state, which field is named, and for what reason."""

import copy
from typing import Any

import msgspec
import pytest
from contract_documents import (
    EXTENSIONS,
    query_for,
    recurrent_document,
    registration_document,
    replaced,
    with_type,
)

from app.contract.compatibility import COMPARED, COMPATIBLE, Mismatch, Verdict, compare
from app.contract.enums import ExclusionReason
from app.contract.evidence import QueryEvidence
from app.contract.registration import parse_registration
from app.contract.scope import AXES, is_layer_scope
from app.contract.standing import standing

R = ExclusionReason
INPUT = "input_semantic_identity"


def judge(
    document: dict[str, Any], query: QueryEvidence | None = None, *, exact: bool = True
) -> Verdict:
    """The verdict with a kept standing, which must be that without one."""
    state = parse_registration(document)
    asked = query or query_for(state)
    verdict = compare(state.entry, state.validation, asked, exact=exact)
    known = standing(state.entry)
    assert compare(state.entry, state.validation, asked, exact=exact, known=known) == verdict
    return verdict


def query(changed: str | None = None, value: Any = None, **scope: Any) -> QueryEvidence:
    """The fitting query, with one field of its evidence changed."""
    fitting = query_for(parse_registration(registration_document()))
    document = msgspec.to_builtins(fitting) | scope
    if changed is not None:
        document = replaced(document, tuple(changed.split(".")), value)
    return msgspec.convert(document, QueryEvidence)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("document", [registration_document(), recurrent_document()])
def test_a_state_fits_the_query_it_was_computed_for(document: Any, exact: bool) -> None:
    scope = {key: EXTENSIONS[key] for key in ("layer_scope", "position_convention", "parallel")}
    asked = query() if "parallel" not in document["entry"] else query(**scope)
    assert judge(document, asked, exact=exact) == COMPATIBLE


EVIDENCE_FIELDS = [
    row.field for row in COMPARED if row.reason in (R.EVIDENCE_MISMATCH, R.FINGERPRINT_MISMATCH)
]


def test_every_field_of_the_evidence_is_compared() -> None:
    """A field added to the evidence without a row here would be ignored, which fails open."""

    def leaves(value: Any, at: str = "") -> set[str]:
        if not isinstance(value, dict):
            return {at}
        return set().union(*(leaves(v, f"{at}.{k}".strip(".")) for k, v in value.items()))

    evidence = msgspec.to_builtins(query())
    assert leaves(evidence) == set(EVIDENCE_FIELDS)


@pytest.mark.parametrize("field", EVIDENCE_FIELDS)
@pytest.mark.parametrize("exact", [True, False])
def test_a_field_that_differs_is_named(field: str, exact: bool) -> None:
    registered: Any = registration_document()["validation"]
    for step in field.split("."):
        registered = registered[step]
    verdict = judge(registration_document(), query(field, "another"), exact=exact)
    if field == "input_fingerprint" and not exact:
        assert verdict == COMPATIBLE
    else:
        reason = R.FINGERPRINT_MISMATCH if field == "input_fingerprint" else R.EVIDENCE_MISMATCH
        assert verdict == Mismatch(field, reason, "another", registered)


def test_an_adapter_or_image_pipeline_on_one_side_only_differs() -> None:
    field = "model_identity.adapter_revision"
    assert judge(registration_document(), query(field, None)) == Mismatch(
        field, R.EVIDENCE_MISMATCH, None, "lora-2"
    )
    assert judge(
        registration_document(), query(f"{INPUT}.multimodal_preprocessing", None)
    ) == Mismatch(f"{INPUT}.multimodal_preprocessing.kind", R.EVIDENCE_MISMATCH, None, "vit")


def test_the_first_difference_in_the_table_is_the_verdict() -> None:
    asked = query("model_identity.execution_profile", "fp8")
    asked = msgspec.structs.replace(asked, input_fingerprint="another")
    verdict = judge(registration_document(), asked)
    assert isinstance(verdict, Mismatch)
    assert verdict.field == "model_identity.execution_profile"


def test_a_state_without_evidence_is_excluded_for_that() -> None:
    document = registration_document() | {"validation": None}
    assert judge(document, query()) == Mismatch("validation", R.EVIDENCE_MISSING, "evidence", None)


def test_a_withdrawn_state_is_not_reusable() -> None:
    document = replaced(registration_document(), ("entry", "policy_hint", "reusable"), False)
    assert judge(document) == Mismatch("policy_hint.reusable", R.NOT_REUSABLE, "true", "false")


def test_differing_evidence_outweighs_a_withdrawn_or_unknown_state() -> None:
    """A conflict of evidence must be reported as one, whatever else is wrong with the state."""
    document = registration_document(layer_scope="weird")
    verdict = judge(document, query("input_fingerprint", "another"))
    assert isinstance(verdict, Mismatch)
    assert verdict.reason is R.FINGERPRINT_MISMATCH


D = "descriptor"
UNKNOWN = [
    (f"{D}.layout.layout", "", None),
    (f"{D}.layout.layout", "unknown", None),
    (f"{D}.quantization.scheme", "", None),
    (f"{D}.quantization.scheme", "squeeze-9", None),
    (f"{D}.tensor_specs.1.dtype", "", None),
    (f"{D}.tensor_specs.0.dtype", "float17", None),
    ("identity.version.lineage", "unknown", None),
    ("model_revision", "", None),
    ("model_revision", "unknown", None),
    ("adapter_revision", "", None),
    ("layer_scope", "", None),
    ("layer_scope", "weird", None),
    ("layer_scope", "3-1", None),
    ("position_convention", "", None),
    ("position_convention", "weird", None),
    ("parallel", {"tp": {"rank": 2, "size": 2}}, "parallel.tp"),
    ("parallel", {"cp": {"rank": 0, "size": 0}}, "parallel.cp"),
    ("checkpoint.kind", "delta", None),
    ("checkpoint.lineage", "", None),
    ("checkpoint.lineage", "unknown", None),
    ("checkpoint.parent", "", None),
]


@pytest.mark.parametrize(("field", "value", "named"), UNKNOWN)
def test_an_unknown_value_is_accepted_and_never_reusable(
    field: str, value: Any, named: str | None
) -> None:
    steps = [int(step) if step.isdigit() else step for step in field.split(".")]
    document = replaced(recurrent_document(), ("entry", *steps), value)
    state = parse_registration(document)
    scope = {key: EXTENSIONS[key] for key in ("layer_scope", "position_convention", "parallel")}
    for asked in (query(), query(**scope)):
        verdict = judge(document, asked)
        assert isinstance(verdict, Mismatch)
        assert (verdict.field, verdict.reason) == (named or field, R.UNKNOWN_VALUE)
        assert verdict.expected
    assert standing(state.entry) == verdict


def test_an_unknown_value_does_not_fit_a_query_that_names_it() -> None:
    document = registration_document(position_convention="weird", layer_scope="odd")
    verdict = judge(document, query(position_convention="weird", layer_scope="odd"))
    assert isinstance(verdict, Mismatch)
    assert verdict.reason is R.UNKNOWN_VALUE


def test_a_checkpoint_on_a_token_state_is_not_understood() -> None:
    verdict = judge(registration_document(checkpoint={"lineage": "chain-1"}))
    assert verdict == Mismatch(
        "checkpoint",
        R.UNKNOWN_VALUE,
        "a known checkpoint lineage, of a recurrent state",
        "gqa_kv",
    )


@pytest.mark.parametrize("field", ["model_revision", "adapter_revision"])
def test_a_revision_on_the_entry_must_be_the_querys(field: str) -> None:
    assert judge(registration_document(**{field: EXTENSIONS[field]})) == COMPATIBLE
    verdict = judge(registration_document(**{field: "another"}))
    assert verdict == Mismatch(field, R.MODEL_MISMATCH, EXTENSIONS[field], "another")


TP = {"tp": {"rank": 1, "size": 2}}
ONE = {axis: {"rank": 0, "size": 1} for axis in AXES}
SCOPES = [
    # what the entry says, what the query says, whether they fit
    ("parallel", None, None, True),
    ("parallel", ONE, None, True),
    ("parallel", None, ONE, True),
    ("parallel", {}, None, True),
    ("parallel", TP, None, False),
    ("parallel", TP, TP, True),
    ("parallel", TP, TP | {"pp": {"rank": 0, "size": 1}}, True),
    ("parallel", TP, {"tp": {"rank": 0, "size": 2}}, False),
    ("parallel", TP, {"ep": {"rank": 1, "size": 2}}, False),
    ("parallel", None, TP, False),
    ("layer_scope", None, None, True),
    ("layer_scope", "all", None, True),
    ("layer_scope", None, "all", True),
    ("layer_scope", "0-3", None, False),
    ("layer_scope", "0-3", "0-3", True),
    ("layer_scope", "0-3", "0-4", False),
    ("layer_scope", None, "0-3", False),
    ("position_convention", None, None, True),
    ("position_convention", "absolute", None, True),
    ("position_convention", None, "absolute", True),
    ("position_convention", "relative", None, False),
    ("position_convention", "relative", "relative", True),
    ("position_convention", "none", "relative", False),
    ("position_convention", None, "relative", False),
]


@pytest.mark.parametrize(("field", "stated", "asked", "fits"), SCOPES)
def test_shard_layers_and_positions_fit_or_exclude(
    field: str, stated: Any, asked: Any, fits: bool
) -> None:
    verdict = judge(registration_document(**{field: stated}), query(**{field: asked}))
    if fits:
        assert verdict == COMPATIBLE
    else:
        assert isinstance(verdict, Mismatch)
        assert (verdict.field, verdict.reason) == (field, R(f"{field}_mismatch"))
        assert verdict.expected != verdict.found


@pytest.mark.parametrize(
    ("stated", "asked", "fits"),
    [
        ("chain-1", None, True),
        ("chain-1", "chain-1", True),
        ("chain-1", "chain-2", False),
        (None, "chain-2", False),
        (None, None, True),
    ],
)
def test_a_checkpoint_chain_binds_a_query_that_names_one(
    stated: str | None, asked: str | None, fits: bool
) -> None:
    checkpoint = None if stated is None else {"lineage": stated}
    document = with_type(registration_document(checkpoint=checkpoint), "kda_checkpoint")
    verdict = judge(document, query(checkpoint_lineage=asked))
    expected = Mismatch("checkpoint.lineage", R.CHECKPOINT_MISMATCH, asked, stated)
    assert verdict == (COMPATIBLE if fits else expected)


@pytest.mark.parametrize("text", ["all", "0", "0-31", "0-15,31", "0,2,4", "5-5"])
def test_layer_scopes_that_are_understood(text: str) -> None:
    assert is_layer_scope(text)


@pytest.mark.parametrize(
    "text", ["", "ALL", "0-", "-1", "1,1", "2,1", "0-3,3", "4-3", "0;1", " 0", "0\n", "٣", "1" * 7]
)
def test_layer_scopes_that_are_not(text: str) -> None:
    assert not is_layer_scope(text)


def test_a_long_value_is_cut_in_the_verdict() -> None:
    document = copy.deepcopy(registration_document())
    document["entry"]["layer_scope"] = "7" * 512
    verdict = judge(document)
    assert isinstance(verdict, Mismatch)
    assert verdict.found == "7" * 512
