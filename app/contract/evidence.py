"""What a state was computed under, and what a query is to be computed under."""

from msgspec import Struct

from app.contract.limits import Label, Name
from app.contract.scope import ParallelScope


class ModelIdentity(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """`adapter_revision` is null when no adapter is applied; it must be said either way."""

    model_revision: Name
    adapter_revision: Label | None
    execution_profile: Name


class ComponentIdentity(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    kind: Name
    revision: Name
    fingerprint: Name


class InputSemanticIdentity(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Everything that turned the request into tokens."""

    tokenizer: ComponentIdentity
    template: ComponentIdentity
    multimodal_preprocessing: ComponentIdentity | None


class Evidence(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Registered with a state; a state without it is never reusable."""

    model_identity: ModelIdentity
    input_semantic_identity: InputSemanticIdentity
    input_fingerprint: Name


class QueryEvidence(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """What a lookup brings. The optional fields name the shard and frame it can take."""

    model_identity: ModelIdentity
    input_semantic_identity: InputSemanticIdentity
    input_fingerprint: Name
    parallel: ParallelScope | None = None
    layer_scope: Label | None = None
    position_convention: Label | None = None
    checkpoint_lineage: Label | None = None
