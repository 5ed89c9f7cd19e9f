"""Every page in a real browser: wide and narrow, light and dark, and what axe says of it."""

import re

import pytest

from tests.console.browser import NARROW, WIDE, tab
from tests.console.story import HERE, LOAD, beat

PAGES = {
    "overview": "/console",
    "decisions": "/console/decisions",
    "decision": "/console/decisions/{excluded}",
    "decision-chain": "/console/decisions/{acknowledged}",
    "plan": "/console/plans/{planned}",
    "policies": "/console/policies",
    "policy": "/console/policies/{policy}",
    "policy-diff": "/console/policies/diff?from=active&to={policy}",
    "policy-activate": "/console/policies/{policy}/activate",
    "states": "/console/states",
    "engines": "/console/engines",
    "engine": "/console/engines/vllm-0/0",
    "workers": "/console/workers",
}


@pytest.mark.parametrize("width_px", [WIDE, NARROW])
def test_every_page(browser, story, admin_cookies, width_px):
    """Light at one width and dark at the other are held to axe; pictures are taken of all four."""
    with story.service.client() as client:
        beat(client, HERE, load=LOAD, tiers=["host_dram", "local_ssd"])
    names = {**story.ids, "policy": story.policies[1]}
    first, second = ("light", "dark") if width_px == WIDE else ("dark", "light")
    with tab(browser, story.service.url, width_px=width_px, scheme=first) as opened:
        assert opened.open("/console/sign-in") == 200
        opened.check_accessible()
        opened.page.context.add_cookies(admin_cookies)
        for name, path in PAGES.items():
            assert opened.open(path.format(**names)) == 200
            opened.picture(f"{name}-{width_px}-{first}")
            opened.check_accessible()
            assert opened.page.locator("h1").count() == 1
            opened.page.emulate_media(color_scheme=second)
            opened.picture(f"{name}-{width_px}-{second}", whole=False)
            opened.page.emulate_media(color_scheme=first)
            opened.check()


def test_a_state_is_shown_without_its_tokens(admin):
    admin.open("/console/states?entry_id=agent-prompt")
    admin.page.get_by_role("link", name="agent-prompt").click()
    admin.page.get_by_role("heading", name="State agent-prompt").wait_for()
    assert "1500 tokens" in admin.page.content()
    assert "5001" not in admin.page.content()
    admin.check()


def test_charts_are_drawn_and_have_tables(admin):
    admin.open("/console?span=1h")
    assert admin.page.locator(".plot canvas").count() == 3
    chart = admin.page.locator("figure", has_text="Decisions by action")
    chart.locator("summary").click()
    # An hour has parts of 61 minutes.
    assert chart.get_by_role("rowheader").count() in (60, 61)
    admin.check()


def test_what_needs_attention_leads_there(admin):
    admin.open("/console")
    admin.page.get_by_role("link", name=re.compile("vllm-1: frames are missing")).click()
    admin.page.get_by_role("heading", name="What to put right").wait_for()
    admin.check()


def test_the_keyboard_alone_reaches_the_content_and_every_page(admin):
    admin.open("/console")
    admin.page.keyboard.press("Tab")
    assert admin.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    admin.page.keyboard.press("Enter")
    assert admin.page.evaluate("document.activeElement.id") == "content"
    admin.open("/console")
    seen = []
    for _ in range(12):
        admin.page.keyboard.press("Tab")
        seen.append(admin.page.evaluate("document.activeElement.textContent.trim()"))
    places = ["Overview", "Decisions", "Policies", "States", "Engines", "Workers", "Sign out"]
    assert [name for name in seen if name in places] == places
    outline = admin.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_nothing_here_is_a_page_that_says_so(admin):
    assert admin.open("/console/no-such-page") == 404
    admin.page.get_by_role("heading", name="Nothing here").wait_for()
    assert admin.open("/console/decisions/01a22ce5-3127-7508-afa4-173da7ddd915") == 404
    assert admin.open("/console/policies/999") == 404
    assert admin.open("/console/decisions?kind=nonsense") == 400
    admin.page.get_by_text("The filter kind has to be one of").wait_for()
    admin.check()
    admin.check_accessible()
