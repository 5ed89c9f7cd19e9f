"""What a caller with a good, bad or revoked key gets over HTTP."""

import os

import httpx
import pytest
from fastapi import FastAPI, Request

from app.clock import SystemClock
from app.control.auth import Access, require_scope, require_tenant
from app.control.issue import issue_key
from app.control.keyring import KeyRing
from app.control.keys import NewKey, Scope
from app.control.repository import revoke_key
from app.db.session import Database
from app.problem import install_handlers


def build(access: Access) -> FastAPI:
    app = FastAPI()
    install_handlers(app)

    @app.api_route("/tenants/{tenant}", methods=["GET", "POST"])
    async def read(tenant: str, request: Request) -> dict[str, str]:
        credential = dict(request.scope["headers"]).get(b"authorization")
        principal = access.known(credential) or await access.authenticate(request.scope)
        require_scope(principal, Scope.STATES_READ)
        require_tenant(principal, tenant)
        return {"key_id": principal.key_id}

    return app


async def make(database: Database, *scopes: Scope) -> NewKey:
    new, _ = await issue_key(
        database, SystemClock(), os.urandom, name="k", scopes=scopes, tenants=["acme"]
    )
    return new


@pytest.fixture
async def ring(database) -> KeyRing:
    ring = KeyRing(database, SystemClock())
    await ring.refresh()
    return ring


def client_of(ring: KeyRing, *, keyless_loopback: bool = False, peer="10.0.0.9"):
    app = build(Access(ring, keyless_loopback=keyless_loopback))
    transport = httpx.ASGITransport(app=app, client=(peer, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:9099")


async def test_good_keys_get_in_and_others_hear_why(database, ring) -> None:
    reader = await make(database, Scope.STATES_READ)
    bridge = await make(database, Scope.BRIDGE)
    async with client_of(ring) as client:

        async def call(path: str, authorization: str | None) -> tuple[int, dict, httpx.Headers]:
            headers = {} if authorization is None else {"authorization": authorization}
            response = await client.get(path, headers=headers)
            return response.status_code, response.json(), response.headers

        for scheme in ("Bearer", "bearer", "BEARER"):
            status, body, _ = await call("/tenants/acme", f"{scheme} {reader.text}")
            assert (status, body) == (200, {"key_id": reader.key_id})

        status, body, _ = await call("/tenants/acme", f"Bearer {bridge.text}")
        assert (status, body["code"]) == (403, "forbidden")
        status, body, _ = await call("/tenants/globex", f"Bearer {reader.text}")
        assert (status, body["code"]) == (403, "tenant_forbidden")

        for wrong in (None, "", "Bearer", reader.text, f"Basic {reader.text}", "Bearer nkv_a_b"):
            status, body, headers = await call("/tenants/acme", wrong)
            assert (status, body["code"]) == (401, "unauthorized")
            assert headers["www-authenticate"] == "Bearer"
            assert reader.text not in str(body)


async def test_a_revoked_key_is_refused(database, ring) -> None:
    key = await make(database, Scope.STATES_READ)
    authorization = {"authorization": f"Bearer {key.text}"}
    async with client_of(ring) as client:
        assert (await client.get("/tenants/acme", headers=authorization)).status_code == 200
        async with database.write() as session:
            await revoke_key(session, key.key_id, SystemClock().now())
        await ring.refresh()
        assert (await client.get("/tenants/acme", headers=authorization)).status_code == 401


async def test_the_keyless_rule_is_for_this_machine_only(ring) -> None:
    async with client_of(ring, keyless_loopback=True, peer="127.0.0.1") as client:
        response = await client.get("/tenants/anyone")
        assert response.json() == {"key_id": "loopback"}
        assert (await client.post("/tenants/anyone", json={})).status_code == 200
        for headers in ({"host": "evil.example"}, {"origin": "http://localhost:9099"}):
            assert (await client.get("/tenants/anyone", headers=headers)).status_code == 401
        form = await client.post("/tenants/anyone", data={"a": "b"})
        assert form.status_code == 401
        assert "application/json" in form.json()["detail"]
        wrong = await client.get("/tenants/anyone", headers={"authorization": "Bearer no"})
        assert wrong.status_code == 401
    async with client_of(ring, keyless_loopback=True) as client:
        assert (await client.get("/tenants/anyone")).status_code == 401
    async with client_of(ring, peer="127.0.0.1") as client:
        assert (await client.get("/tenants/anyone")).status_code == 401


async def test_without_postgres_an_unknown_key_is_told_to_come_back() -> None:
    database = Database("postgresql://nobody@127.0.0.1:9/none", connect_timeout_s=1)
    key = "nkv_0123456789ab_" + "a" * 43
    async with client_of(KeyRing(database, SystemClock())) as client:
        response = await client.get("/tenants/a", headers={"authorization": f"Bearer {key}"})
    assert response.status_code == 503
    assert response.json()["retryable"] is True
    assert response.headers["retry-after"] == "1"
    await database.close()
