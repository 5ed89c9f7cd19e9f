"""`GET /v1/decisions/{id}/rerun`: a decision made again from its record, under a policy."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from app.api.declared import errors_of
from app.api.policy_labels import policy_of, policy_of_label
from app.contract.limits import MAX_I63
from app.control.auth import require_scope
from app.control.keys import Scope
from app.decisions.repository import DecisionRepository
from app.dependencies import DecisionsReader, ServicesDep
from app.errors import ErrorCode
from app.lifecycle.rerun import recorded, rerun


class ChosenView(BaseModel):
    """What a decision comes to, before anything is executed."""

    model_config = ConfigDict(from_attributes=True)

    action: str = Field(description="reuse, transfer, register, recompute or skip.")
    reason: str | None = Field(description="Why no state is used; null when one is.")
    entry_id: str | None = Field(description="The cache entry used, or asked for.")
    matched_tokens: int | None
    backend: str | None = Field(description="Which backend is to bring it, if one of ours is.")
    predicted_us: int | None = Field(description="Predicted time to bring it, in microseconds.")


class RerunView(BaseModel):
    """A decision as it was made, and as it comes out now."""

    decision_id: UUID
    recorded_policy_version: str
    policy_version: str = Field(description="The policy that it was made again under.")
    recorded: ChosenView
    again: ChosenView
    same: bool = Field(description="Whether both come to the same.")


class RerunQuery(BaseModel):
    """Under which policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: int | None = Field(
        None,
        ge=1,
        le=MAX_I63,
        description="Number of a stored policy version, which needs `policies:read` as well;"
        " without it, the policy of the decision.",
    )


async def rerun_decision(
    decision_id: UUID,
    query: Annotated[RerunQuery, Query()],
    principal: DecisionsReader,
    services: ServicesDep,
) -> RerunView:
    """Plan and policy run again over what was recorded: the same record under the same policy comes
    out the same, and under another one as that would have decided. Nothing is executed.
    """
    if query.policy is not None:
        # What a version would decide tells what it says.
        require_scope(principal, Scope.POLICIES_READ)
    async with services.database.read() as session:
        found = await DecisionRepository(session).history(decision_id, tenants=principal.tenants)
    one = found.decision
    if query.policy is None:
        under = await policy_of_label(services, one.policy_version)
    else:
        under = await policy_of(services, query.policy)
    before, again = recorded(one), rerun(one, under.policy)
    return RerunView(
        decision_id=one.decision_id,
        recorded_policy_version=one.policy_version,
        policy_version=under.label,
        recorded=ChosenView.model_validate(before),
        again=ChosenView.model_validate(again),
        same=before == again,
    )


def rerun_errors() -> dict[int | str, dict[str, Any]]:
    return errors_of(ErrorCode.UNKNOWN_FIELD, ErrorCode.NOT_FOUND, ErrorCode.NOT_RERUNNABLE)
