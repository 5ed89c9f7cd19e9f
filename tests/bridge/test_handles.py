"""Signed handles: what is sealed opens, and nothing else does; secrets can be rotated."""

import base64
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.bridge.handles import (
    HandleKeys,
    HandleSecretError,
    option_id_text,
    parse_option_id,
    target_digest,
)
from app.execution.grants import OptionGrant, SourceGrant
from tests.fixtures.service import ServiceProcess
from tests.fixtures.wire import (
    error_code,
    estimate_body,
    estimated,
    materialize_body,
    new_tenant,
    register,
    registration,
    source_handle,
)

OLD = "old-" + "a" * 32
NEW = "new-" + "b" * 32
ALPHABET = string.ascii_letters + string.digits + "-_"

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
hashes = st.binary(min_size=16, max_size=16)
tenants = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128)
source_grants = st.builds(
    SourceGrant,
    tenant=tenants,
    state_id=st.uuids(),
    generation=u32,
    matched_tokens=u32,
    identity_hash=hashes,
    lookup_id=st.uuids(),
    expires_us=u64,
)
option_grants = st.builds(
    OptionGrant,
    option_id=st.uuids(),
    tenant=tenants,
    state_id=st.uuids(),
    generation=u32,
    matched_tokens=u32,
    identity_hash=hashes,
    lookup_id=st.uuids(),
    target_digest=hashes,
    estimate_id=st.uuids(),
    transfer_us=u64,
    expires_us=u64,
)
SOURCE = source_grants.example if False else None  # replaced below


@given(source_grants, option_grants)
def test_what_is_sealed_opens(source: SourceGrant, option: OptionGrant) -> None:
    keys = HandleKeys(NEW)
    assert keys.open_source(keys.seal_source(source)) == source
    assert keys.open_option(keys.seal_option(option)) == option
