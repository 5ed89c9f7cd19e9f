"""The pictures of docs/console.md: `python -m tests.console.screenshots`."""

import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from app.db.embedded import EmbeddedPostgres
from tests.console.browser import NARROW, WIDE, start_chromium, tab
from tests.console.story import HERE, LOAD, SILENCE_S, Story, beat, tell
from tests.fixtures.database import TestServer, fast_directory
from tests.fixtures.service import ServiceProcess

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "console"
# File, path, width, colours.
SHOTS = (
    ("overview", "/console", WIDE, "light"),
    ("overview-dark", "/console", WIDE, "dark"),
    ("decisions", "/console/decisions?outcome=excluded", WIDE, "light"),
    ("decision", "/console/decisions/{excluded}", WIDE, "light"),
    ("chain", "/console/decisions/{acknowledged}", WIDE, "light"),
    ("activate", "/console/policies/{policy}/activate", WIDE, "light"),
    ("engine", "/console/engines/vllm-1/0", WIDE, "light"),
    ("workers", "/console/workers", WIDE, "light"),
    ("narrow", "/console/decisions/{excluded}", NARROW, "dark"),
)


def main() -> None:
    with tempfile.TemporaryDirectory(dir=fast_directory()) as name:
        directory = Path(name)
        directory.chmod(0o711)
        with EmbeddedPostgres(directory / "pg", durable=False) as server:
            databases = TestServer(server.url)
            _, url = databases.clone()
            running = ServiceProcess(url, directory, NEXUSKV_WORKER_SILENCE_S=SILENCE_S).start()
            try:
                take(tell(running))
            finally:
                running.stop()
                databases.close()


def take(story: Story) -> None:
    names = {**story.ids, "policy": story.policies[1]}
    with sync_playwright() as playwright, story.service.client() as client:
        browser = start_chromium(playwright)
        for file, path, width_px, scheme in SHOTS:
            with tab(browser, story.service.url, width_px=width_px, scheme=scheme) as opened:
                opened.sign_in(story.service.admin_key)
                beat(client, HERE, load=LOAD, tiers=["host_dram", "local_ssd"])
                opened.open(path.format(**names))
                opened.picture(file, PICTURES, whole=False)
        browser.close()


if __name__ == "__main__":
    main()
