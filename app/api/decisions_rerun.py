"""`GET /v1/decisions/{id}/rerun`: a decision made again from its record, under a policy."""

from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Row

from app.api.declared import errors_of
from app.contract.limits import MAX_I63
from app.control.auth import require_scope
from app.control.keys import Scope
from app.decisions.repository import DecisionRepository
from app.dependencies import DecisionsReader, ServicesDep
from app.errors import ErrorCode, NexusError
from app.lifecycle.rerun import recorded, rerun
from app.policy.document import ExecutionPolicy, load_policy
from app.policy.store import no_policy
from app.services import Services

_FILE: Final = "file"


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
    label, under = await _policy(services, one, query.policy)
    before, again = recorded(one), rerun(one, under)
    return RerunView(
        decision_id=one.decision_id,
        recorded_policy_version=one.policy_version,
        policy_version=label,
        recorded=ChosenView.model_validate(before),
        again=ChosenView.model_validate(again),
        same=before == again,
    )


async def _policy(
    services: Services, one: Row[Any], number: int | None
) -> tuple[str, ExecutionPolicy]:
    """The one asked for, else the decision's own, and its label.

    Raises NOT_FOUND, NOT_RERUNNABLE.
    """
    current = services.policy_provider.current
    if number is None:
        if one.policy_version == current.label:
            return current.label, current.policy
        named, _, version = one.policy_version.partition(":")
        if named == _FILE:
            document = await services.policies.of_file(version)
            if document is None:
                raise NexusError(
                    ErrorCode.NOT_RERUNNABLE,
                    "This decision was made under a policy file that was not kept; name a stored"
                    " version with `policy`",
                )
            return one.policy_version, load_policy(document)
        number = int(named)
    stored = await services.policies.get(number)
    if stored is None:
        raise no_policy(number)
    policy = load_policy(stored.document)
    return f"{number}:{policy.version}", policy


def rerun_errors() -> dict[int | str, dict[str, Any]]:
    return errors_of(ErrorCode.UNKNOWN_FIELD, ErrorCode.NOT_FOUND, ErrorCode.NOT_RERUNNABLE)
