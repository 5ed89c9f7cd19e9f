"""How each kind of state may be reused."""

import msgspec
import pytest
from contract_documents import registration_document

from app.contract.descriptor import AttentionStateDescriptor
from app.contract.enums import StateSemanticType
from app.contract.rules import (
    REUSE_RULES,
    ReuseRule,
    allows_partial,
    extent_unit_tokens,
    reuse_rule,
)

PREFIX_CLOSED = {"mha_kv", "gqa_kv", "mqa_kv", "mla_state"}


@pytest.mark.parametrize("semantic_type", StateSemanticType)
def test_every_attention_type_has_its_rule(semantic_type: StateSemanticType) -> None:
    expected = ReuseRule.EXACT_ONLY
    if semantic_type.value in PREFIX_CLOSED:
        expected = ReuseRule.PREFIX_CLOSED
    elif semantic_type is StateSemanticType.KDA_CHECKPOINT:
        expected = ReuseRule.CHECKPOINT
    assert reuse_rule(semantic_type) is expected


def test_no_attention_type_is_left_out() -> None:
    assert set(REUSE_RULES) == set(StateSemanticType)


def test_the_rules_have_the_numbers_of_the_index() -> None:
    assert [int(rule) for rule in ReuseRule] == [0, 1, 2]


def descriptor(granularity: str, capabilities: list[str]) -> AttentionStateDescriptor:
    document = registration_document()["entry"]["descriptor"]
    document["granularity"] = granularity
    document["layout"] |= {"page_tokens": 64, "block_tokens": 16}
    document["materialization"]["capabilities"] = capabilities
    return msgspec.convert(document, AttentionStateDescriptor)


@pytest.mark.parametrize(
    ("granularity", "unit_tokens"), [("token", 1), ("block", 16), ("page", 64), ("segment", 0)]
)
def test_extents_are_floored_to_the_granularity(granularity: str, unit_tokens: int) -> None:
    assert extent_unit_tokens(descriptor(granularity, [])) == unit_tokens


def test_partial_reuse_needs_the_capability() -> None:
    assert allows_partial(descriptor("token", ["full", "partial"]))
    assert not allows_partial(descriptor("token", ["full", "prefetch"]))
