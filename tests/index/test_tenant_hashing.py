"""Keyed hashing: tenants cannot be told from each other by what is derived for them."""

import msgspec
import pytest

from app.errors import ErrorCode, NexusError
from app.index.scopes import TenantHashing
from tests.index.rows import SECRET, scope


def test_tenants_have_nothing_in_common():
    hashing = TenantHashing(SECRET)
    tenants = [f"tenant-{number}" for number in range(50)]
    assert len({hashing.scope_key(scope(tenant)) for tenant in tenants}) == 50
    assert len({hashing.fingerprint_key(tenant) for tenant in tenants}) == 50


def test_every_part_of_a_scope_makes_another_key():
    hashing = TenantHashing(SECRET)
    base = scope("t")
    changed = [
        msgspec.structs.replace(base, **{name: value})
        for name, value in (
            ("namespace", "x"),
            ("model", "x"),
            ("engine_family", "x"),
            ("semantic_type", "x"),
            ("block_id", 0),
            ("page_id", 0),
            ("block_id", 10),
        )
    ]
    moved = [scope("t", namespace="a", model="bc"), scope("t", namespace="ab", model="c")]
    keys = {hashing.scope_key(each) for each in (base, *changed, *moved)}
    assert len(keys) == 10
    assert {len(key) for key in keys} == {16}


def test_replicas_with_the_same_secret_agree_and_others_do_not():
    one, two, other = TenantHashing(SECRET), TenantHashing(SECRET), TenantHashing(bytes(32))
    assert one.scope_key(scope("t")) == two.scope_key(scope("t")) != other.scope_key(scope("t"))
    assert one.fingerprint_key("t") == two.fingerprint_key("t") != other.fingerprint_key("t")
    assert len(one.fingerprint_key("t")) == 16


def test_before_the_secret_is_known_nothing_is_derived():
    hashing = TenantHashing()
    for derive in (
        lambda: hashing.scope_key(scope("t")),
        lambda: hashing.fingerprint_key("t"),
    ):
        with pytest.raises(NexusError) as caught:
            derive()
        assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    hashing.adopt(SECRET)
    assert hashing.scope_key(scope("t")) == TenantHashing(SECRET).scope_key(scope("t"))


def test_a_secret_is_adopted_once():
    hashing = TenantHashing()
    hashing.adopt(SECRET)
    hashing.adopt(SECRET)
    with pytest.raises(ValueError, match="another"):
        hashing.adopt(bytes(32))
    assert hashing.scope_key(scope("t")) == TenantHashing(SECRET).scope_key(scope("t"))


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_secret_of_another_length_is_refused(length):
    with pytest.raises(ValueError, match="32 bytes"):
        TenantHashing(bytes(length))
