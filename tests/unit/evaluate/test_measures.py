"""Fairness, tenants, conversations, and who could not have had a hit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clock import seeded_random
from app.contract.enums import TierKind
from app.evaluate.measures import jain, measured, without_hit
from app.evaluate.moves import Counts
from app.evaluate.requests import Conversations, draw
from app.evaluate.simulator import Choice, Simulator
from app.evaluate.strategies import RecomputeAlways
from tests.unit.evaluate.test_simulator import FLEET, request, run


def test_equal_tenants_are_treated_fairly() -> None:
    """Far apart and alike: nobody waits, so that the index is 1."""
    requests = [
        request(number, 100_000 * number, 2 * number, 2 * number + 1)._replace(tenant=number % 4)
        for number in range(16)
    ]
    world = Simulator(FLEET, RecomputeAlways())
    world.run(requests)
    found = measured("x", world.done, FLEET, world.moves.counts)
    assert found.fairness == pytest.approx(1.0)
    assert found.worst_tenant_p95_ms == found.ttft_p95_ms


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20))
def test_the_index_lies_between_one_over_n_and_one(values: list[float]) -> None:
    assert 1 / len(values) - 1e-9 <= jain(values) <= 1 + 1e-9


def test_hits_that_are_not_taken_and_tokens_that_are_brought_in_vain() -> None:
    """Of three requests with state at hand one takes all, one less than there is, and one none. A
    last token is always computed, even if it was brought."""
    requests = [request(0, 0, 1, 2)] + [request(n, 20_000 * n, 1, 2) for n in (1, 2, 3)]
    brought = Choice(1, (0, TierKind.DEVICE), 200)
    partly = Choice(1, (0, TierKind.DEVICE), 100)
    jobs = run(requests, Choice(0), partly, brought, Choice(0, reuse=False))
    found = measured("x", jobs, FLEET, Counts())
    # The second one finds what the first computed; the third is told not to look.
    assert [job.reused_tokens for job in jobs] == [0, 100, 199, 0]
    assert found.unused_hits == pytest.approx(1 / 3)
    assert found.rejected_hits == pytest.approx(2 / 3)
    assert found.useful_reuse == pytest.approx(1.0)
    whole = run(requests[:2], Choice(0), brought)
    assert measured("x", whole, FLEET, Counts()).useful_reuse == pytest.approx(199 / 200)


def test_one_who_suffers_for_all() -> None:
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([0.0, 0.0]) == 1.0


def test_turns_of_one_conversation_are_found() -> None:
    conversations = Conversations()
    prompts = [(0, 1), (0, 2), (0, 1, 3), (0, 1, 3, 4), (0, 2, 5), (0,), (0, 6)]
    found = [conversations.of(number, blocks) for number, blocks in enumerate(prompts)]
    assert found == [0, 1, 0, 0, 1, 5, 6]


def test_a_conversation_has_one_tenant_and_all_tenants_have_some() -> None:
    trace = [(float(at), 300, 1, (0, at % 6 + 1, at + 100)) for at in range(60)]
    requests = draw(FLEET, trace, seeded_random(1))
    of = {one.conversation: one.tenant for one in requests}
    assert all(of[one.conversation] == one.tenant for one in requests)
    assert {one.tenant for one in requests} == set(range(8))


def test_a_first_block_that_all_share_is_no_hit() -> None:
    requests = [
        request(0, 0, *range(40)), request(1, 1, 0, *range(100, 139)), request(2, 2, *range(20)),
    ]  # fmt: skip
    assert without_hit(requests, 100) == {0, 1}
