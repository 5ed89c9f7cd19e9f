"""Why a request was answered as it was, in words for whoever operates it. Pure.

Reasons of a decision are a closed set: the contract's reasons to fall back and to exclude, what the
index could not tell, and the codes of errors. Each of them has its sentence here; a test holds the
set and the sentences together.
"""

from typing import Final, NamedTuple

from app.contract.enums import ExclusionReason, FallbackReason
from app.decisions.record import DecisionOutcome, LostReason, OutcomeStatus
from app.errors import ERROR_RULES, ErrorCode
from app.index.matcher import Freshness
from app.planner.prefetch import PrefetchRefusal
from app.planner.question import PlanExclusion


class Said(NamedTuple):
    """What happened, and what an operator can do about it; "" when there is nothing to do."""

    what: str
    do: str


_F, _X, _E = FallbackReason, ExclusionReason, ErrorCode

FALLBACKS: Final[dict[FallbackReason, Said]] = {
    _F.UNSUPPORTED_CAPABILITY: Said(
        "No backend is able to bring this state to that place in the form that was asked for.",
        "Compare what the candidates below lack with what the target's workers offer.",
    ),
    _F.PREFERRED_BACKEND_UNAVAILABLE: Said(
        "The transfer was not carried out: its backend or worker was away, failed, or was told to"
        " stop, and no other one may stand in for it.",
        "Look at the workers' page; a policy with `degrade` lets a lesser backend take over.",
    ),
    _F.NO_TRANSFER_PATH: Said(
        "No backend reads the tier where the state lies and writes the one where it is wanted.",
        "Register workers with a backend for this pair of tiers, or keep the state elsewhere.",
    ),
    _F.LOOKUP_UNSUPPORTED: Said(
        "What was asked for cannot be looked up for this kind of state.",
        "Nothing is wrong with the request; this kind of state is always computed again.",
    ),
    _F.CACHE_MISS: Said(
        "No registered state begins with the tokens of this request.",
        "Expected for a new prompt. If it was seen before, check under which tenant, namespace,"
        " model and kind it was registered, and whether it was evicted since.",
    ),
    _F.ENGINE_POLICY: Said(
        "The policy in force, or the engine itself, did not allow the transfer.",
        "Read the policy version of this decision, and what it says of the backend and tiers.",
    ),
}

EXCLUSIONS: Final[dict[ExclusionReason, Said]] = {
    _X.EVIDENCE_MISSING: Said(
        "The state was registered without evidence of the model and input it was computed with.",
        "Register it again with a `validation`.",
    ),
    _X.EVIDENCE_MISMATCH: Said(
        "The state was computed under another model revision, tokenizer, template or profile.",
        "Nothing, if that changed on purpose: such states are not reusable. Otherwise compare the"
        " identity that the caller sends with the registered one.",
    ),
    _X.FINGERPRINT_MISMATCH: Said(
        "The tokens are the same and the whole input is not, so the state is not of this request.",
        "Look for inputs beside the tokens, such as images, that differ.",
    ),
    _X.NOT_REUSABLE: Said(
        "Whoever registered the state said that it must not be reused.",
        "Change its `policy_hint.reusable` where that is not meant.",
    ),
    _X.UNKNOWN_VALUE: Said(
        "The state's description has a value that is not known here, so nothing is assumed of it.",
        "Upgrade the service, or the engine that registered it, so that both know the same values.",
    ),
    _X.MODEL_MISMATCH: Said(
        "The state is of another model.", "Check the model's name in the request."
    ),
    _X.PARALLEL_MISMATCH: Said(
        "The state is laid out for another parallel layout of the engine.",
        "Reuse needs the same tensor and pipeline parallel degrees.",
    ),
    _X.LAYER_SCOPE_MISMATCH: Said(
        "The state holds other layers than the request needs.", "Register states of all layers."
    ),
    _X.POSITION_CONVENTION_MISMATCH: Said(
        "The state was computed with another convention of positions.",
        "Reuse needs the same position encoding and offset.",
    ),
    _X.CHECKPOINT_MISMATCH: Said(
        "A recurrent state can only be restored at a checkpoint, and the match ends elsewhere.",
        "Have the engine register checkpoints where prompts part, after the system prompt say.",
    ),
    _X.BELOW_GRANULARITY: Said(
        "What matches is shorter than one block or page, the least that the engine can take.",
        "Nothing: the rest of a block is computed faster than it is moved.",
    ),
    _X.SUPERSEDED: Said("A newer generation of the state has taken its place.", ""),
    _X.UNAVAILABLE: Said(
        "A state fits, and it lies on a worker that is silent or has reported it gone.",
        "Look at the workers' page: start the worker again, or register the state elsewhere.",
    ),
    _X.POLICY_DENIED: Said(
        "A state fits, and the policy in force lets no backend read the tier where it lies.",
        "Add the tier to `allowed_source_tiers`, or keep such states in another tier.",
    ),
}

