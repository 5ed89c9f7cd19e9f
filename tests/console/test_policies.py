"""Activating a policy: shown, confirmed, and refused where somebody was faster."""

from app.control.keys import Scope
from tests.console.browser import tab


def activate_over_http(story, number):
    with story.service.client() as client:
        client.post(f"/v1/policies/{number}:activate").raise_for_status()


def active_of(story):
    with story.service.client() as client:
        return client.get("/v1/policies/active").json()["activation"]


def test_an_activation_shows_what_changes_and_asks(story, admin):
    first, second = story.policies
    activate_over_http(story, first)
    admin.open("/console/policies")
    admin.page.get_by_role("link", name=f"Activate version {second}").click()
    admin.page.get_by_role("heading", name=f"Activate policy {second}?").wait_for()
    changed = admin.page.locator(".diff .added, .diff .removed").all_inner_texts()
    assert any('"on_policy_denial": false' in line for line in changed)
    assert len(changed) <= 4
    admin.page.get_by_label("Why (kept with the activation)").fill("tried in the console")
    admin.page.get_by_label("I have read what changes").check()
    admin.page.get_by_role("button", name=f"Activate version {second}").click()
    admin.page.get_by_text(f"Policy {second} is in force here now").wait_for()
    active = active_of(story)
    assert (active["number"], active["message"]) == (second, "tried in the console")
    assert active["key_id"] == story.service.admin_key.split("_")[1]
    admin.check()


def test_an_activation_after_somebody_elses_is_refused(browser, story, admin):
    first, second = story.policies
    activate_over_http(story, first)
    admin.open(f"/console/policies/{second}/activate")
    activate_over_http(story, second)
    activate_over_http(story, first)
    before = active_of(story)
    admin.page.get_by_label("I have read what changes").check()
    admin.page.get_by_role("button", name=f"Activate version {second}").click()
    admin.page.get_by_role("heading", name="Somebody was faster").wait_for()
    assert active_of(story) == before
    key = story.service.key(Scope.POLICIES_READ, Scope.POLICIES_ACTIVATE)
    with tab(browser, story.service.url) as opened:
        opened.sign_in(key, f"/console/policies/{second}")
        opened.page.get_by_role("link", name="Activate…").wait_for()


def test_two_versions_are_compared(story, admin):
    first, second = story.policies
    admin.open(f"/console/policies/diff?from={first}&to={second}")
    assert admin.page.locator(".diff .added").count() >= 1
    admin.open(f"/console/policies/diff?from={first}&to={first}")
    admin.page.get_by_text("Both say the same").wait_for()
    assert admin.open("/console/policies/diff?from=x&to=1") == 400
    admin.check()
