"""Who gets in without a key, and who only looks like it."""

import pytest

from app.clock import SystemClock
from app.control.auth import Access, keyless_obstacle, require_scope, require_tenant
from app.control.keyring import KeyRing
from app.control.keys import Principal, Scope
from app.db.session import Database
from app.errors import ErrorCode, NexusError

JSON = (b"content-type", b"application/json")


def scope_of(*headers: tuple[bytes, bytes], host: bytes = b"localhost:9099", peer="127.0.0.1"):
    return {
        "type": "http",
        "method": "POST",
        "path": "/",
        "client": None if peer is None else (peer, 50000),
        "headers": [(b"host", host), *headers],
    }


@pytest.fixture
async def keyring():
    """A key ring whose Postgres is not there: nothing listens on port 9."""
    database = Database("postgresql://nobody@127.0.0.1:9/none", connect_timeout_s=1)
    yield KeyRing(database, SystemClock())
    await database.close()


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LOCALHOST:80",
        b"127.0.0.1",
        b"127.0.0.1:9099",
        b"127.9.8.7:1",
        b"[::1]",
        b"[::1]:9099",
    ],
)
def test_every_spelling_of_this_machine_is_accepted(host: bytes) -> None:
    assert keyless_obstacle(scope_of(host=host)) is None


@pytest.mark.parametrize(
    "host",
    [
        b"",
        b"evil.example",
        b"localhost.evil.example",
        b"127.0.0.1.evil.example",
        b"evil.example:9099",
        b"evil.example#localhost",
        b"localhost@evil.example",
        b"localhost:9099:80",
        b"localhost:x",
        b"0.0.0.0",
        b"10.0.0.1",
        b"[::]",
        b"[::1",
        b"[::1]9",
        b"[localhost]",
        b"::1",
        b"\xff",
    ],
)
def test_a_rebound_name_is_refused(host: bytes) -> None:
    assert "Host" in str(keyless_obstacle(scope_of(host=host)))


def test_exactly_one_host_header_is_needed() -> None:
    twice = scope_of((b"host", b"evil.example"))
    assert "Host" in str(keyless_obstacle(twice))
    none = {**scope_of(), "headers": []}
    assert "Host" in str(keyless_obstacle(none))


@pytest.mark.parametrize("peer", ["10.1.2.3", "::", "2001:db8::1", "testclient", None])
def test_another_machine_is_refused_whatever_it_says(peer: str | None) -> None:
    assert "this machine" in str(keyless_obstacle(scope_of(peer=peer)))


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_peers_are_this_machine(peer: str) -> None:
    assert keyless_obstacle(scope_of(peer=peer)) is None


@pytest.mark.parametrize(
    "headers",
    [
        [(b"origin", b"https://evil.example")],
        [(b"origin", b"null")],
        [(b"origin", b"http://localhost:9099")],
        [(b"sec-fetch-site", b"cross-site")],
        [(b"sec-fetch-site", b"same-site")],
        [(b"sec-fetch-site", b"same-origin")],
        [(b"sec-fetch-site", b"none"), (b"sec-fetch-site", b"cross-site")],
        [(b"x-forwarded-for", b"127.0.0.1")],
        [(b"forwarded", b"for=127.0.0.1")],
        [(b"content-length", b"2")],
        [(b"content-length", b"2"), (b"content-type", b"text/plain")],
        [(b"content-length", b"2"), (b"content-type", b"text/plain; application/json")],
        [(b"content-length", b"2"), JSON, (b"content-type", b"text/plain")],
        [(b"content-length", b"nonsense")],
        [(b"transfer-encoding", b"chunked"), (b"content-type", b"multipart/form-data")],
    ],
)
def test_what_a_web_page_could_send_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    assert keyless_obstacle(scope_of(*headers)) is not None


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-length", b"0")],
        [(b"content-length", b"2"), JSON],
        [(b"content-length", b"2"), (b"content-type", b"Application/JSON; charset=utf-8")],
        [(b"content-length", b"2"), (b"content-type", b"application/yaml")],
        [(b"content-length", b"8"), (b"content-type", b"application/octet-stream")],
        [(b"content-length", b"8"), (b"content-type", b"application/msgpack")],
        [(b"transfer-encoding", b"chunked"), JSON],
        [(b"sec-fetch-site", b"none")],
        [(b"user-agent", b"curl/8")],
    ],
)
def test_curl_on_the_same_machine_gets_in(headers: list[tuple[bytes, bytes]]) -> None:
    assert keyless_obstacle(scope_of(*headers)) is None


async def test_the_keyless_caller_is_an_admin_of_all_tenants(keyring: KeyRing) -> None:
    access = Access(keyring, keyless_loopback=True)
    principal = await access.authenticate(scope_of())
    assert principal.key_id == "loopback"
    assert principal.tenants is None
    assert principal.allows(Scope.ADMIN)
    assert access.known(None) is None


async def test_without_the_rule_everyone_needs_a_key(keyring: KeyRing) -> None:
    with pytest.raises(NexusError) as refusal:
        await Access(keyring, keyless_loopback=False).authenticate(scope_of())
    assert refusal.value.code is ErrorCode.UNAUTHORIZED


@pytest.mark.parametrize(
    "authorization",
    [b"", b"Bearer", b"Bearer ", b"Bearer wrong", b"Basic bG9jYWw6aG9zdA==", b"Bearer \xff\x00"],
)
async def test_a_wrong_key_is_refused_even_on_loopback(
    keyring: KeyRing, authorization: bytes
) -> None:
    access = Access(keyring, keyless_loopback=True)
    with pytest.raises(NexusError) as refusal:
        await access.authenticate(scope_of((b"authorization", authorization)))
    assert refusal.value.code is ErrorCode.UNAUTHORIZED


async def test_two_credentials_are_refused(keyring: KeyRing) -> None:
    access = Access(keyring, keyless_loopback=True)
    scope = scope_of((b"authorization", b"Bearer a"), (b"authorization", b"Bearer b"))
    with pytest.raises(NexusError) as refusal:
        await access.authenticate(scope)
    assert refusal.value.code is ErrorCode.UNAUTHORIZED


def test_scope_and_tenant_are_demanded_by_name() -> None:
    principal = Principal("k", frozenset({Scope.BRIDGE}), frozenset({"acme"}))
    require_scope(principal, Scope.BRIDGE)
    require_tenant(principal, "acme")
    with pytest.raises(NexusError) as no_scope:
        require_scope(principal, Scope.STATES_WRITE)
    assert no_scope.value.code is ErrorCode.FORBIDDEN
    assert "states:write" in no_scope.value.message
    with pytest.raises(NexusError) as no_tenant:
        require_tenant(principal, "globex")
    assert no_tenant.value.code is ErrorCode.TENANT_FORBIDDEN
    assert "globex" not in no_tenant.value.message
