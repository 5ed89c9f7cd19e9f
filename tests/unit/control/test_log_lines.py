"""What reaches the log, and what must not."""

import json
import logging

import pytest
import structlog

from app.logging import MASK, configure_logging, mask_text

KEY = "nkv_0123456789ab_" + "S3cretS3cret" * 3 + "S3cretS"


@pytest.fixture
def log(log_stream):
    def read() -> list[dict]:
        return [json.loads(line) for line in log_stream.getvalue().splitlines()]

    return read


def test_a_line_is_json_with_time_level_and_logger(log) -> None:
    structlog.get_logger("nexuskv.test").info("hello", answer=42)
    (line,) = log()
    assert line["event"] == "hello"
    assert line["level"] == "info"
    assert line["logger"] == "nexuskv.test"
    assert line["answer"] == 42
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize("name", ["uvicorn.error", "sqlalchemy.engine", "alembic.runtime", "x"])
def test_libraries_write_the_same_lines(log, name: str) -> None:
    logging.getLogger(name).warning("from %s", "a library")
    (line,) = log()
    assert line["event"] == "from a library"
    assert line["level"] == "warning"
    assert line["logger"] == name
    assert line["timestamp"].endswith("Z")


def test_uvicorns_own_access_log_is_silent(log) -> None:
    logging.getLogger("uvicorn.access").info('127.0.0.1 - "GET /?token=1 HTTP/1.1" 200')
    assert log() == []


def test_the_level_is_kept_and_an_unknown_one_refused(log) -> None:
    structlog.get_logger("t").debug("no")
    logging.getLogger("t").debug("no")
    assert log() == []
    with pytest.raises(ValueError, match="loud"):
        configure_logging("loud")


def test_nothing_secret_survives_under_any_name_or_depth(log) -> None:
    url = "postgresql+asyncpg://nexus:hunter2@db/nexuskv"
    structlog.get_logger("t").info(
        f"connecting to {url} with {KEY}",
        authorization="hunter2",
        Token="hunter2",
        tokens=["hunter2"],
        source_handle="hunter2",
        handle_secret="hunter2",
        database_url=url,
        dsn=url,
        headers={"Authorization": "Bearer hunter2", "nested": [{"password": "hunter2"}, KEY]},
        raw=b"hunter2",
        thing=ValueError(f"no: {url}"),
        url=url,
        text="Authorization: Bearer hunter2, and password=hunter2&x=1",
        **{f"at {KEY}": 1},
    )
    (line,) = log()
    text = json.dumps(line)
    assert "hunter2" not in text
    assert "S3cret" not in text
    assert line["authorization"] == MASK
    assert line["url"] == "postgresql+asyncpg://nexus:***@db/nexuskv"


def test_what_helps_stays_readable(log) -> None:
    structlog.get_logger("t").info(
        "made", key_id="0123456789ab", token_count=128, shown=mask_text(KEY), path=["/v1", 1]
    )
    (line,) = log()
    assert line["key_id"] == "0123456789ab"
    assert line["token_count"] == 128
    assert line["shown"] == "nkv_0123456789ab_***"
    assert line["path"] == ["/v1", 1]


def test_tracebacks_are_masked_and_stay_on_one_line(log) -> None:
    def fail() -> None:
        raise RuntimeError(f"could not use {KEY}")

    try:
        fail()
    except RuntimeError:
        structlog.get_logger("t").exception("failed")
        logging.getLogger("t").exception("failed too")
    ours, theirs = log()
    for line in (ours, theirs):
        assert "RuntimeError: could not use nkv_0123456789ab_***" in line["exception"]
        assert line["level"] == "error"


def test_values_json_does_not_know_never_lose_the_line(log) -> None:
    endless: dict = {}
    endless["self"] = endless
    structlog.get_logger("t").info("odd", big=2**80, broken="\ud800", loop=endless, kind=object)
    (line,) = log()
    assert line["event"] == "odd"
    assert line["big"] == 2**80
