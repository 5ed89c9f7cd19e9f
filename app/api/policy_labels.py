"""Policies by what names them: a number, or the label that a decision has recorded."""

from typing import Final

from app.errors import ErrorCode, NexusError
from app.policy.document import load_policy
from app.policy.provider import ActivePolicy
from app.policy.store import no_policy
from app.services import Services

_FILE: Final = "file"


async def policy_of(services: Services, number: int) -> ActivePolicy:
    """A stored version. Raises NOT_FOUND."""
    stored = await services.policies.get(number)
    if stored is None:
        raise no_policy(number)
    policy = load_policy(stored.document)
    return ActivePolicy(policy, f"{number}:{policy.version}", None)


async def policy_of_label(services: Services, label: str) -> ActivePolicy:
    """A decision's own. Raises NOT_FOUND, NOT_RERUNNABLE."""
    current = services.policy_provider.current
    if label == current.label:
        return current
    named, _, version = label.partition(":")
    if named.isdecimal():
        return await policy_of(services, int(named))
    if named != _FILE:
        raise NexusError(
            ErrorCode.NOT_RERUNNABLE, "The decision's record does not say which policy it was of"
        )
    document = await services.policies.of_file(version)
    if document is None:
        raise NexusError(
            ErrorCode.NOT_RERUNNABLE,
            "This decision was made under a policy file that was not kept; name a stored"
            " version with `policy`",
        )
    return ActivePolicy(load_policy(document), label, None)