UNSURE: Final[dict[str, Said]] = {
    f"index_{Freshness.BEHIND.value}": Said(
        "The index was behind what is registered, so that no match did not mean that there is none."
        " This counts as unknown, not as a miss.",
        "Passes by itself once Postgres answers in time; /readyz says how it is.",
    ),
    f"index_{Freshness.LOADING.value}": Said(
        "The index was still being loaded after a start.",
        "Passes by itself; send traffic once /readyz says yes.",
    ),
    "engines_unknown": Said(
        "An engine that may hold it could not be asked: frames of its events are missing, or it"
        " was not heard. This counts as unknown, not as a miss.",
        "Look at the engines' page for gaps and lag.",
    ),
    "cancelled": Said("The caller went away before there was an answer.", ""),
}

LOST: Final[dict[LostReason, Said]] = {
    LostReason.SHORTER_MATCH: Said("It could be used, and covers fewer tokens of the request.", ""),
    LostReason.RANKED_LOWER: Said(
        "It covers as many tokens, and lies in a slower tier or comes later in a fixed order.", ""
    ),
    LostReason.LOWER_PRIORITY: Said(
        "It could bring the state as well, and the policy takes another backend first.", ""
    ),
    LostReason.STATE_FOUND: Said(
        "There is a state to use; what bringing it costs is told by the estimate.", ""
    ),
    LostReason.DEARER: Said("It is predicted to take longer than bringing the state.", ""),
    LostReason.CALLER_DECIDES: Said(
        "It is predicted to be quicker; the caller was told so, and asked for the transfer.",
        "Have the caller compare `transfer_us` of the estimate with its own prefill.",
    ),
    LostReason.POLICY_SKIPS: Said(
        "What is not brought is not computed here: the policy says to skip, or there was nothing"
        " to compute.",
        "",
    ),
}

