"""kill -9 at any moment: of the service, of its copier, and of both."""

import random

from tests.faults.checker import check, stored
from tests.faults.faulty import ROUNDS, FaultyService, kill


def test_killed_between_the_answer_and_the_copy(faulty: FaultyService) -> None:
    for _ in range(ROUNDS):
        with faulty.copier_paused() as copier, faulty.load(materialize=False) as load:
            # More than several batches of the copier take.
            load.more(5_000)
            faulty.kill()
            kill(copier)
        before = len(stored(faulty.database_url).decisions)
        assert before < len(faulty.acknowledged)
        faulty.start()
    assert faulty.stop() == 0
    check(faulty.database_url, faulty.acknowledged, faulty.spool, may_lack=frozenset({"torn"}))


def test_the_service_is_killed_under_load(faulty: FaultyService) -> None:
    """At random moments: in the middle of an answer, of a row, of a segment that is being made."""
    chance = random.Random(1)
    with faulty.load() as load:
        for _ in range(ROUNDS):
            load.more(chance.randint(1, 3_000))
            faulty.kill()
            faulty.start()
        load.more(500)
    assert faulty.stop() == 0
    found = check(
        faulty.database_url, faulty.acknowledged, faulty.spool, may_lack=frozenset({"torn"})
    )
    assert found.writers == ROUNDS + 1


def test_the_copier_is_killed_under_load(faulty: FaultyService) -> None:
    """Also between the commit of a batch and its acknowledgement to the writer."""
    chance = random.Random(2)
    with faulty.load() as load:
        for _ in range(2 * ROUNDS):
            load.more(chance.randint(1, 2_000))
            faulty.kill_copier()
        load.more(500)
    assert "copier_ended" in faulty.log()
    assert faulty.stop() == 0
    found = check(faulty.database_url, faulty.acknowledged, faulty.spool)
    assert found.writers == 1
