"""kill -9 at any moment: of the service, of its copier, and of both; and SIGTERM beside it."""

import random

from tests.faults.checker import Stored, check, stored
from tests.faults.faulty import ROUNDS, FaultyService, kill

# Of a row that was being written, which nobody was promised.
MAY_LACK = frozenset({"torn"})


def settled(faulty: FaultyService) -> Stored:
    faulty.settle()
    return check(faulty.database_url, faulty.acknowledged, None, may_lack=MAY_LACK)


def test_killed_between_the_answer_and_the_copy(faulty: FaultyService) -> None:
    for _ in range(ROUNDS):
        with faulty.copier_paused() as copier, faulty.load(materialize=False) as load:
            # More than a batch of the copier.
            load.more(5_000)
            faulty.kill()
            kill(copier)
        there = set(stored(faulty.database_url).decisions)
        assert faulty.acknowledged.kept() - there, "nothing was left to the next one"
        faulty.start()
    settled(faulty)


def test_the_service_is_killed_under_load(faulty: FaultyService) -> None:
    """At random moments: in the middle of an answer, of a row, of a segment that is being made."""
    chance = random.Random(ROUNDS)
    before = stored(faulty.database_url).writers
    with faulty.load() as load:
        for _ in range(ROUNDS):
            load.more(chance.randint(1, 3_000))
            faulty.kill()
            faulty.start()
        load.more(500)
    assert settled(faulty).writers >= before + ROUNDS


def test_the_copier_is_killed_under_load(faulty: FaultyService) -> None:
    """Also between the commit of a batch and its acknowledgement to the writer."""
    chance = random.Random(ROUNDS)
    with faulty.load() as load:
        for _ in range(2 * ROUNDS):
            load.more(chance.randint(1, 2_000))
            faulty.kill_copier()
        load.more(500)
    assert "copier_ended" in faulty.log()
    settled(faulty)


def test_told_to_end_under_load_it_leaves_nothing_behind(faulty: FaultyService) -> None:
    said = "decisions_not_stored_at_shutdown"
    before = faulty.log().count(said)
    with faulty.load() as load:
        load.more(700)
        assert faulty.stop() == 0
    check(faulty.database_url, faulty.acknowledged, faulty.spool, may_lack=MAY_LACK)
    assert faulty.log().count(said) == before
    assert "decisions_lost" not in faulty.log()
