"""The application in the test's loop, and behind a gate that a test can close."""

from collections.abc import AsyncIterator

import pytest

from tests.lifecycle.gate import Gate
from tests.lifecycle.in_process import InProcess, running


@pytest.fixture
async def process(database_url: str) -> AsyncIterator[InProcess]:
    async with running(database_url) as process:
        yield process


@pytest.fixture
async def gate(database_url: str) -> AsyncIterator[Gate]:
    async with Gate(database_url) as gate:
        yield gate


@pytest.fixture
async def gated(database_url: str, gate: Gate) -> AsyncIterator[InProcess]:
    """An application that reaches its database through `gate`."""
    async with running(database_url, served_url=gate.url) as process:
        yield process
        gate.open()
