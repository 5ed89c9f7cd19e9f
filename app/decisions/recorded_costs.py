"""The costs by which a decision was priced, from its record. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from app.planner.cost import PROFILES, CostProfile
from app.planner.profile import Profile
from app.planner.transfer_costs import ProfileCosts, costs_from


def costs_of(inputs: Mapping[str, Any]) -> CostProfile | ProfileCosts | None:
    """By the profile that is recorded whole; of older rows, by its name. None where neither is
    known, or what is recorded is of another version.
    """
    recorded = inputs.get("profile")
    if recorded is None:
        return PROFILES.get(str(inputs.get("cost_profile", "")))
    situation = inputs.get("situation") or {}
    try:
        return costs_from(
            msgspec.convert(recorded, Profile),
            inputs.get("link"),
            str(situation.get("locator", "")),
            str(situation.get("target_residency", "")),
        )
    except (msgspec.ValidationError, TypeError, ValueError):
        return None
