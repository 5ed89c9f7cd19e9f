"""The facade over the compiled index: which state is where, and at which generation."""

import random
from dataclasses import replace

import msgspec
import pytest

from app.contract.enums import MatchClassification, TierKind
from app.index.matcher import StateIndex
from tests.fixtures.wire import INPUT_IDENTITY, MODEL_IDENTITY, TOKENS
from tests.index.rows import row, scope


def match(index, tenant="t", tokens=None, limit=64, **changes):
    return index.match(scope(tenant, **changes), tokens or TOKENS, max_candidates=limit)


def found(index, *args, **changes):
    return [
        (candidate.state.entry_id, candidate.state.generation, candidate.matched_tokens)
        for candidate in match(index, *args, **changes).candidates
    ]


def test_a_state_is_found_by_its_tokens_and_by_its_name(index):
    assert index.upsert(row("t"))
    [candidate] = match(index).candidates
    assert candidate.classification is MatchClassification.EXACT
    assert candidate.matched_tokens == len(TOKENS)
    assert candidate.state is index.get("t", "state-1")
    assert candidate.state.entry.identity.key.tokens == []
    assert len(index) == 1


def test_every_part_of_the_scope_keeps_states_apart(index):
    index.upsert(row("t"))
    for other in (
        {"tenant": "u"},
        {"namespace": "space"},
        {"model": "model-2"},
        {"engine_family": "vllm"},
        {"semantic_type": "gqa_kv"},
        {"block_id": 0},
        {"page_id": 0},
        # Parts are framed: moving a letter over a border makes another scope.
        {"namespace": "defaul", "model": "tmodel-1"},
    ):
        assert not match(index, **other).candidates, other
    assert match(index).candidates


def test_a_miss_and_an_empty_query_have_no_candidates_and_change_nothing(index):
    index.upsert(row("t"))
    before = (index.revision, index._core.dump())
    assert not match(index, tokens=[1, 2, 3]).candidates
    assert not index.match(scope("t"), [], max_candidates=64).candidates
    assert index.get("t", "other") is index.get("u", "state-1") is None
    assert (index.revision, index._core.dump()) == before


def test_the_same_content_again_changes_nothing(index):
    first = row("t")
    assert index.upsert(first)
    revision = index.revision
    assert not index.upsert(row("t", id_=first.state_id))
    assert index.revision == revision
    assert index.get("t", "state-1").state_id == first.state_id


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (3, 1, 2), (1, 3, 2)])
def test_in_whatever_order_generations_arrive_the_highest_stays(index, order):
    for generation in order:
        index.upsert(row("t", generation=generation, tokens=[generation, 5, 6]))
    assert len(index) == 1
    for generation in order:
        expected = [("state-1", 3, 3)] if generation == 3 else []
        assert found(index, tokens=[generation, 5, 6]) == expected


def test_a_late_deletion_does_not_take_a_newer_generation(index):
    index.upsert(row("t", generation=5))
    assert not index.remove("t", "state-1", 4)
    assert found(index) == [("state-1", 5, 40)]
    assert index.remove("t", "state-1", 5)
    assert not index.remove("t", "state-1", 5)
    assert not index.remove("t", "never", 5)
    assert found(index) == []
    assert len(index) == 0


def test_candidates_of_one_length_come_fastest_tier_first(index):
    tiers = [tier.value for tier in TierKind]
    for number, tier in enumerate(reversed(tiers)):
        index.upsert(row("t", f"state-{number}", tier=tier))
    assert [c.state.entry.location.tier.value for c in match(index).candidates] == tiers


def test_a_longer_extent_beats_a_faster_tier(index):
    index.upsert(row("t", "short", tier="device", tokens=TOKENS[:20]))
    index.upsert(row("t", "long", tier="object_store", tokens=TOKENS[:30]))
    assert found(index) == [("long", 1, 30), ("short", 1, 20)]


def test_the_order_is_the_same_on_every_replica(index):
    rows = [row("t", f"state-{number}") for number in range(50)]
    other = StateIndex(index.hashing)
    for each in rows:
        index.upsert(each)
    for each in random.Random(7).sample(rows, len(rows)):
        other.upsert(each)
    assert found(index) == found(other)
    assert len(found(index)) == 50
    assert match(index, limit=3).truncated >= 1
    assert found(index, limit=3) == found(index)[:3]


def test_descriptors_and_evidence_of_a_fleet_are_kept_once(index):
    for number in range(3):
        index.upsert(row("t", f"state-{number}", fingerprint=f"f-{number}", tokens=[number, 1]))
    states = [index.get("t", f"state-{number}") for number in range(3)]
    assert len({id(state.entry.descriptor) for state in states}) == 1
    assert len({id(state.evidence.model_identity) for state in states}) == 1
    assert [state.evidence.input_fingerprint for state in states] == ["f-0", "f-1", "f-2"]


