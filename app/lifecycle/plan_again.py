"""A plan made again from its record, to be explained. Pure."""

from typing import Any, Final

from sqlalchemy import Row

from app.errors import NexusError
from app.lifecycle.plan import Planned
from app.lifecycle.plan_record import RecordedPlan, asked_again, not_rerunnable
from app.lifecycle.plan_told import Teller
from app.planner.choose import plan
from app.planner.explain import considered
from app.planner.links import Links
from app.policy.provider import ActivePolicy

_US: Final = 1_000_000
# Roundings apart.
_SAME_US: Final = 1


def planned_again(
    one: Row[Any], recorded: RecordedPlan, active: ActivePolicy, links: Links | None, *, full: bool
) -> Planned:
    """The plan of a decision as it was told then; `links` are those of its topology.

    Raises NOT_RERUNNABLE, also where it comes out otherwise: another build has made it.
    """
    asked, devices = asked_again(recorded, links)
    try:
        found = plan(asked.question)
        told = Teller(asked, active.policy, devices).plan(
            found, considered(asked.question, found) if full else None
        )
    except (NexusError, ArithmeticError, ValueError) as error:
        raise not_rerunnable("its record does not hold together", repr(error)) from error
    chosen, before = told.chosen, one.estimate if isinstance(one.estimate, dict) else {}
    moved = abs(chosen.total_us - before.get("total_us", chosen.total_us)) > _SAME_US
    if moved or before.get("action", chosen.action) != chosen.action:
        raise not_rerunnable(
            "another version of the planner made it, and this one would choose otherwise", ""
        )
    return Planned(
        told,
        one.decision_id,
        round(one.created_at.timestamp() * _US),
        one.policy_version,
        recorded.topology,
        one.inputs.get("engines", "unknown"),
        one.freshness or "",
    )
