"""Locators of payloads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.locators import node_locator, parse_locator

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)
PAYLOADS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,254}", fullmatch=True)


@given(NAMES, PAYLOADS)
def test_what_is_put_together_comes_apart_the_same(worker, payload_id):
    assert parse_locator(node_locator(worker, payload_id)) == (worker, payload_id)


@pytest.mark.parametrize(
    "other",
    [
        "",
        "node://",
        "node://a",
        "node://a/state/",
        "node:///state/p",
        "node://a/state/p/q",
        "node://a/state/../p",
        "node://a/states/p",
        "NODE://a/state/p",
        "node://a/state/p\n",
        "node://a/state/p?x=1",
        "node://ä/state/p",
        "node://a b/state/p",
        "node://" + "a" * 129 + "/state/p",
        "node://a/state/" + "p" * 256,
        "s3://bucket/state/p",
    ],
)
def test_any_other_locator_is_nothing_of_a_workers(other):
    assert parse_locator(other) is None
