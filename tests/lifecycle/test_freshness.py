"""What a lookup says when this replica can no longer tell what is registered."""

import pytest

from app.errors import ErrorCode, NexusError
from tests.fixtures.wire import INPUT_IDENTITY, error_code

MATCH = "x-nexuskv-match"
STALE_S = 5.0


async def fall_behind(gated, gate):
    """Postgres is gone, and longer than polls may fail."""
    gate.close()
    with pytest.raises(NexusError) as caught:
        await gated.services.sync.poll()
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    gated.clock.advance(STALE_S + 1)


async def test_absence_is_unknown_and_hits_still_answer(gated, gate):
    await gated.register("t")
    await fall_behind(gated, gate)
    missing = await gated.lookup("t", tokens=[9, 9, 9])
    assert (missing.status_code, missing.json()["match_result"]) == (200, None)
    assert missing.headers[MATCH] == "unknown"
    hit = await gated.lookup("t")
    assert hit.json()["match_result"]["classification"] == "exact"
    assert MATCH not in hit.headers
    gate.open()
    await gated.services.sync.poll()
    known = await gated.lookup("t", tokens=[9, 9, 9])
    assert known.json()["match_result"] is None
    assert MATCH not in known.headers
    history = await gated.decisions(kind="lookup")
    assert [(item["outcome"], item["fallback_reason"]) for item in history] == [
        ("miss", "cache_miss"),
        ("hit", None),
        ("unknown", "index_behind"),
    ]


async def test_a_conflict_is_not_certain_either_while_states_may_be_missing(gated, gate):
    await gated.register("t")
    evidence = {"input_identity": INPUT_IDENTITY, "fingerprint": "another"}
    conflict = await gated.lookup("t", **evidence)
    assert error_code(conflict) == (409, "validation_evidence_mismatch")
    await fall_behind(gated, gate)
    unsure = await gated.lookup("t", **evidence)
    assert (unsure.status_code, unsure.headers[MATCH]) == (200, "unknown")
    assert unsure.json()["match_result"] is None
    gate.open()
    last, first = await gated.decisions(kind="lookup")
    assert (first["outcome"], last["outcome"]) == ("excluded", "unknown")
    detail = await gated.client.get(f"/v1/decisions/{last['decision_id']}")
    # What was looked at is recorded all the same.
    assert [item["reason"] for item in detail.json()["excluded"]] == ["fingerprint_mismatch"]


async def test_a_short_outage_changes_no_answer(gated, gate):
    gate.close()
    gated.clock.advance(STALE_S - 2)
    answer = await gated.lookup("t")
    assert MATCH not in answer.headers
    assert answer.json()["match_result"] is None
