"""What an answer says of its decision holds when it leaves."""

from pathlib import Path

import yaml

from app.settings import DEFAULT_POLICY_FILE
from tests.fixtures.wire import new_tenant
from tests.lifecycle.in_process import running

HEADER = "x-nexuskv-durability"


async def test_what_moves_state_is_committed_first_and_what_asks_is_spooled(
    database_url: str,
) -> None:
    async with running(database_url) as process:
        tenant = new_tenant()
        await process.register(tenant)
        lookup = await process.lookup(tenant)
        assert lookup.headers[HEADER] == "spooled"
        option = await process.option(tenant)
        answer = await process.materialize(option)
        assert answer.status_code == 200
        assert answer.headers[HEADER] == "group"
        # Nobody waits here: it is there.
        decision_id = answer.headers["x-nexuskv-decision-id"]
        found = await process.client.get(f"/v1/decisions/{decision_id}")
        assert found.status_code == 200
        detail = found.json()
        assert (detail["kind"], detail["durability"]) == ("materialize", "group")
        assert [each["kind"] for each in detail["chain"]] == ["lookup", "estimate", "materialize"]
        (outcome,) = detail["outcomes"]
        assert (outcome["status"], outcome["kind"]) == ("registered", "materialize")


async def test_the_policy_may_want_a_lookup_committed(database_url: str, tmp_path: Path) -> None:
    document = yaml.safe_load(DEFAULT_POLICY_FILE.read_text())
    document["history_durability"] = {"lookup": "group", "materialize": "spooled"}
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump(document))
    async with running(database_url, policy_file=policy) as process:
        answer = await process.lookup(new_tenant())
        assert answer.headers[HEADER] == "group"
        found = await process.client.get(f"/v1/decisions/{answer.headers['x-nexuskv-decision-id']}")
        assert found.json()["outcome"] == "miss"


async def test_without_room_asking_goes_on_and_moving_does_not(
    database_url: str, tmp_path: Path
) -> None:
    async with running(
        database_url, spool_dir=tmp_path / "spool", spool_bytes=1, copier="elsewhere"
    ) as process:
        tenant = new_tenant()
        await process.register(tenant)
        option = await process.option(tenant)
        spool = process.services.spool
        while not spool.full:
            spool.append(bytes(60_000))
        while spool.append(bytes(100)):
            pass
        lost = spool.lost_rows
        lookup = await process.lookup(tenant)
        assert lookup.status_code == 200
        assert lookup.json()["match_result"]["classification"] == "exact"
        assert lookup.headers[HEADER] == "lost"
        refused = await process.materialize(option)
        assert refused.status_code == 503
        assert "history is full" in refused.text
        assert spool.lost_rows == lost + 1
        page = (await process.client.get("/metrics")).text
        assert f'nexuskv_decisions_lost_total{{reason="no_room"}} {lost + 1}.0' in page


async def test_an_answer_that_waited_long_enough_leaves_and_says_so(
    database_url: str, tmp_path: Path
) -> None:
    async with running(
        database_url, spool_dir=tmp_path / "spool", copier="elsewhere", group_wait_s=0.05
    ) as process:
        tenant = new_tenant()
        await process.register(tenant)
        answer = await process.materialize(await process.option(tenant))
        assert (answer.status_code, answer.headers[HEADER]) == (200, "spooled")
        assert process.services.keeping.late == 1
