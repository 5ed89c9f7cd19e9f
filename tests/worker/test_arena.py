"""The arena's memory: blocks never overlap, holes always join, bytes stay, room is found well."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.worker.arena import PAGE_BYTES, Arena, ArenaError
from app.worker.eviction import Span, cheapest_run

PAGES = 24


class ArenaMachine(RuleBasedStateMachine):
    """Blocks come, are pinned and given up; a list of pages says what must be so."""

    def __init__(self):
        super().__init__()
        self.arena = Arena(PAGES * PAGE_BYTES)
        self.blocks = {}
        self.retired = {}

    def teardown(self):
        self.arena.close()

    def owners(self):
        pages = [None] * PAGES
        for block in [*self.blocks, *self.retired]:
            for page in range(block.offset // PAGE_BYTES, block.end // PAGE_BYTES):
                assert pages[page] is None, "two blocks share a page"
                pages[page] = block
        return pages

    @rule(payload_bytes=st.integers(1, 8 * PAGE_BYTES))
    def allocate(self, payload_bytes):
        free = [length for _, length in self.arena.holes]
        block = self.arena.allocate(payload_bytes)
        if block is None:
            assert all(length < payload_bytes for length in free)
            return
        assert block.reserved_bytes >= payload_bytes
        assert block.offset % PAGE_BYTES == 0
        # Best fit: no shorter hole would have done.
        taken_from = min(length for length in free if length >= block.reserved_bytes)
        assert all(not block.reserved_bytes <= length < taken_from for length in free)
        content = os.urandom(payload_bytes)
        self.arena.view(block)[:] = content
        self.blocks[block] = content

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def pin(self, data):
        self.arena.pin(data.draw(st.sampled_from(list(self.blocks))))

    @precondition(lambda self: self.blocks or self.retired)
    @rule(data=st.data())
    def unpin(self, data):
        block = data.draw(st.sampled_from([*self.blocks, *self.retired]))
        if block.pins:
            self.arena.unpin(block)
            if not block.pins:
                self.retired.pop(block, None)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def retire(self, data):
        block = data.draw(st.sampled_from(list(self.blocks)))
        content = self.blocks.pop(block)
        if block.pins:
            self.retired[block] = content
        self.arena.retire(block)

    @invariant()
    def bytes_stay(self):
        for block, content in [*self.blocks.items(), *self.retired.items()]:
            assert bytes(self.arena.view(block)) == content

    @invariant()
    def holes_are_what_is_left(self):
        pages = self.owners()
        holes, start = {}, None
        for page, owner in enumerate([*pages, "end"]):
            if owner is None and start is None:
                start = page
            elif owner is not None and start is not None:
                holes[start * PAGE_BYTES] = (page - start) * PAGE_BYTES
                start = None
        assert dict(self.arena.holes) == holes
        assert self.arena.holes.largest_bytes == max(holes.values(), default=0)
        held = [*self.blocks, *self.retired]
        assert self.arena.used_bytes == sum(block.reserved_bytes for block in held)
        assert self.arena.blocks == len(held)
        assert self.arena.pins == sum(block.pins for block in held)
        assert self.arena.pinned_bytes == sum(one.reserved_bytes for one in held if one.pins)


ArenaMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_arena_machine = ArenaMachine.TestCase


def runs(spans, needed_bytes):
    """Every run of neighbours that is long enough, the slow way: (newest use, owners)."""
    for first in range(len(spans)):
        length = 0
        for last in range(first, len(spans)):
            if last > first and spans[last - 1].offset + spans[last - 1].span_bytes != (
                spans[last].offset
            ):
                break
            length += spans[last].span_bytes
            if length >= needed_bytes:
                run = spans[first : last + 1]
                yield max(span.touched for span in run), [s.owner for s in run if s.owner]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["hole", "held", "fixed"])), max_size=12),
    st.permutations(range(1, 13)),
    st.integers(1, 14),
)
@settings(deadline=None)
def test_room_is_made_of_what_was_unused_for_longest(places, ages, needed_bytes):
    spans, offset = [], 0
    for number, (length, kind) in enumerate(places):
        if kind == "hole":
            spans.append(Span(offset, length, 0, None))
        elif kind == "held":
            spans.append(Span(offset, length, ages[number], f"payload-{number}"))
        offset += length
    found = cheapest_run(spans, needed_bytes)
    possible = list(runs(spans, needed_bytes))
    if not possible:
        assert found is None
        return
    newest = {span.owner: span.touched for span in spans}
    assert max((newest[owner] for owner in found), default=0) == min(cost for cost, _ in possible)
    assert any(found == owners for _, owners in possible)


def test_memory_that_the_machine_lacks_is_refused_at_the_start():
    with pytest.raises(ArenaError, match="cannot take"):
        Arena(2**60)
