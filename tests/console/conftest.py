"""One browser and one service with a story for all tests of the console.

The browser's driver keeps a loop running in this thread from its start to its end: it ends with
this package, and the tests in it that need a loop run it in another thread.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.console.browser import Tab, start_chromium, tab
from tests.console.story import SILENCE_S, Story, tell
from tests.fixtures.database import TestServer, drop_or_fail
from tests.fixtures.service import ServiceProcess


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = start_chromium(playwright)
        yield running
        running.close()


@pytest.fixture(scope="package")
def story(test_server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    name, url = test_server.clone()
    running = ServiceProcess(
        url, tmp_path_factory.mktemp("console"), NEXUSKV_WORKER_SILENCE_S=SILENCE_S
    ).start()
    try:
        yield tell(running)
    finally:
        running.stop()
        drop_or_fail(test_server, name)


@pytest.fixture(scope="package")
def admin_cookies(browser: Browser, story: Story) -> Any:
    """Of one session that tests may share: it is not signed out."""
    with tab(browser, story.service.url) as opened:
        opened.sign_in(story.service.admin_key)
        return opened.page.context.cookies()


@pytest.fixture
def admin(browser: Browser, story: Story, admin_cookies: Any) -> Iterator[Tab]:
    """A tab of somebody who may do everything."""
    with tab(browser, story.service.url) as opened:
        opened.page.context.add_cookies(admin_cookies)
        yield opened


@pytest.fixture
def stranger(browser: Browser, story: Story) -> Iterator[Tab]:
    """A tab of somebody who has not signed in."""
    with tab(browser, story.service.url) as opened:
        yield opened
