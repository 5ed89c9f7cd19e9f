from array import array

import pytest

from tests.core.rig import IMPLEMENTATIONS, KEY, put

CALLS = {
    "identity": lambda index, tokens: index.identity(KEY, tokens),
    "match": lambda index, tokens: index.match(KEY, tokens),
    "add": lambda index, tokens: put(index, tokens, 2),
}

BAD_TOKENS = [
    ([True], TypeError),
    ([1.0], TypeError),
    (["1"], TypeError),
    ([None], TypeError),
    ([1] * 40 + [False], TypeError),
    ([1, float("nan")] + [1] * 40, TypeError),
    ([-1], ValueError),
    ([2**32], ValueError),
    ([2**64], ValueError),
    ([2**200], ValueError),
    ([1] * 15 + [-(2**31)] + [1] * 20, ValueError),
    (5, TypeError),
    (None, TypeError),
    ("tokens", TypeError),
    ({1, 2}, TypeError),
    (b"1234", ValueError),
    (array("i", [1]), ValueError),
    (array("H", [1, 2]), ValueError),
    (array("Q", [1]), ValueError),
    (array("f", [1.0]), ValueError),
    (memoryview(array("I", [1, 2, 3, 4]))[::2], ValueError),
    (memoryview(array("I", [1, 2, 3, 4])).cast("B").cast("I", (2, 2)), ValueError),
]


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def index(request):
    made = request.param.PrefixIndex()
    put(made, [1, 2, 3], 1)
    return made


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("tokens", "error"), BAD_TOKENS, ids=lambda value: repr(value)[:30])
def test_tokens(index, call, tokens, error):
    before = index.dump()
    with pytest.raises(error):
        call(index, tokens)
    assert index.dump() == before
    index.check_invariants()


GOOD = {"rule": 0, "unit_tokens": 1, "partial": True, "order": 0}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rule": 3}, ValueError),
        ({"rule": -1}, ValueError),
        ({"rule": True}, TypeError),
        ({"unit_tokens": -1}, ValueError),
        ({"unit_tokens": 2**32}, ValueError),
        ({"unit_tokens": 1.0}, TypeError),
        ({"partial": 1}, TypeError),
        ({"order": -1}, ValueError),
        ({"order": 2**64}, ValueError),
        ({"order": None}, TypeError),
    ],
)
def test_add_arguments(index, change, error):
    with pytest.raises(error):
        index.add(KEY, [1], 9, **(GOOD | change))
    assert len(index) == 1


@pytest.mark.parametrize(
    ("entry", "error"),
    [(-1, ValueError), (2**32, ValueError), (True, TypeError), ("1", TypeError)],
)
def test_entry_numbers(index, entry, error):
    with pytest.raises(error):
        put(index, [1], entry)
    with pytest.raises(error):
        index.remove(entry)


def test_an_entry_is_stored_once_and_has_tokens(index):
    with pytest.raises(ValueError, match="already present"):
        put(index, [9], 1)
    with pytest.raises(ValueError, match="at least one token"):
        put(index, [], 2)
    with pytest.raises(ValueError, match="at least one token"):
        put(index, array("I"), 2)


@pytest.mark.parametrize("key", [b"", b"short", bytes(15), bytes(17)])
def test_scope_keys_of_another_length(index, key):
    with pytest.raises(ValueError, match="16 bytes"):
        index.match(key, [1])
    with pytest.raises(ValueError, match="16 bytes"):
        put(index, [1], 2, key=key)


@pytest.mark.parametrize("key", [None, "0123456789abcdef", bytearray(16)])
def test_scope_keys_of_another_type(index, key):
    with pytest.raises(TypeError):
        index.match(key, [1])


@pytest.mark.parametrize(("wanted", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError)])
def test_max_candidates(index, wanted, error):
    with pytest.raises(error):
        index.match(KEY, [1, 2, 3], max_candidates=wanted)


@pytest.mark.parametrize("module", IMPLEMENTATIONS)
@pytest.mark.parametrize("block_tokens", [0, 1, 3, 32, -16])
def test_block_sizes(module, block_tokens):
    with pytest.raises(ValueError, match="block_tokens"):
        module.PrefixIndex(block_tokens=block_tokens)


def test_a_message_names_the_place_and_not_the_token(index):
    with pytest.raises(ValueError, match="token 20 ") as caught:
        index.match(KEY, [1] * 20 + [123456789012] + [1] * 9)
    assert "123456789012" not in str(caught.value)


def test_a_refused_buffer_is_released(index):
    tokens = array("I", [1, 2, 3])
    with pytest.raises(ValueError, match="already present"):
        put(index, tokens, 1)
    tokens.append(4)  # BufferError while somebody still holds it
    index.match(KEY, tokens)
    tokens.append(5)
    assert len(tokens) == 5
