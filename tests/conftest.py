"""Fixtures every test may use; a folder's own conftest.py adds what only it needs."""

pytest_plugins = ["tests.fixtures.database", "tests.fixtures.outage", "tests.fixtures.service"]
