"""A worker has a payload no more: its tenant's charge and hits end, those of others do not."""

from collections.abc import Iterator

import pytest

from tests.process.waiting import until
from tests.transfers.conftest import NOTHING, new_tenant_name
from tests.transfers.fleet import Fleet, Story

NAME = "of-both"


@pytest.fixture
def stories(fleet: Fleet) -> Iterator[tuple[Story, Story]]:
    """Two tenants whose payloads have one name, on one worker."""
    both = tuple(fleet.story(new_tenant_name(), payload_id=NAME).ready() for _ in range(2))
    yield both
    for story in both:
        story.source.delete(NAME)
        story.target.delete(NAME)


def prefetch(story: Story) -> None:
    body = {
        "transfer_id": "copy",
        "action": "prefetch",
        "tenant": story.tenant,
        "entry_id": "state-1",
        "target_worker": "node-b",
    }
    answer = story.fleet.client.post("/v1/transfers", json=body)
    assert answer.json()["status"] == "completed", answer.text


def test_a_copy_is_charged_until_its_worker_says_that_its_tenant_has_it_no_more(
    stories: tuple[Story, Story],
) -> None:
    one, other = stories
    for story in stories:
        prefetch(story)
        assert story.charged() == {"payload_bytes": len(story.data), "entries": 1, "transfers": 0}
    assert one.target.delete(NAME).status_code == 200
    until(lambda: one.charged() == NOTHING, "the charge is given back")
    assert other.charged()["entries"] == 1
    assert other.target.get(NAME).content == other.data
    # Brought again it is charged again, whatever was told of the earlier copy.
    prefetch(one)
    assert one.charged()["entries"] == 1
    assert other.target.delete(NAME).status_code == 200
    until(lambda: other.charged() == NOTHING, "the other charge is given back")
    assert one.charged()["entries"] == 1


def test_a_lookup_of_what_was_deleted_is_unavailable_whoever_has_one_of_that_name(
    stories: tuple[Story, Story],
) -> None:
    one, other = stories
    for story in stories:
        assert story.hit() is not None
    assert one.source.delete(NAME).status_code == 200
    until(lambda: one.hit() is None, "the worker says that it is gone")
    assert one.lookup().headers["x-nexuskv-match"] == "unavailable"
    assert other.hit() is not None
    # It is there again once it is uploaded and registered again.
    one.ready()
    until(one.hit, "the state is a hit again")