ERRORS: Final[dict[ErrorCode, Said]] = {
    _E.SOURCE_HANDLE_MISMATCH: Said(
        "The source handle was of another tenant, had expired, or its state was replaced since.",
        "Look up again right before estimating; handles live for minutes.",
    ),
    _E.SOURCE_STATE_MISMATCH: Said(
        "The request named another state than its source handle is for.",
        "Send back `entry_id` exactly as the lookup answered it.",
    ),
    _E.SOURCE_LOCATION_MISMATCH: Said(
        "The state lies elsewhere now than the request says.",
        "Look up again: the state has moved since.",
    ),
    _E.UNKNOWN_MATERIALIZATION_OPTION: Said(
        "No option of this service has the id that was sent.",
        "Send the option of the estimate; all replicas need the same handle secret.",
    ),
    _E.MATERIALIZATION_OPTION_CONSUMED: Said(
        "The option was used before, by another import.",
        "Estimate again for each import; repeat one with the same `import_id`.",
    ),
    _E.MATERIALIZATION_OPTION_EXPIRED: Said(
        "The option was too old when it was used.",
        "Materialize within half a minute of the estimate.",
    ),
    _E.MATERIALIZATION_OPTION_MISMATCH: Said(
        "The option is for another request than the one it came with.",
        "Send the option back with the values of its own estimate.",
    ),
    _E.MATERIALIZATION_TARGET_MISMATCH: Said(
        "The engine or its generation is not the one the estimate was for.",
        "The engine has restarted in between: look up and estimate again.",
    ),
    _E.STALE_GENERATION: Said(
        "The engine has started again since, so what was meant for the old one is worth nothing.",
        "Look up and estimate again.",
    ),
    _E.VALIDATION_EVIDENCE_MISSING: EXCLUSIONS[_X.EVIDENCE_MISSING],
    _E.VALIDATION_EVIDENCE_MISMATCH: EXCLUSIONS[_X.EVIDENCE_MISMATCH],
    _E.UNSUPPORTED_IDENTITY: Said(
        "The request named a kind of state that the contract does not have.",
        "Use one of the values of `semantic_type` in the contract.",
    ),
    _E.MATERIALIZATION_UNAVAILABLE: FALLBACKS[_F.PREFERRED_BACKEND_UNAVAILABLE],
    _E.DATABASE_UNAVAILABLE: Said(
        "Postgres did not answer in time, and without it this step cannot be taken safely.",
        "Check Postgres; the same request may be tried again.",
    ),
    _E.OVERLOADED: Said(
        "The service, or the backend, was at a limit.",
        "The same request may be tried again; add replicas if this goes on.",
    ),
    _E.WORKER_FULL: Said(
        "The worker had no room for the state.",
        "Give it more memory, or remove payloads that nobody uses.",
    ),
    _E.INTERNAL_ERROR: Said(
        "Something failed in the service itself.",
        "The log has the details under the trace id of this decision.",
    ),
}

_P = PlanExclusion

PLANS: Final[dict[PlanExclusion, Said]] = {
    _P.INCOMPATIBLE: Said(
        "It is not proven to be the same state: its evidence, layout or revision differs, or there"
        " is none.",
        "Give the plan the evidence of the request, and register engines with their layouts.",
    ),
    _P.UNAVAILABLE: Said(
        "Its worker or engine was silent, or no longer held it.",
        "Look at the workers' and engines' pages.",
    ),
    _P.POLICY_DENIED: Said(
        "The policy lets no backend read that tier into such a device.",
        "Allow the tier and a backend in the policy if this state should be used.",
    ),
    _P.UNKNOWN_GENERATION: Said(
        "It was said of another process of the engine than the one that is known now.",
        "Send the `epoch` of a recent match, and match again after a restart.",
    ),
    _P.QUOTA: Said(
        "The tenant's quota does not allow to move so much, or one transfer more.",
        "Wait until its transfers end, or raise the quota in the policy.",
    ),
    _P.NOT_LONGER: Said("The target has as much of the prefix itself.", ""),
    _P.NO_PATH: Said(
        "Neither the cost profile nor the topology knows a way from that tier.",
        "Add a path to the profile, or the link to the topology.",
    ),
    _P.LINK_BUSY: Said(
        "As many transfers ran on the link as it takes.",
        "Raise `max_in_flight` of the link if it can take more.",
    ),
    _P.NO_CAPACITY: Said(
        "The target had no free blocks for it.",
        "Send `free_blocks` as they are; more of them need another engine.",
    ),
    _P.OVERLOADED: Said(
        "The target's queue was longer than the policy lets it grow.",
        "Raise `cost_bounds.max_queue_us`, or add engines.",
    ),
    _P.DEADLINE: Said(
        "It would have been ready later than it was wanted.",
        "A later deadline, a shorter queue or a quicker link would allow it.",
    ),
    _P.GAIN_UNCERTAIN: Said(
        "Less would have been gained than is uncertain.",
        "Calibrated profiles are surer; `cost_bounds.deviations` says how sure it must be.",
    ),
    _P.SLOWER: Said("Another alternative was ready sooner.", ""),
}

_R = PrefetchRefusal

