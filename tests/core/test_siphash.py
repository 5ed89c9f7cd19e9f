import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexuskv_core import _index, reference

# The key of the published test vectors, and their messages: the first n bytes of 0, 1, 2, ...
KEY = bytes(range(16))

# SipHash-2-4 with 128-bit output, from the authors' test vectors.
VECTORS_2_4 = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
    4: "f88164c12d9c8faf7d0f6e7c7bcd5579",
    5: "1368875980776f8854527a07690e9627",
    6: "14eeca338b208613485ea0308fd7a15e",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
}


@pytest.mark.parametrize("module", [_index, reference])
@pytest.mark.parametrize(("length", "expected"), VECTORS_2_4.items())
def test_published_vectors(module, length, expected):
    assert module.siphash_128(KEY, bytes(range(length)), 2, 4).hex() == expected


@given(key=st.binary(min_size=16, max_size=16), message=st.binary(max_size=300))
def test_both_implementations_agree(key, message):
    assert _index.siphash_128(key, message) == reference.siphash_128(key, message)


@given(
    key=st.binary(min_size=16, max_size=16),
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=90),
    block_tokens=st.sampled_from([2, 4, 8, 16]),
)
def test_identity_is_the_hash_of_the_tokens(key, tokens, block_tokens):
    index = _index.PrefixIndex(block_tokens=block_tokens)
    message = struct.pack(f"<{len(tokens)}I", *tokens)
    assert index.identity(key, tokens) == reference.siphash_128(key, message)


def test_identity_tells_length_order_and_key_apart():
    index = _index.PrefixIndex()
    lists = [[], [0], [0, 0], [0] * 15, [0] * 16, [0] * 17, [0] * 64, [0] * 128, [1, 2], [2, 1]]
    identities = {index.identity(key, tokens) for tokens in lists for key in (KEY, bytes(16))}
    assert len(identities) == 2 * len(lists)


def test_a_key_is_sixteen_bytes():
    for module in (_index, reference):
        with pytest.raises(ValueError, match="16 bytes"):
            module.siphash_128(b"short", b"")
