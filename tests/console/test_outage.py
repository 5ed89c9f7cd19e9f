"""Postgres is away: the console says so, tells what still works, and goes on once it is back."""

import re

from tests.fixtures.database import run_elsewhere
from tests.lifecycle.gate import Gate
from tests.lifecycle.in_process import running


def test_the_database_is_away_and_comes_back(database_url):
    run_elsewhere(_goes_away(database_url))


def test_this_machine_needs_no_key_where_none_is_asked_for(database_url):
    run_elsewhere(_keyless(database_url))


async def _goes_away(database_url):
    async with (
        Gate(database_url) as gate,
        running(database_url, served_url=gate.url) as process,
    ):
        client = process.client
        form = await client.get("/console/sign-in")
        token = re.search(r'name="csrf" value="([^"]+)"', form.text)[1]
        key = client.headers.pop("authorization").removeprefix("Bearer ")
        entered = await client.post("/console/sign-in", data={"csrf": token, "key": key})
        assert entered.status_code == 303
        gate.close()
        for path in ("/console/decisions", "/console/policies", "/console/states"):
            away = await client.get(path)
            assert away.status_code == 503
            assert away.headers["retry-after"]
            assert "The database is away" in away.text
            assert "Try again" in away.text
        overview = await client.get("/console")
        assert overview.status_code == 503
        assert "The history cannot be shown" in overview.text
        assert (
            "Postgres does not answer" in overview.text or "What needs attention" in overview.text
        )
        for path in ("/console/workers", "/console/engines"):
            assert (await client.get(path)).status_code == 200
        gate.open()
        assert (await client.get("/console/decisions")).status_code == 200
        assert (await client.get("/console")).status_code == 200


async def _keyless(database_url):
    async with running(database_url, keyless_loopback=True) as process:
        client = process.client
        del client.headers["authorization"]
        host = {"host": "127.0.0.1:9099"}
        assert (await client.get("/console", headers=host)).status_code == 200
        rebound = await client.get("/console", headers={"host": "evil.example"})
        assert (rebound.status_code, rebound.headers["location"][:16]) == (303, "/console/sign-in")