PREFETCHES: Final[dict[PrefetchRefusal, Said]] = {
    _R.UNLIKELY: Said(
        "Its use was less likely than the policy asks for.",
        "`prefetch_budgets.min_use_probability` says how likely it must be.",
    ),
    _R.NOT_WORTH_IT: Said(
        "Less was to be expected of it than it would have cost.",
        "The figures are in the input record: gain, transfer, and how likely its use was.",
    ),
    _R.TOO_LATE: Said(
        "It would have been there after it was wanted.",
        "Ask earlier, or from a tier or over a link that is quicker.",
    ),
    _R.BUDGET_BYTES: Said(
        "As many bytes were on their way for the tenant as the policy allows.",
        "Wait until they are there, or raise `prefetch_budgets.max_bytes_in_flight`.",
    ),
    _R.BUDGET_BANDWIDTH: Said(
        "The tenant's prefetches needed as much bandwidth as the policy allows.",
        "Ask earlier, so that less is needed, or raise `prefetch_budgets.max_bytes_per_us`.",
    ),
    _R.BUDGET_TIER_SHARE: Said(
        "Prefetches filled as much of the target's tier as the policy allows.",
        "Wait until they are used, or raise `prefetch_budgets.max_tier_share`.",
    ),
    _R.TIER_BUSY: Said(
        "As many transfers wrote the target's tier as the topology says that it takes.",
        "Wait, or raise `max_in_flight` of the tier.",
    ),
}

ENDINGS: Final[dict[DecisionOutcome, str]] = {
    DecisionOutcome.HIT: "A state was found that may be reused.",
    DecisionOutcome.MISS: "No state was found, so the input was computed again.",
    DecisionOutcome.UNKNOWN: "It could not be told whether there is a state, so the input was"
    " computed again.",
    DecisionOutcome.EXCLUDED: "States matched and none of them may be used, so the input was"
    " computed again.",
    DecisionOutcome.REJECTED: "The request was refused, so nothing was reused.",
    DecisionOutcome.ESTIMATED: "It was priced what bringing the state would cost.",
    DecisionOutcome.MATERIALIZED: "A worker brought the state and verified its bytes.",
    DecisionOutcome.ACKNOWLEDGED: "The engine took the state by itself; NexusKV moved nothing.",
    DecisionOutcome.TRANSFERRED: "A worker moved the state and verified its bytes.",
    DecisionOutcome.PLANNED: "A plan was made; whoever asked for it carries it out.",
    DecisionOutcome.REPLAYED: "It was asked for before: the stored answer was given again.",
    DecisionOutcome.UNAVAILABLE: "The state could not be had just then, so the input was computed"
    " again, or nothing was done.",
}

AFTERWARDS: Final[dict[OutcomeStatus, str]] = {
    OutcomeStatus.COMPLETED: "A worker verified the bytes where they were to go.",
    OutcomeStatus.REGISTERED: "The protocol was completed; no bytes were moved by NexusKV.",
    OutcomeStatus.FELL_BACK: "Nothing was executed, and the engine computed instead.",
    OutcomeStatus.CONSUMED: "The engine used the state.",
    OutcomeStatus.DISCARDED: "The engine threw the state away unused.",
    OutcomeStatus.EXPIRED: "The engine did not fetch the state in time.",
    OutcomeStatus.RECOMPUTED: "The engine computed the tokens again all the same.",
}

_OTHER: Final = Said("The reason that was given is `{}`.", "")


_SAID: Final[dict[str, Said]] = {
    **{
        code.value: ERRORS.get(code) or Said(f"{rule.title}.", "")
        for code, rule in ERROR_RULES.items()
    },
    **UNSURE,
    **{reason.value: found for reason, found in PLANS.items()},
    **{reason.value: found for reason, found in PREFETCHES.items()},
    **{reason.value: found for reason, found in LOST.items()},
    **{reason.value: found for reason, found in EXCLUSIONS.items()},
    **{reason.value: found for reason, found in FALLBACKS.items()},
}


def said(reason: str) -> Said:
    """What a reason means. Every reason of this version has its sentence."""
    return _SAID.get(reason) or _OTHER._replace(what=_OTHER.what.format(reason))
