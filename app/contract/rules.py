"""How a kind of state may be reused: one table by attention type, and what a descriptor allows."""

from enum import IntEnum
from types import MappingProxyType

from app.contract.descriptor import AttentionStateDescriptor
from app.contract.enums import Granularity, MaterializationCapability, StateSemanticType


class ReuseRule(IntEnum):
    """The values are those of the compiled index.

    PREFIX_CLOSED: any prefix of the state is a state. CHECKPOINT: only the whole registered
    state restores, but a longer query may continue from it. EXACT_ONLY: the very same query.
    """

    PREFIX_CLOSED = 0
    CHECKPOINT = 1
    EXACT_ONLY = 2


# Causal attention keeps per-token state that later tokens never change, so prefixes are states.
# A recurrent state is one point in time. Of the others, dependencies reach outside the prefix.
REUSE_RULES = MappingProxyType(
    {
        StateSemanticType.MHA_KV: ReuseRule.PREFIX_CLOSED,
        StateSemanticType.GQA_KV: ReuseRule.PREFIX_CLOSED,
        StateSemanticType.MQA_KV: ReuseRule.PREFIX_CLOSED,
        StateSemanticType.MLA_STATE: ReuseRule.PREFIX_CLOSED,
        StateSemanticType.KDA_CHECKPOINT: ReuseRule.CHECKPOINT,
        StateSemanticType.DSA_STATE: ReuseRule.EXACT_ONLY,
        StateSemanticType.CSA_STATE: ReuseRule.EXACT_ONLY,
        StateSemanticType.HCA_SUMMARY: ReuseRule.EXACT_ONLY,
        StateSemanticType.DSPARK_SPARSE: ReuseRule.EXACT_ONLY,
        StateSemanticType.SPARSE_INDEXED_STATE: ReuseRule.EXACT_ONLY,
        StateSemanticType.MULTIMODAL_VISION: ReuseRule.EXACT_ONLY,
        StateSemanticType.AGENT_TOT_COW: ReuseRule.EXACT_ONLY,
        StateSemanticType.GENERIC_CONTAINER: ReuseRule.EXACT_ONLY,
    }
)


def reuse_rule(semantic_type: StateSemanticType) -> ReuseRule:
    return REUSE_RULES[semantic_type]


def extent_unit_tokens(descriptor: AttentionStateDescriptor) -> int:
    """Tokens that an extent is floored to a multiple of; 0 means the state is indivisible."""
    match descriptor.granularity:
        case Granularity.TOKEN:
            return 1
        case Granularity.BLOCK:
            return descriptor.layout.block_tokens
        case Granularity.PAGE:
            return descriptor.layout.page_tokens
        case Granularity.SEGMENT:
            return 0


def allows_partial(descriptor: AttentionStateDescriptor) -> bool:
    """Whether a part of the state can be materialized without the rest."""
    return MaterializationCapability.PARTIAL in descriptor.materialization.capabilities
