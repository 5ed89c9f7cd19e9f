"""Questions to the planner as tests ask them: one fleet, varied."""

from typing import Any

from app.contract.enums import TierKind
from app.planner.links import Link, Links
from app.planner.profile import Path, Prefill, Profile
from app.planner.question import Question, Source, Target

PREFILL = Prefill(schedule_us=100.0, per_token_us=20.0, per_pair_us=0.001, uncertainty=0.1)
PATHS = (
    Path(TierKind.DEVICE, 5.0, 200_000.0, 0.1, remote=False),
    Path(TierKind.HOST_DRAM, 50.0, 20_000.0, 0.1, remote=False),
    Path(TierKind.HOST_DRAM, 500.0, 5_000.0, 0.2, remote=True),
    Path(TierKind.LOCAL_SSD, 200.0, 2_000.0, 0.2),
)
PROFILE = Profile(
    schema_version="nexuskv.cost_profile.v1",
    name="test",
    source="made up",
    prefill=PREFILL,
    paths=PATHS,
    restore_us=50.0,
    default_bytes_per_token=100_000.0,
    lookup_us=30.0,
    sync_us=10.0,
    decode_slowdown=1e-5,
    queued_tokens=1_000.0,
)


def target(engine_id: str = "e1", **changes: Any) -> Target:
    """An idle engine on `node-1`."""
    given: dict[str, Any] = {
        "queue_depth": 0,
        "queued_prefill_tokens": 0,
        "node": "node-1",
    } | changes
    return Target(engine_id, given.pop("generation", 1), given.pop("node"), PROFILE, **given)


def source(entry_id: str = "s1", tokens: int = 4_000, **changes: Any) -> Source:
    """State in the memory of `node-2`."""
    given: dict[str, Any] = {
        "node": "node-2",
        "tier": TierKind.HOST_DRAM,
        "bytes_per_token": 10_000.0,
    } | changes
    return Source(entry_id, given.pop("node"), given.pop("tier"), tokens, **given)


def question(tokens: int = 5_000, **changes: Any) -> Question:
    """One idle target, one source."""
    given: dict[str, Any] = {"targets": (target(),), "sources": (source(),)} | changes
    return Question(tokens, given.pop("targets"), given.pop("sources"), **given)


def links(**known: Link) -> Links:
    """From `node-2` to `node-1`."""
    return Links(("node-1", "node-2"), {("node-2", "node-1"): known["to_1"]})
