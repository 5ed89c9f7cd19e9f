"""The page of one plan: its bars, its words, and who may see it."""

import re

from app.console.reasons import said
from app.control.keys import Scope
from tests.console.browser import NARROW, tab

PIXELS = """() => [...document.querySelectorAll(".cost-bars li")].map((item) => ({
  called: item.querySelector("strong").textContent,
  chosen: item.classList.contains("here"),
  parts: [...item.querySelectorAll("rect")].map((part) => part.getBoundingClientRect().width),
  whole: item.querySelector("svg").getBoundingClientRect().width,
  label: item.querySelector("svg").getAttribute("aria-label"),
}))"""


def planned(story):
    """The plan as its caller has it."""
    with story.service.client() as client:
        return client.get(f"/v1/plans/{story.ids['planned']}").raise_for_status().json()


def test_bars_are_as_long_as_what_they_cost(story, admin):
    plan = planned(story)
    admin.open(f"/console/plans/{story.ids['planned']}")
    bars = admin.page.evaluate(PIXELS)
    ways = [plan["chosen"], plan["fallback"], *plan["alternatives"]]
    assert len(bars) == len(ways)
    assert [bar["chosen"] for bar in bars] == [True] + [False] * (len(bars) - 1)
    # One scale: the longest, with its uncertainty, fills the width.
    longest = max(way["total_us"] + way["uncertainty_us"] for way in ways)
    for bar, way in zip(bars, ways, strict=True):
        named = [term for term in way["terms"] if term["value_us"] > 0]
        assert len(bar["parts"]) == len(named)
        expected = way["total_us"] / longest * bar["whole"]
        # What is too short to be seen has a line of its own.
        assert abs(sum(bar["parts"]) - expected) <= 2 + 0.002 * bar["whole"] * len(named)
        assert way["engine_id"] in bar["called"]
        assert all(term["name"] in bar["label"] for term in named)
    admin.check()


def test_it_says_why_the_others_were_not_taken(story, admin):
    plan = planned(story)
    admin.open(f"/console/plans/{story.ids['planned']}")
    others = admin.page.get_by_role("region", name="Why the others were not taken").first
    assert plan["excluded"]
    for one in plan["excluded"]:
        row = others.get_by_role("row").filter(has_text=said(one["reason"]).what)
        assert str(one["count"]) in row.inner_text()
    assert plan["notes"]
    for note in plan["notes"]:
        others.get_by_text(note["note"]).first.wait_for()
    choice = admin.page.get_by_role("region", name="What is done, and what it gains")
    choice.get_by_text(re.compile(r"^Run it at \S+.* The first token is expected after")).wait_for()
    terms = admin.page.get_by_role("region", name="Terms of what is chosen").first
    assert terms.get_by_role("rowheader").count() == len(plan["chosen"]["terms"]) + 1
    admin.check()


def test_from_the_decision_to_its_plan_and_back(story, admin):
    decision = f"/console/decisions/{story.ids['planned']}"
    admin.open(decision)
    admin.page.get_by_role("link", name="The plan: cost by term").click()
    admin.page.get_by_role("heading", name=re.compile("^Plan")).wait_for()
    assert admin.page.url.endswith(f"/console/plans/{story.ids['planned']}")
    crumbs = admin.page.get_by_role("navigation", name="Where this is")
    crumbs.get_by_role("link").nth(1).click()
    admin.page.wait_for_url(f"**{decision}")
    admin.check()


def test_a_stranger_is_asked_who_they_are(story, stranger):
    stranger.open(f"/console/plans/{story.ids['planned']}")
    stranger.page.get_by_label("API key").wait_for()
    assert "/console/sign-in" in stranger.page.url
    assert "vllm-" not in stranger.page.content()


def test_another_tenants_plan_is_not_there(browser, story):
    key = story.service.key(Scope.DECISIONS_READ, tenants=("globex",))
    with tab(browser, story.service.url) as opened:
        opened.sign_in(key)
        assert opened.open(f"/console/plans/{story.ids['planned']}") == 404
        opened.page.get_by_role("heading", name="Nothing here").wait_for()
        assert "vllm-" not in opened.page.content()


def test_what_is_no_plan_has_no_page(story, admin):
    assert admin.open(f"/console/plans/{story.ids['miss']}") == 404
    assert admin.open("/console/plans/01a22ce5-3127-7508-afa4-173da7ddd915") == 404
    admin.page.get_by_role("heading", name="Nothing here").wait_for()


def test_on_a_phone_nothing_goes_beyond_the_edge(browser, story, admin_cookies):
    with tab(browser, story.service.url, width_px=NARROW) as opened:
        opened.page.context.add_cookies(admin_cookies)
        assert opened.open(f"/console/plans/{story.ids['planned']}") == 200
        for bar in opened.page.evaluate(PIXELS):
            assert 0 < bar["whole"] <= NARROW
        opened.check()
