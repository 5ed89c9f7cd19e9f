"""What tests of keys share: making one, counting statements, a clock that is set."""

import os
from collections.abc import Awaitable, Callable

import pytest

from app.clock import SystemClock
from app.control.issue import issue_key
from app.control.keys import NewKey, Scope
from app.db.session import Database
from tests.control.clock import SetClock
from tests.db.rows import noted_statements

MakeKey = Callable[..., Awaitable[NewKey]]


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def make_key(database: Database) -> MakeKey:
    async def make(
        name: str = "k", scopes=(Scope.BRIDGE,), tenants=("acme",), into: Database = database
    ) -> NewKey:
        new, _ = await issue_key(
            into, SystemClock(), os.urandom, name=name, scopes=scopes, tenants=tenants
        )
        return new

    return make


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement on `api_key` that was sent to Postgres."""
    return noted_statements(monkeypatch, "api_key")