@pytest.mark.parametrize(
    "changes",
    [
        {"reusable": False},
        {"model_identity": {**MODEL_IDENTITY, "model_revision": "rev-2"}},
        {"input_identity": {**INPUT_IDENTITY, "multimodal_preprocessing": None, "template": {
            "kind": "template", "revision": "v2", "fingerprint": "tpl-1"}}},
        {"without_evidence": True},
        {"extra": {"layer_scope": "0-3"}},
        {"extra": {"model_revision": "unknown"}},
        {"lineage": "unknown"},
    ],
)  # fmt: skip
def test_what_a_verdict_depends_on_makes_another_class(index, changes):
    index.upsert(row("t", "one"))
    index.upsert(row("t", "two", **changes))
    assert index.get("t", "one").evidence_class != index.get("t", "two").evidence_class


def test_what_no_verdict_depends_on_makes_none(index):
    index.upsert(row("t", "one"))
    index.upsert(
        row("u", "two", lineage="l-2", generation=9, tier="device", locator="x", fingerprint="f-2")
    )
    assert index.get("t", "one").evidence_class == index.get("u", "two").evidence_class


def test_the_answer_carries_the_entry_around_the_tokens(index):
    index.upsert(row("t", extra={"layer_scope": '"tokens":[0]'}, locator='n"tokens":[]'))
    state = index.get("t", "state-1")
    text = state.answer.before_tokens + b"1,2" + state.answer.after_tokens
    entry = msgspec.json.decode(text)
    assert entry["identity"]["key"].pop("tokens") == [1, 2]
    expected = msgspec.json.decode(msgspec.json.encode(state.entry))
    del expected["identity"]["key"]["tokens"]
    assert entry == expected


def test_a_bad_row_costs_no_good_one_its_place(index):
    good = row("t")
    index.upsert(good)
    newer = row("t", generation=2)
    broken = replace(newer, tokens=b"\x01\x02\x03")
    with pytest.raises(ValueError, match="multiple"):
        index.upsert(broken)
    assert found(index) == [("state-1", 1, 40)]
    assert len(index) == 1
    index.upsert(row("t", "another"))
    index._core.check_invariants()
    assert len(index._slots) == 2


def test_a_state_without_tokens_is_found_by_id_alone(index):
    """What its engine holds says how far it reaches."""
    index.upsert(row("t"))
    empty = replace(row("t", "new", generation=2), tokens=b"")
    assert index.upsert(empty)
    assert index.get("t", "new").generation == 2
    assert found(index) == [("state-1", 1, 40)]
    assert index.remove("t", "new", 2)
    assert (index.get("t", "new"), len(index)) == (None, 1)
    index._core.check_invariants()


def test_clear_forgets_everything_and_goes_on(index):
    first = row("t")
    index.upsert(first)
    revision = index.revision
    index.clear()
    assert (len(index), found(index), index.get("t", "state-1")) == (0, [], None)
    assert index.stats()["entries"] == 0
    assert index.revision > revision
    assert index.upsert(first)
    assert found(index) == [("state-1", 1, 40)]


def test_many_changes_leave_an_index_like_a_fresh_one(index):
    chance = random.Random(11)
    expected = {}
    for _ in range(600):
        name = f"state-{chance.randrange(40)}"
        generation = chance.randrange(1, 30)
        present = expected.get(name, (0,))[0]
        if chance.random() < 0.3:
            assert index.remove("t", name, generation) == (0 < present <= generation)
            if present <= generation:
                expected.pop(name, None)
        else:
            tokens = TOKENS[: 5 + generation]
            index.upsert(row("t", name, generation=generation, tokens=tokens))
            if generation > present:
                expected[name] = (generation, len(tokens))
    index._core.check_invariants()
    assert sorted(found(index)) == sorted(
        (name, generation, extent) for name, (generation, extent) in expected.items()
    )
    assert len(index) == len(expected) == index.stats()["entries"]
    # Places are used again.
    assert len(index._slots) <= 41


def test_identities_name_a_token_list_within_a_scope(index):
    assert index.identity(scope("t"), TOKENS) == match(index).identity_hash
    others = [
        index.identity(scope("u"), TOKENS),
        index.identity(scope("t", model="m"), TOKENS),
        index.identity(scope("t"), TOKENS[:-1]),
        index.identity(scope("t"), TOKENS),
    ]
    assert len(set(others)) == 4
    assert {len(name) for name in others} == {16}
