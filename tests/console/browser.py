"""Debian's chromium through playwright, and what a page is held to in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Playwright

CHROMIUM = Path("/usr/bin/chromium")
PICTURES = Path(os.environ.get("NEXUSKV_CONSOLE_PICTURES", ".bench/console"))
WIDE, NARROW = 1280, 390
# Names of columns beside the cells of folded tables that are longer than the room they have.
COVERED_LABELS = """() => {
  const pen = document.createElement("canvas").getContext("2d");
  return [...document.querySelectorAll(".stacked td[data-label]")].filter((cell) => {
    const label = getComputedStyle(cell, "::before");
    if (label.position !== "absolute") return false;
    pen.font = label.font;
    const room = parseFloat(getComputedStyle(cell).paddingLeft);
    return pen.measureText(cell.dataset.label).width > room;
  }).map((cell) => cell.dataset.label);
}"""
SERIOUS = ("serious", "critical")
ACTION_MS = 10_000


def start_chromium(playwright: Playwright) -> Browser:
    if not CHROMIUM.exists():
        raise AssertionError(
            f"{CHROMIUM} is not there: these tests need a browser, `apt-get install chromium`"
        )
    return playwright.chromium.launch(
        executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"]
    )


class Tab:
    """A page that remembers what its console complained of, and where it asked for things."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._on_request)
        page.set_default_timeout(ACTION_MS)

    def _on_console(self, message: Any) -> None:
        # An answer of 4xx or 5xx that was asked for is not a fault of the page.
        refused = "Failed to load resource" in message.text and "status of" in message.text
        if message.type in ("error", "warning") and not refused:
            self.complaints.append(message.text)

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.foreign.append(request.url)

    def open(self, path: str) -> int:
        """The status of the page's answer."""
        answer = self.page.goto(self.url + path)
        assert answer is not None
        return answer.status

    def sign_in(self, key: str, path: str = "/console") -> None:
        self.open(path)
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("button", name="Sign out").wait_for()

    def picture(self, name: str, directory: Path = PICTURES, *, whole: bool = True) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=directory / f"{name}.png", full_page=whole)

    def check(self) -> None:
        """Nothing was complained of, nothing came from elsewhere, and nothing is cut off."""
        assert self.complaints == []
        assert self.foreign == []
        covered = self.page.evaluate(COVERED_LABELS)
        assert covered == [], f"labels lie over their values: {covered}"
        wide = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"the page is {wide} px wider than its window"

    def check_accessible(self) -> None:
        found = Axe().run(self.page)
        serious = [
            (one["id"], [node["html"][:160] for node in one["nodes"]][:3])
            for one in found.response["violations"]
            if one["impact"] in SERIOUS
        ]
        assert serious == []


@contextmanager
def tab(
    browser: Browser, url: str, *, width_px: int = WIDE, scheme: Any = "light"
) -> Iterator[Tab]:
    context = browser.new_context(
        viewport={"width": width_px, "height": 900}, color_scheme=scheme, locale="en-GB"
    )
    try:
        yield Tab(context.new_page(), url)
    finally:
        context.close()
