"""What a key looks like, and what its holder may do."""

import hashlib
import os
import re

import pytest

from app.control.keys import (
    Scope,
    bearer_token,
    digest,
    generate,
    is_well_formed,
    principal_of,
)


def test_a_key_shows_its_id_and_carries_256_bits() -> None:
    key = generate(os.urandom)
    match = re.fullmatch(r"nkv_([0-9a-f]{12})_([0-9A-Za-z]{43})", key.text)
    assert match is not None
    assert match[1] == key.key_id
    assert 62**43 > 2**256
    assert key.sha256 == hashlib.sha256(key.text.encode()).digest()
    assert is_well_formed(key.text.encode())


def test_every_random_bit_reaches_the_secret() -> None:
    zeros = generate(bytes)
    ones = generate(lambda count: b"\xff" * count)
    flipped = generate(lambda count: b"\x00" * (count - 1) + b"\x01")
    assert len({zeros.text[-43:], ones.text[-43:], flipped.text[-43:]}) == 3
    assert len(ones.text) == len(zeros.text) == 4 + 12 + 1 + 43


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (b"Bearer nkv_a", b"nkv_a"),
        (b"bearer nkv_a", b"nkv_a"),
        (b"BEARER   nkv_a ", b"nkv_a"),
        (b"Bearer", None),
        (b"Basic nkv_a", None),
        (b"nkv_a", None),
        (b"", None),
    ],
)
def test_the_scheme_is_case_insensitive_and_must_be_bearer(
    header: bytes, token: bytes | None
) -> None:
    assert bearer_token(header) == token


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"nkv_",
        b"nkv_0123456789ab",
        b"nkv_0123456789AB_" + b"a" * 43,
        b"nkv_0123456789ab_" + b"a" * 42,
        b"nkv_0123456789ab_" + b"a" * 44,
        b"nkv_0123456789ab_" + b"a" * 43 + b"\n",
        b"nkv_0123456789ab_" + b"\xff" * 43,
    ],
)
def test_what_is_no_key_is_recognised_without_asking(token: bytes) -> None:
    assert not is_well_formed(token)
    assert len(digest(token)) == 32


def test_admin_implies_every_scope_and_others_imply_nothing() -> None:
    admin = principal_of("k", ["admin"], ["*"])
    assert all(admin.allows(scope) for scope in Scope)
    reader = principal_of("k", ["states:read"], ["acme"])
    assert reader.allows(Scope.STATES_READ)
    assert not any(reader.allows(scope) for scope in Scope if scope is not Scope.STATES_READ)


def test_tenants_are_exact_names_and_only_the_star_means_all() -> None:
    principal = principal_of("k", ["bridge"], ["acme"])
    assert principal.may_use("acme")
    assert not principal.may_use("ACME")
    assert not principal.may_use("acme2")
    assert not principal.may_use("*")
    assert principal_of("k", ["bridge"], ["*"]).may_use("anyone")
    assert not principal_of("k", ["bridge"], []).may_use("")


def test_a_scope_of_a_newer_version_grants_nothing() -> None:
    assert principal_of("k", ["bridge", "galaxy:rule"], ["*"]).scopes == {Scope.BRIDGE}
