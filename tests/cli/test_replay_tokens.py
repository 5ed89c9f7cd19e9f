import json

from hypothesis import given
from hypothesis import strategies as st

from app.cli.replay_tokens import TokenSource
from app.cli.trace_format import TraceRequest

BLOCK_TOKENS = 8
ids = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5)


@st.composite
def requests(draw):
    chain = tuple(draw(ids))
    length = (len(chain) - 1) * BLOCK_TOKENS + draw(st.integers(1, BLOCK_TOKENS))
    return TraceRequest(0, length, 1, chain)


@given(requests())
def test_an_id_is_always_the_same_block_and_the_last_is_cut(request):
    source = TokenSource(BLOCK_TOKENS)
    tokens = source.tokens(request).tolist()
    assert len(tokens) == request.input_length
    for index, hash_id in enumerate(request.hash_ids):
        alone = TokenSource(BLOCK_TOKENS).tokens(TraceRequest(0, BLOCK_TOKENS, 1, (hash_id,)))
        block = tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]
        assert block == alone.tolist()[: len(block)]


@given(requests())
def test_the_json_text_holds_the_tokens(request):
    source = TokenSource(BLOCK_TOKENS)
    tokens = source.tokens(request).tolist()
    whole = source.whole(request)
    assert json.loads(whole.tokens_json) == tokens
    assert whole.token_count == request.input_length
    stored = source.full_blocks(request)
    kept = request.input_length // BLOCK_TOKENS * BLOCK_TOKENS
    if kept == 0:
        assert stored is None
    else:
        assert stored is not None
        assert json.loads(stored.tokens_json) == tokens[:kept]


@given(requests(), requests())
def test_fingerprints_are_equal_exactly_where_the_tokens_are(one, other):
    source = TokenSource(BLOCK_TOKENS)
    same_tokens = source.tokens(one) == source.tokens(other)
    assert (source.whole(one).fingerprint == source.whole(other).fingerprint) == same_tokens


def test_a_query_of_whole_blocks_has_the_fingerprint_of_what_it_registers():
    source = TokenSource(BLOCK_TOKENS)
    request = TraceRequest(0, 2 * BLOCK_TOKENS, 1, (3, 4))
    assert source.whole(request) == source.full_blocks(request)


def test_blocks_of_512_tokens_differ_and_stay_fixed():
    source = TokenSource(512)
    blocks = {source.tokens(TraceRequest(0, 512, 1, (i,))).tobytes() for i in range(2000)}
    assert len(blocks) == 2000
    assert source.tokens(TraceRequest(0, 512, 1, (0,)))[:4].tolist() == [30031, 23998, 8220, 51416]
