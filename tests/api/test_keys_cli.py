"""`nexuskv keys`, as a person types it."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

from app.cli.keys import keys_app
from app.clock import SystemClock
from app.control.keyring import KeyRing
from app.control.keys import Principal
from app.db.session import Database
from tests.control.logs import captured_logs

KEY = re.compile(r"nkv_[0-9a-f]{12}_[0-9A-Za-z]{43}")


@pytest.fixture
def keys(database_url: str) -> Iterator[Callable[..., Result]]:
    def run(*arguments: str, url: str | None = database_url) -> Result:
        env = {"NEXUSKV_DATABASE_URL": url, "COLUMNS": "200", "TERM": "dumb"}
        return CliRunner().invoke(keys_app, list(arguments), env=env)

    with captured_logs():
        yield run


def principal_of(database_url: str, key: str) -> Principal | None:
    async def find() -> Principal | None:
        database = Database(database_url)
        ring = KeyRing(database, SystemClock())
        await ring.refresh()
        await database.close()
        return ring.find(f"Bearer {key}".encode())

    return asyncio.run(find())


def test_a_key_is_made_shown_once_listed_and_revoked(keys, database_url: str) -> None:
    made = keys("create", "--name", "locus", "--tenant", "acme")
    assert made.exit_code == 0, made.output
    key = made.stdout.splitlines()[-1]
    assert KEY.fullmatch(key)
    principal = principal_of(database_url, key)
    assert principal is not None
    assert [scope.value for scope in principal.scopes] == ["bridge"]
    assert principal.tenants == {"acme"}

    listed = keys("list")
    assert listed.exit_code == 0
    assert principal.key_id in listed.stdout
    assert "locus" in listed.stdout
    assert not KEY.search(listed.stdout)

    revoked = keys("revoke", principal.key_id)
    assert revoked.exit_code == 0
    assert principal.key_id in revoked.stdout
    assert principal_of(database_url, key) is None
    again = keys("revoke", principal.key_id)
    assert again.stdout == revoked.stdout


def test_json_for_scripts(keys, database_url: str) -> None:
    made = keys(
        "create", "--json", "--name", "ops [bold]x", "--scope", "states:read",
        "--scope", "admin", "--tenant", "a", "--tenant", "*",
    )  # fmt: skip
    document = json.loads(made.stdout)
    assert set(document) == {
        "key_id", "name", "scopes", "tenants", "created_at", "revoked_at", "key",
    }  # fmt: skip
    assert document["scopes"] == ["admin", "states:read"]
    assert document["tenants"] == ["*"]
    principal = principal_of(database_url, document["key"])
    assert principal is not None
    assert principal.tenants is None

    (listed,) = json.loads(keys("list", "--json").stdout)
    assert listed == {name: value for name, value in document.items() if name != "key"}
    assert "ops [bold]x" in keys("list").stdout


def test_an_empty_list_says_how_to_begin(keys) -> None:
    assert "nexuskv keys create" in keys("list").stdout
    assert keys("list", "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "hint"),
    [
        (["create", "--name", "x"], 2, "--tenant"),
        (["create", "--tenant", "x"], 2, "--name"),
        (["create", "--name", "x", "--tenant", "a", "--scope", "root"], 2, "states:write"),
        (["create", "--name", " ", "--tenant", "a"], 1, "name"),
        (["create", "--name", "x", "--tenant", ""], 1, "tenant"),
        (["revoke", "0123456789ab"], 1, "0123456789ab"),
        (["revoke", "[/red]"], 1, "[/red]"),
        (["list", "--database-url", "mysql://u:hunter2@h/d"], 1, "postgresql://"),
        (["list", "--database-url", "postgresql://u:hunter2@127.0.0.1:9/d"], 1, "database"),
    ],
)
def test_mistakes_are_explained(keys, arguments: list[str], exit_code: int, hint: str) -> None:
    result = keys(*arguments)
    assert result.exit_code == exit_code
    assert hint in result.stderr
    assert "Traceback" not in result.output
    assert "hunter2" not in result.output


def test_without_a_database_url(keys) -> None:
    result = keys("list", url=None)
    assert result.exit_code == 1
    assert "NEXUSKV_DATABASE_URL" in result.stderr


def test_before_the_first_migration(keys, empty_database_url: str) -> None:
    result = keys("list", url=empty_database_url)
    assert result.exit_code == 1
    assert "nexuskv migrate" in result.stderr
    assert "Traceback" not in result.output


def test_a_whole_key_given_by_mistake_is_not_repeated(keys) -> None:
    key = keys("create", "--name", "x", "--tenant", "a").stdout.splitlines()[-1]
    result = keys("revoke", key)
    assert result.exit_code == 1
    assert key not in result.output
