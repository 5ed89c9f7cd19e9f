"""Ids of the service: uuidv7 that sort as they were made."""

import time
from uuid import RFC_4122

from app.clock import SystemIds


def test_ids_sort_as_they_were_made() -> None:
    ids = SystemIds()
    made = []
    for _ in range(1_000):
        made.append(ids.uuid7())
        # The clock has moved on by a fraction of a millisecond that an id shows.
        begun_ns = time.time_ns()
        while time.time_ns() - begun_ns < 500:
            pass
    assert made == sorted(made)
    assert {(one.version, one.variant) for one in made} == {(7, RFC_4122)}
    assert abs((made[0].int >> 80) - time.time_ns() // 1_000_000) < 60_000
    # What is random, is.
    assert len({one.int & ((1 << 62) - 1) for one in made}) == 1_000
