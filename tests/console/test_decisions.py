"""Finding a decision and reading why it ended as it did."""

import re

import httpx
import pytest

from app.control.keys import Scope
from tests.console.browser import tab
from tests.console.story import NEW_MODEL, TENANT
from tests.console.test_sessions import sign_in_with
from tests.fixtures.service import decisions_of
from tests.fixtures.wire import lookup


def rows(opened):
    return opened.page.locator("table.decisions tbody tr")


def test_from_the_overview_to_why_a_request_recomputed(admin):
    admin.open("/console")
    admin.page.get_by_role("link", name="evidence mismatch").click()
    admin.page.get_by_role("heading", name="Decisions", exact=True).wait_for()
    assert re.search(r"reason=evidence_mismatch&last=24h", admin.page.url)
    rows(admin).first.get_by_role("link").click()
    why = admin.page.get_by_role("region", name="Why did this request recompute?")
    why.get_by_text("computed under another model revision").wait_for()
    why.get_by_text("The longest match was system-prompt with 2,000 tokens").wait_for()
    steps = admin.page.get_by_role("region", name="The eight steps").get_by_role("listitem")
    assert steps.count() == 8
    candidates = admin.page.get_by_role("region", name="Candidates").first
    candidates.get_by_text("model_identity.model_revision").wait_for()
    admin.check()


def test_filters_show_results_as_they_are_set_and_are_an_address(browser, story, admin):
    admin.open("/console/decisions")
    everything = rows(admin).count()
    admin.page.get_by_label("Outcome").select_option("miss")
    admin.page.wait_for_url("**/console/decisions?outcome=miss")
    admin.page.wait_for_function(
        "(before) => document.querySelectorAll('table.decisions tbody tr').length < before",
        arg=everything,
    )
    badges = rows(admin).locator("td .badge").all_inner_texts()
    assert set(badges) == {"miss"}
    with tab(browser, story.service.url) as other:
        other.sign_in(story.service.admin_key, admin.page.url.removeprefix(story.service.url))
        assert rows(other).locator("td .badge").all_inner_texts() == badges
        assert other.page.get_by_label("Outcome").input_value() == "miss"
    admin.page.get_by_label("Tenant").fill("nobody-at-all")
    admin.page.get_by_role("heading", name="No decision fits").wait_for()
    admin.check()


def test_a_trace_id_and_a_decision_id_lead_to_it(story, admin):
    admin.open("/console/decisions")
    admin.page.get_by_label("Find by decision id or trace id").fill(story.ids["trace"])
    admin.page.get_by_role("button", name="Find").click()
    rows(admin).first.get_by_role("link").click()
    admin.page.get_by_role("heading", name=re.compile("Materialize")).wait_for()
    assert story.ids["acknowledged"] in admin.page.url
    chain = admin.page.get_by_role("region", name="The chain").first
    assert chain.locator("tbody tr").count() >= 3
    admin.open(f"/console/decisions/find?id={story.ids['miss']}")
    admin.page.get_by_text("No registered state begins with the tokens").first.wait_for()


def test_pages_follow_each_other_without_repeats(story, admin):
    with story.service.client() as client:
        for _ in range(60):
            lookup(client, TENANT, tokens=[1, 2, 3], model="paged")
        decisions_of(client, 60, model="paged")
    admin.open("/console/decisions?model=paged&last=1h")
    first = rows(admin).get_by_role("link").evaluate_all("all => all.map(one => one.href)")
    admin.page.get_by_role("link", name="Older decisions").click()
    admin.page.get_by_role("link", name="Newest").wait_for()
    second = rows(admin).get_by_role("link").evaluate_all("all => all.map(one => one.href)")
    assert len(first) == 50
    assert second
    assert not set(first) & set(second)


def test_live_results_come_by_themselves(story, admin):
    admin.open("/console/decisions?model=watched&live=1")
    admin.page.get_by_role("heading", name="No decision fits").wait_for()
    with story.service.client() as client:
        lookup(client, TENANT, tokens=[1, 2, 3], model="watched", model_identity=NEW_MODEL)
    rows(admin).first.wait_for()
    admin.check()


def test_tenants_see_only_theirs(browser, story):
    key = story.service.key(Scope.DECISIONS_READ, tenants=("globex",))
    with tab(browser, story.service.url) as opened:
        opened.sign_in(key, "/console/decisions")
        opened.page.get_by_role("heading", name="No decision yet").wait_for()
        assert opened.open(f"/console/decisions/{story.ids['miss']}") == 404
        assert opened.open(f"/console/decisions?tenant={TENANT}") == 403


@pytest.mark.parametrize(
    "trace", ["abc", "g" * 32, "0" * 32, "0198c2f0-0000-7000-8000-00000000000"]
)
def test_what_is_no_trace_id_finds_nothing(story, trace):
    with httpx.Client(base_url=story.service.url) as client:
        sign_in_with(client, story.service.admin_key)
        answer = client.get("/console/decisions", params={"trace_id": trace})
    assert answer.status_code == 200
    assert 'href="/console/decisions/' not in answer.text
