"""Each rule finds its bad sample and leaves the good one alone."""

import pytest

from tests.tidy import rules
from tests.tidy.rules import Source


def findings(rule, text, path="app/index/ingest.py"):
    return list(rule(Source(path, text)))


def function_of(lines):
    return "def f():\n" + "    pass\n" * (lines - 1)


def test_long_functions():
    assert findings(rules.long_functions, function_of(60)) == []
    assert findings(rules.long_functions, "async " + function_of(61)) == ["1: f has 61 lines"]


@pytest.mark.parametrize(("path", "most"), [("app/a.py", 400), ("tests/test_a.py", 800)])
def test_long_files(path, most):
    assert findings(rules.long_file, "\n" * most, path) == []
    assert findings(rules.long_file, "\n" * (most + 1), path)


@pytest.mark.parametrize(
    "path", ["app/utils/a.py", "app/index/helpers.py", "app/db/session_manager.py"]
)
def test_vague_module_names(path):
    assert findings(rules.vague_module_name, "", path)
    assert findings(rules.vague_module_name, "", "app/db/session.py") == []


@pytest.mark.parametrize(
    "bad",
    [
        "from sqlalchemy import select, text",
        "from sqlalchemy.dialects.postgresql import insert",
        "import sqlalchemy as sa\nsa.update(x)",
        "await connection.fetch('SELECT a FROM b')",
        "run(f'DELETE FROM {table}')",
        "run('''\n  INSERT INTO t VALUES (1)''')",
        "run('UPDATE t SET a = 1')",
    ],
)
def test_sql_outside_repositories(bad):
    assert findings(rules.sql_outside_repositories, bad)
    for home in [
        "app/index/repository.py",
        "app/db/migrate.py",
        "app/decisions/partitions.py",
        "app/decisions/summary_repository.py",
        "app/decisions/copier/repository.py",
    ]:
        assert findings(rules.sql_outside_repositories, bad, home) == []


def test_what_only_sounds_like_sql():
    good = (
        "from sqlalchemy import ColumnElement\nselect('one')\nsay('Select a state from the list')"
    )
    assert findings(rules.sql_outside_repositories, good) == [], "prose"
    model = "from sqlalchemy import text"
    assert findings(rules.sql_outside_repositories, model, "app/index/models.py") == []


def test_commits():
    bad = "async def f(session):\n    await session.commit()"
    assert findings(rules.commits, bad)
    assert findings(rules.commits, bad, "app/db/session.py") == []
    assert findings(rules.commits, "def commit(): ...") == []


@pytest.mark.parametrize(
    "bad",
    [
        "import time",
        "from time import monotonic",
        "import random",
        "from secrets import token_hex",
        "from uuid import uuid4",
        "import uuid\nuuid.uuid1()",
        "import os\nos.urandom(8)",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.utcnow()",
        "from datetime import date\ndate.today()",
    ],
)
def test_reads_clock_or_chance(bad):
    assert findings(rules.reads_clock_or_chance, bad)
    assert findings(rules.reads_clock_or_chance, bad, "app/clock.py") == []


def test_a_clock_that_is_handed_over_is_fine():
    good = "from datetime import datetime\nfrom uuid import UUID\ndef f(clock): return clock.now()"
    assert findings(rules.reads_clock_or_chance, good) == []


@pytest.mark.parametrize(
    "bad",
    [
        "from starlette.middleware.base import BaseHTTPMiddleware",
        "class M(base.BaseHTTPMiddleware): ...",
    ],
)
def test_http_middleware_base(bad):
    assert findings(rules.http_middleware_base, bad)
    assert findings(rules.http_middleware_base, "class M: ...") == []


def test_function_level_imports():
    assert findings(rules.function_level_imports, "def f():\n    import json") == [
        "2: import inside f"
    ]
    assert findings(rules.function_level_imports, "import json\ndef f(): ...") == []


@pytest.mark.parametrize("signature", ["timeout", "*, size=1", "timeout, /", "a, size"])
def test_bare_names(signature):
    assert findings(rules.bare_names, f"def f({signature}): ...")
    assert findings(rules.bare_names, "def f(timeout_s, pool_size, payload_bytes): ...") == []


@pytest.mark.parametrize(
    "bad",
    [
        "see /wor" + "k/main/app",
        "cd '/roo" + "t/x'",
        "written with Clau" + "de",
        "fixes iss" + "ue 12",
        "index = https://pyp" + "i.org/simple",
    ],
)
def test_forbidden_words(bad):
    assert next(rules.forbidden_words("fine\n" + bad)).startswith("2: ")


@pytest.mark.parametrize(
    "good", ["a network/worker", "node://worker/state", "app/work/x", "agent_tot_cow", "an issue"]
)
def test_words_that_only_look_alike(good):
    assert list(rules.forbidden_words(good)) == []
