"""The block index, the one made of sets, and a process that reads the first, in step."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from nexuskv_core import _blocks, block_reference, reference
from tests.core.block_reader import Reader

SCOPE = b"scope key, 16 by"
BLOCK_TOKENS = 2
# Chains that part after 0, 1, 16, 17 ... blocks, and one that is long.
LISTS = [[7] * 2 * n + [8] * 2 * m for n in (0, 1, 16, 17, 40, 130) for m in (1, 3, 33)] + [
    [9] * 600
]
CHAINS = [reference.chain(SCOPE, tokens, BLOCK_TOKENS) for tokens in LISTS]
chains = st.sampled_from(CHAINS)
stretches = st.tuples(st.integers(0, 200), st.sampled_from([1, 2, 3, 15, 16, 17, 64, 65, 200]))
places = st.integers(0, 5)


def called(key: bytes, stream: int) -> int:
    """Two streams of one naming, one of another; some names are those of two blocks."""
    name = int.from_bytes(key[:8], "little")
    return (name if name % 31 else name % 5) ^ (stream % 2)


class InStep(RuleBasedStateMachine):
    reader: Reader

    def __init__(self) -> None:
        super().__init__()
        self.compiled = _blocks.BlockIndex(shared=True, max_blocks=1 << 16)
        self.plain = block_reference.BlockIndex()
        self.reader.attach(self.compiled)
        self.holders: list[int] = []
        for _ in range(3):
            self._open()

    def _both(self, call: str, *arguments: Any, **named: Any) -> Any:
        one = getattr(self.compiled, call)(*arguments, **named)
        other = getattr(self.plain, call)(*arguments, **named)
        assert one == other, call
        return one

    def _open(self) -> None:
        stream = self._both("open_stream", b"a label")
        self.holders += [self._both("open_holder", stream, bytes([n])) for n in range(2)]

    def _cut(self, chain: bytes, stretch: tuple[int, int], stream: int) -> tuple[Any, bytes, list]:
        start = stretch[0] % (len(chain) // 16)
        keys = [chain[at : at + 16] for at in range(0, len(chain), 16)]
        names = [called(key, stream) for key in keys]
        some = slice(start, start + stretch[1])
        return (names[start - 1] if start else None), b"".join(keys[some]), names[some]

    @rule(place=places, chain=chains, stretch=stretches)
    def store(self, place: int, chain: bytes, stretch: tuple[int, int]) -> None:
        holder = self.holders[place]
        stream = self.plain.stream_of(holder)
        parent, keys, names = self._cut(chain, stretch, stream)
        if parent is not None:
            at = chain.index(keys)
            known = self.plain.key_of(stream, parent)
            if known not in {None, chain[at - 16 : at]}:
                # The name is another block's by now, and these keys are not chained to that one.
                return
        self._both("store", holder, names, keys, parent=parent)

    @rule(place=places, chain=chains, stretch=stretches)
    def store_from_the_start(self, place: int, chain: bytes, stretch: tuple[int, int]) -> None:
        self.store(place, chain, (0, stretch[1]))

    @rule(place=places, number=st.integers(0, len(LISTS) - 1))
    def store_tokens(self, place: int, number: int) -> None:
        holder = self.holders[place]
        _, _, names = self._cut(CHAINS[number], (0, 600), self.plain.stream_of(holder))
        self._both("store_tokens", holder, SCOPE, names, LISTS[number], BLOCK_TOKENS)

    @rule(place=places, chain=chains, stretch=stretches, backwards=st.booleans())
    def remove(self, place: int, chain: bytes, stretch: tuple[int, int], backwards: bool) -> None:
        holder = self.holders[place]
        _, _, names = self._cut(chain, stretch, self.plain.stream_of(holder))
        self._both("remove", holder, names[::-1] if backwards else names)

    @rule(place=places, chain=chains, stretch=stretches)
    def hold(self, place: int, chain: bytes, stretch: tuple[int, int]) -> None:
        holder = self.holders[place]
        _, _, names = self._cut(chain, stretch, self.plain.stream_of(holder))
        self._both("hold", holder, names)

    @rule(place=places)
    def clear(self, place: int) -> None:
        stream = self.plain.stream_of(self.holders[place])
        assert self._both("close_holder", self.holders[place])
        self._both("sweep")
        self.holders[place] = self._both("open_holder", stream)

    @rule(place=places)
    def restart(self, place: int) -> None:
        stream = self.plain.stream_of(self.holders[place])
        mine = [holder for holder in self.holders if self.plain.stream_of(holder) == stream]
        assert self._both("close_stream", stream)
        self._both("sweep")
        self.holders = [holder for holder in self.holders if holder not in mine]
        self._open()

    @rule(chain=chains, blocks=st.integers(0, 200), place=places)
    def look(self, chain: bytes, blocks: int, place: int) -> None:
        stream = self.plain.stream_of(self.holders[place])
        _, _, names = self._cut(chain, (0, 600), stream)
        for keys in (chain, chain[: 16 * blocks], chain[: 16 * blocks] + bytes(48)):
            found = sorted(self.plain.find(keys))
            assert sorted(self.compiled.find(keys)) == found
            assert [tuple(each) for each in self.reader.ask("find", keys.hex())] == found
            reach = self._both("reach", keys)
            assert (
                self.compiled.reach([keys[at : at + 16] for at in range(0, len(keys), 16)]) == reach
            )
            assert dict(self.reader.ask("reach", keys.hex())) == reach
        self._both("reach_many", [chain, bytes(16), b"", chain[: 16 * blocks]])
        named = sorted(self.plain.find_names(stream, names))
        assert sorted(self.compiled.find_names(stream, names)) == named
        assert [tuple(each) for each in self.reader.ask("find_names", stream, names)] == named
        self._both("key_of", stream, names[-1])

    @invariant()
    def adds_up(self) -> None:
        self.compiled.check_invariants()
        for name in ("blocks", "collisions", "holders", "streams"):
            assert self.compiled.stats()[name] == self.plain.stats()[name], name
        for holder in self.holders:
            self._both("held", holder)

    def teardown(self) -> None:
        assert list(self.compiled.dump()) == list(self.plain.dump())


@pytest.mark.parametrize("steps", [40])
def test_index_oracle_and_reader_in_step(steps: int) -> None:
    InStep.reader = Reader()
    try:
        run_state_machine_as_test(
            InStep, settings=settings(max_examples=60, stateful_step_count=steps, deadline=None)
        )
    finally:
        InStep.reader.close()
