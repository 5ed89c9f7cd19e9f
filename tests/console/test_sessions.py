"""Signing in and out, what a key's scopes show, and what is refused."""

import re

import httpx
import pytest

from app.clock import SystemClock
from app.control.keys import Scope
from app.control.repository import revoke_key
from app.db.session import Database
from tests.console.browser import tab
from tests.fixtures.database import run_elsewhere
from tests.process.waiting import until

READ = (
    Scope.DECISIONS_READ, Scope.POLICIES_READ, Scope.STATES_READ, Scope.ENGINES_READ,
    Scope.WORKERS_READ,
)  # fmt: skip


def test_a_key_that_is_not_valid_is_told_so(stranger):
    stranger.open("/console/decisions?outcome=miss")
    assert "/console/sign-in?next=" in stranger.page.url
    stranger.page.get_by_label("API key").fill("nkv_000000000000_" + "0" * 43)
    stranger.page.get_by_role("button", name="Sign in").click()
    stranger.page.get_by_role("alert").get_by_text("This API key is not valid").wait_for()
    stranger.check()
    stranger.check_accessible()


def test_signing_in_goes_on_and_signing_out_ends_it(story, stranger):
    stranger.sign_in(story.service.admin_key, "/console/decisions?outcome=miss")
    assert stranger.page.url.endswith("/console/decisions?outcome=miss")
    cookie = stranger.page.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/console")
    assert story.service.admin_key not in cookie["value"]
    stranger.page.get_by_role("button", name="Sign out").click()
    stranger.page.get_by_role("heading", name="Sign in").wait_for()
    stranger.open("/console/workers")
    assert "/console/sign-in" in stranger.page.url
    stranger.check()


def test_a_link_on_another_site_leads_in(story, admin):
    """The cookie is SameSite=Strict: the first request comes without, and asks for itself again."""
    target = f"{story.service.url}/console/workers"
    admin.page.goto(f"data:text/html,<a href='{target}'>there</a>")
    admin.page.get_by_role("link", name="there").click()
    admin.page.get_by_role("heading", name="Workers").wait_for()


def test_a_reading_key_is_shown_no_activation_and_is_refused_one(browser, story):
    with tab(browser, story.service.url) as opened:
        opened.sign_in(story.service.key(*READ), "/console/policies")
        assert opened.page.get_by_role("link", name=re.compile("Activate")).count() == 0
        number = story.policies[1]
        assert opened.open(f"/console/policies/{number}/activate") == 403
        opened.page.get_by_role("heading", name="Not allowed").wait_for()
        opened.open("/console/policies")
        status = opened.page.evaluate(
            """async (number) => {
                const csrf = document.querySelector('input[name=csrf]').value;
                const body = new URLSearchParams({csrf, if_match: '"1-0"', confirmed: 'yes'});
                const path = `/console/policies/${number}/activate`;
                return (await fetch(path, {method: 'POST', body})).status;
            }""",
            number,
        )
        assert status == 403


def test_a_key_sees_what_its_scopes_allow(browser, story):
    with tab(browser, story.service.url) as opened:
        opened.sign_in(story.service.key(Scope.WORKERS_READ))
        shown = opened.page.get_by_role("navigation", name="Pages").get_by_role("link")
        assert shown.all_inner_texts() == ["Overview", "Workers"]
        assert opened.page.get_by_text("This key may not read decisions").count() == 1
        assert opened.open("/console/decisions") == 403
        opened.check()


def test_a_revoked_key_ends_its_session(browser, story):
    key = story.service.key(*READ)
    with tab(browser, story.service.url) as opened:
        opened.sign_in(key, "/console/workers")
        run_elsewhere(revoke(story.service.database_url, key.split("_")[1]))

        def is_out():
            opened.open("/console/workers")
            return "/console/sign-in" in opened.page.url

        until(is_out, "the session of a revoked key has ended", within_s=5)
        opened.page.get_by_text("Your session has ended").wait_for()


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({}, "forged"),
        ({"origin": "http://evil.example"}, None),
        ({"origin": "null"}, None),
        ({"sec-fetch-site": "cross-site"}, None),
        ({"sec-fetch-site": "same-site"}, None),
    ],
    ids=str,
)
def test_a_form_of_another_site_changes_nothing(story, headers, token):
    with httpx.Client(base_url=story.service.url) as client:
        own = sign_in_with(client, story.service.admin_key)
        fields = {"csrf": token or own, "if_match": '"1-0"', "confirmed": "yes"}
        path = f"/console/policies/{story.policies[1]}/activate"
        refused = client.post(path, data=fields, headers=headers)
        assert refused.status_code == 403
        assert "did not come from a page of this session" in refused.text
        # And the browser keeps the session that it has.
        held_back = httpx.post(story.service.url + path, data=fields, headers=headers)
        assert "sec-fetch-site" not in headers or "set-cookie" not in held_back.headers
        # With its own token and no such header it gets as far as its precondition.
        assert client.post(path, data=fields | {"csrf": own}).status_code == 412


def test_a_cookie_of_nobody_signs_nobody_in(story):
    with httpx.Client(base_url=story.service.url) as client:
        form = client.get("/console/sign-in")
        value = client.cookies["nexuskv_console"]
        altered = value[:-2] + ("AA" if value[-2:] != "AA" else "BB")
        for cookie in (value, altered, "nkvc1.", "nkvc1." + "A" * 600, "x"):
            client.cookies.clear()
            client.cookies.set("nexuskv_console", cookie)
            answer = client.get("/console/decisions")
            assert (answer.status_code, answer.headers["location"][:16]) == (
                303,
                "/console/sign-in",
            )
        assert form.headers["content-security-policy"].startswith("default-src 'none'")
        assert form.headers["x-content-type-options"] == "nosniff"
        assert form.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("onward", ["//evil.example", "https://evil.example", "/v1", "/console\\x"])
def test_signing_in_leads_only_into_the_console(story, onward):
    with httpx.Client(base_url=story.service.url) as client:
        csrf = token_in(client.get("/console/sign-in").text)
        fields = {"csrf": csrf, "key": story.service.admin_key, "next": onward}
        assert client.post("/console/sign-in", data=fields).headers["location"] == "/console"


def test_too_many_unknown_keys_are_put_off(story):
    with httpx.Client(base_url=story.service.url) as client:
        csrf = token_in(client.get("/console/sign-in").text)
        statuses = set()
        for number in range(200):
            key = f"nkv_{number:012x}_" + "0" * 43
            answer = client.post("/console/sign-in", data={"csrf": csrf, "key": key})
            statuses.add(answer.status_code)
        assert statuses == {403, 503}


def sign_in_with(client, key):
    csrf = token_in(client.get("/console/sign-in").text)
    answer = client.post("/console/sign-in", data={"csrf": csrf, "key": key})
    assert answer.status_code == 303
    return token_in(client.get("/console").text)


def token_in(text):
    found = re.search(r'name="csrf" value="([^"]+)"', text)
    assert found is not None
    return found[1]


async def revoke(url, key_id):
    database = Database(url, pool_connections=1)
    async with database.write() as session:
        assert await revoke_key(session, key_id, SystemClock().now()) is not None
    await database.close()
