"""The compiled index and the brute-force one, driven side by side by hypothesis."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from nexuskv_core import _index, reference
from tests.core.rig import CHECKPOINT, EXACT_ONLY, PREFIX_CLOSED

SCOPE_KEYS = [bytes([number]) * 16 for number in range(3)]
pieces = st.lists(st.integers(0, 1), max_size=36)
entries = st.integers(0, 25)
options = st.fixed_dictionaries(
    {
        "rule": st.sampled_from([PREFIX_CLOSED] * 3 + [CHECKPOINT, EXACT_ONLY]),
        "unit_tokens": st.sampled_from([0, 1, 2, 3, 4, 8, 16, 24, 32]),
        "partial": st.booleans(),
        "order": st.integers(0, 2),
    }
)


class SideBySide(RuleBasedStateMachine):
    """Lists grow out of earlier ones, over two tokens, so that prefixes and tails collide."""

    lists = Bundle("lists")

    @initialize(target=lists, block_tokens=st.sampled_from([2, 4, 8, 16]))
    def begin(self, block_tokens: int) -> list[int]:
        self.compiled = _index.PrefixIndex(block_tokens=block_tokens)
        self.plain = reference.PrefixIndex(block_tokens=block_tokens)
        return [0] * 33

    @rule(target=lists, base=lists, keep=st.integers(0, 60), more=pieces)
    def grow(self, base: list[int], keep: int, more: list[int]) -> list[int]:
        return base[:keep] + more

    @rule(key=st.sampled_from(SCOPE_KEYS[:2]), tokens=lists, entry=entries, how=options)
    def add(self, key: bytes, tokens: list[int], entry: int, how: dict[str, Any]) -> None:
        outcomes = []
        for index in (self.compiled, self.plain):
            try:
                outcomes.append(index.add(key, tokens, entry, **how))
            except ValueError as refused:
                outcomes.append(str(refused))
        assert outcomes[0] == outcomes[1]

    @rule(entry=entries)
    def remove(self, entry: int) -> None:
        assert self.compiled.remove(entry) == self.plain.remove(entry)

    @rule(
        key=st.sampled_from(SCOPE_KEYS),
        tokens=lists,
        more=pieces,
        wanted=st.sampled_from([1, 2, 5, 64]),
    )
    def match(self, key: bytes, tokens: list[int], more: list[int], wanted: int) -> None:
        query = tokens + more
        found = self.compiled.match(key, query, max_candidates=wanted)
        truth = self.plain.match(key, query, max_candidates=wanted)
        assert found.identity == truth.identity
        assert found.candidates == truth.candidates
        assert (found.truncated > 0) == (truth.truncated > 0)
        assert found.truncated <= truth.truncated

    @invariant()
    def same_content(self) -> None:
        if not hasattr(self, "compiled"):
            return
        self.compiled.check_invariants()
        assert self.compiled.dump() == self.plain.dump()
        found, truth = self.compiled.stats(), self.plain.stats()
        for name in ("entries", "blocks", "scopes"):
            assert found[name] == truth[name]


SideBySide.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestSideBySide = SideBySide.TestCase
