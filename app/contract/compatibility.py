"""Whether a matched state is safe for a query. It fails closed and names the field that differs.

One table of what is compared, in order: what both were computed under, the
input fingerprint, then shard, layers, position frame and checkpoint chain. What the state alone
decides is in `standing`.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from app.contract.entry import CacheEntry
from app.contract.enums import ExclusionReason
from app.contract.evidence import Evidence, QueryEvidence
from app.contract.scope import ALL_LAYERS, PositionConvention, sharding
from app.contract.standing import standing
from app.contract.verdict import COMPATIBLE, Compatible, Mismatch, Verdict, shown

__all__ = ["COMPARED", "COMPATIBLE", "Compatible", "Mismatch", "Verdict", "compare"]

Extract = Callable[[Any], object]


class Compared(NamedTuple):
    """`state` extracts from the evidence or the entry, `query` from the query's evidence."""

    field: str
    reason: ExclusionReason
    state: Extract
    query: Extract
    rule: Callable[[object, object], bool]
    exact_only: bool = False


def _equal(state: object, query: object) -> bool:
    return state == query


def _equal_if_stated(state: object, query: object) -> bool:
    return state is None or state == query


def _equal_if_asked(state: object, query: object) -> bool:
    return query is None or state == query


def _evidence(field: str) -> Compared:
    value = attrgetter(field)
    return Compared(field, ExclusionReason.EVIDENCE_MISMATCH, value, value, _equal)


def _component(component: str, field: str) -> Compared:
    part, value = attrgetter(f"input_semantic_identity.{component}"), attrgetter(field)

    def extract(evidence: Evidence | QueryEvidence) -> object:
        identity = part(evidence)
        return None if identity is None else value(identity)

    name = f"input_semantic_identity.{component}.{field}"
    return Compared(name, ExclusionReason.EVIDENCE_MISMATCH, extract, extract, _equal)


def _revision(field: str) -> Compared:
    return Compared(
        field,
        ExclusionReason.MODEL_MISMATCH,
        attrgetter(field),
        attrgetter(f"model_identity.{field}"),
        _equal_if_stated,
    )


def _layers(side: CacheEntry | QueryEvidence) -> object:
    return ALL_LAYERS if side.layer_scope is None else side.layer_scope


def _position(side: CacheEntry | QueryEvidence) -> object:
    convention = side.position_convention
    return PositionConvention.ABSOLUTE.value if convention is None else convention


def _shards(side: CacheEntry | QueryEvidence) -> object:
    return sharding(side.parallel)


def _chain(entry: CacheEntry) -> object:
    return None if entry.checkpoint is None else entry.checkpoint.lineage


_EVIDENCE = (
    _evidence("model_identity.model_revision"),
    _evidence("model_identity.adapter_revision"),
    _evidence("model_identity.execution_profile"),
    *(
        _component(component, field)
        for component in ("tokenizer", "template", "multimodal_preprocessing")
        for field in ("kind", "revision", "fingerprint")
    ),
)
_FINGERPRINT = (
    # It covers the whole input: a state of a shorter input rightly has another one.
    Compared(
        "input_fingerprint",
        ExclusionReason.FINGERPRINT_MISMATCH,
        attrgetter("input_fingerprint"),
        attrgetter("input_fingerprint"),
        _equal,
        exact_only=True,
    ),
)
_SCOPE = (
    _revision("model_revision"),
    _revision("adapter_revision"),
    Compared("parallel", ExclusionReason.PARALLEL_MISMATCH, _shards, _shards, _equal),
    Compared("layer_scope", ExclusionReason.LAYER_SCOPE_MISMATCH, _layers, _layers, _equal),
    Compared(
        "position_convention",
        ExclusionReason.POSITION_CONVENTION_MISMATCH,
        _position,
        _position,
        _equal,
    ),
    Compared(
        "checkpoint.lineage",
        ExclusionReason.CHECKPOINT_MISMATCH,
        _chain,
        attrgetter("checkpoint_lineage"),
        _equal_if_asked,
    ),
)
COMPARED = (*_EVIDENCE, *_FINGERPRINT, *_SCOPE)


def compare(
    entry: CacheEntry,
    registered: Evidence | None,
    query: QueryEvidence,
    *,
    exact: bool,
    known: Verdict | None = None,
) -> Verdict:
    """Compatible, or the first row that fails: evidence, fingerprint, standing, then scope.

    `exact` says that the query is the whole entry. `known` is a kept `standing(entry)`.
    """
    if registered is None:
        return Mismatch("validation", ExclusionReason.EVIDENCE_MISSING, "evidence", None)
    same = (
        registered.model_identity == query.model_identity
        and registered.input_semantic_identity == query.input_semantic_identity
    )
    return (
        (None if same else _first_failure(_EVIDENCE, registered, query, exact=exact))
        or _first_failure(_FINGERPRINT, registered, query, exact=exact)
        or _unfit(standing(entry) if known is None else known)
        or (None if _is_plain(entry, query) else _first_failure(_SCOPE, entry, query, exact=exact))
        or COMPATIBLE
    )


def _is_plain(entry: CacheEntry, query: QueryEvidence) -> bool:
    """Whether neither side uses an optional field, so that every SCOPE row holds."""
    return (
        entry.model_revision is None
        and entry.adapter_revision is None
        and entry.parallel is query.parallel is None
        and entry.layer_scope is query.layer_scope is None
        and entry.position_convention is query.position_convention is None
        and query.checkpoint_lineage is None
    )


def _unfit(verdict: Verdict) -> Mismatch | None:
    return verdict if isinstance(verdict, Mismatch) else None


def _first_failure(
    rows: tuple[Compared, ...],
    state: CacheEntry | Evidence,
    query: QueryEvidence,
    *,
    exact: bool,
) -> Mismatch | None:
    for row in rows:
        if row.exact_only and not exact:
            continue
        held, asked = row.state(state), row.query(query)
        if not row.rule(held, asked):
            return Mismatch(row.field, row.reason, shown(asked), shown(held))
    return None
