"""What is held, what goes when room is needed, and that nobody loses bytes he is reading."""

import pytest

from app.errors import ErrorCode, NexusError
from app.worker.arena import PAGE_BYTES, Arena
from app.worker.outbox import Outbox
from app.worker.payloads import Payloads
from tests.worker.rig import checksum


class Held:
    """Payloads in an arena of a few pages."""

    def __init__(self, pages, **limits):
        self.outbox = Outbox()
        self.payloads = Payloads(
            Arena(pages * PAGE_BYTES), on_gone=self.outbox.gone, on_kept=self.outbox.kept, **limits
        )

    def put(self, name, pages=1, fill=b"x", tenant="acme"):
        data = fill * (pages * PAGE_BYTES)
        block = self.payloads.reserve(len(data))
        self.payloads.arena.view(block)[:] = data
        return self.payloads.keep(tenant, name, block, checksum(data))

    def names(self):
        return {payload_id for _, payload_id in self.payloads._held}

    @property
    def gone(self):
        """Tenant and id of each."""
        return {(one.tenant, one.payload_id) for one in self.outbox.news().gone_payloads}


def test_the_least_recently_used_goes_first():
    held = Held(3)
    for name in "abc":
        held.put(name)
    with held.payloads.pin("acme", "a"):
        pass
    held.put("d")
    assert held.names() == {"a", "c", "d"}
    assert held.gone == {("acme", "b")}


def test_room_is_made_where_it_is_contiguous_and_no_more_than_that():
    held = Held(6)
    for name in "abcdef":
        held.put(name)
    # Pages 2 and 3 are neighbours and older than any other two that are.
    for name in "aef":
        with held.payloads.pin("acme", name):
            pass
    with held.payloads.pin("acme", "b"):
        held.put("wide", pages=2)
    assert held.names() == {"a", "b", "e", "f", "wide"}


def test_what_is_pinned_makes_no_room_and_the_refusal_evicts_nothing():
    held = Held(5)
    for name in "abcde":
        held.put(name)
    with held.payloads.pin("acme", "b"), held.payloads.pin("acme", "d"):
        with pytest.raises(NexusError) as refused:
            held.payloads.reserve(2 * PAGE_BYTES)
        assert refused.value.code is ErrorCode.WORKER_FULL
        assert held.names() == set("abcde")
    with pytest.raises(NexusError) as refused:
        held.payloads.reserve(5 * PAGE_BYTES + 1)
    assert refused.value.code is ErrorCode.REQUEST_TOO_LARGE
    assert held.gone == set()


def test_a_reader_keeps_the_bytes_that_were_replaced_and_their_room_is_free_after_him():
    held = Held(2)
    assert held.put("a", fill=b"1")
    with held.payloads.pin("acme", "a") as old:
        assert not held.put("a", fill=b"2")
        assert bytes(old.view) == b"1" * PAGE_BYTES
        with held.payloads.pin("acme", "a") as new:
            assert bytes(new.view) == b"2" * PAGE_BYTES
        with held.payloads.pin("acme", "a"), pytest.raises(NexusError):
            held.put("b")
        held.payloads.delete("acme", "a")
        held.put("b", fill=b"3")
        assert bytes(old.view) == b"1" * PAGE_BYTES
    assert held.payloads.arena.used_bytes == PAGE_BYTES
    assert held.payloads.arena.pins == 0


def test_the_same_content_again_takes_no_second_place():
    held = Held(3)
    assert held.put("a")
    assert not held.put("a")
    assert held.payloads.arena.blocks == 1


def test_the_number_of_payloads_is_limited():
    held = Held(4, max_payloads=2)
    for name in "abc":
        held.put(name)
    assert held.names() == {"b", "c"}
    with held.payloads.pin("acme", "b"), held.payloads.pin("acme", "c"):
        block = held.payloads.reserve(PAGE_BYTES)
        with pytest.raises(NexusError) as refused:
            held.payloads.keep("acme", "d", block, "0" * 32)
        assert refused.value.code is ErrorCode.WORKER_FULL
        held.payloads.arena.retire(block)


def test_a_payload_is_gone_for_its_tenant_alone_and_not_once_it_is_back():
    held = Held(2)
    held.put("a")
    held.put("a", tenant="rival")
    held.payloads.delete("acme", "a")
    assert held.gone == {("acme", "a")}
    # Evicted, not deleted, while the other tenant has its own again.
    held.put("a", tenant="third")
    held.put("a")
    assert held.gone == {("rival", "a")}
    held.put("a", tenant="rival")
    assert held.gone == {("third", "a")}
