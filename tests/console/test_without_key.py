"""This machine's own user, whom `nexuskv up` lets in without a key, and who else is not."""

import pytest

from app.console.session import LIFETIME_S, Sessions
from app.control.auth import keyless_obstacle

HOST = (b"host", b"127.0.0.1:9099")
OWN = (b"origin", b"http://127.0.0.1:9099")


class Clock:
    def __init__(self):
        self.at_us = 1_000_000

    def now_us(self):
        return self.at_us


class Ids:
    def random_bytes(self, count):
        return b"r" * count


@pytest.mark.parametrize(
    ("headers", "let_in"),
    [
        ([HOST], True),
        ([HOST, (b"sec-fetch-site", b"none")], True),
        ([HOST, (b"sec-fetch-site", b"same-origin")], True),
        ([HOST, OWN, (b"content-length", b"9")], True),
        ([HOST, (b"sec-fetch-site", b"cross-site")], False),
        ([HOST, (b"sec-fetch-site", b"same-site")], False),
        ([HOST, (b"origin", b"http://127.0.0.1:3000")], False),
        ([HOST, (b"origin", b"null")], False),
        ([HOST, OWN, OWN], False),
        # A name that was rebound to this machine is same-origin for the browser.
        ([(b"host", b"evil.example"), (b"sec-fetch-site", b"same-origin")], False),
        ([(b"host", b"evil.example"), (b"origin", b"http://evil.example")], False),
        ([HOST, (b"x-forwarded-for", b"10.0.0.1")], False),
    ],
    ids=str,
)
def test_who_is_let_in_without_a_key(headers, let_in):
    scope = {"client": ("127.0.0.1", 5), "headers": headers}
    assert (keyless_obstacle(scope, own_page=True) is None) is let_in
    assert keyless_obstacle({**scope, "client": ("10.0.0.9", 5)}, own_page=True) is not None


def test_a_session_ends_and_is_not_forged():
    clock = Clock()
    old, new, other = "a" * 32, "b" * 32, "c" * 32
    sessions = Sessions(f"{old}", clock, Ids())
    begun = sessions.begin("0123456789ab")
    sealed = sessions.seal(begun)
    assert sessions.open(sealed) == begun
    rotated = Sessions(f"{new},{old}", clock, Ids())
    assert rotated.open(sealed) == begun
    assert rotated.is_form_token(begun, sessions.form_token(begun))
    assert Sessions(other, clock, Ids()).open(sealed) is None
    for position in range(6, len(sealed) - 1):
        altered = sealed[:position] + ("A" if sealed[position] != "A" else "B")
        assert sessions.open(altered + sealed[position + 1 :]) is None
    clock.at_us += LIFETIME_S * 1_000_000
    assert sessions.open(sealed) is None
