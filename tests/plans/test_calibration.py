"""Costs follow outcomes: of prefills that runtimes report, and of transfers that workers time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import log
from typing import Any

import pytest

from app.calibration.keeper import CalibrationKeeper
from app.calibration.observations import Happened, observations
from app.calibration.parts import PREFILL, Calibration, Learnt, PartKey, link_part, path_part
from app.contract.enums import TierKind
from app.db.session import Database
from app.planner.calibrate import CalibrationLimits, Estimator
from app.planner.links import NO_LINKS, Link, Links
from app.profiles.document import read_profile
from app.settings import REFERENCE_PROFILE_FILE
from tests.lifecycle.in_process import WAIT_S, InProcess, running
from tests.plans.fleet import PROMPT

MODEL = "calibrated-model"
TARGET = {"engine_id": "engine-1", "hardware": "h200", "queue_depth": 0,
          "running_prefill_tokens": 0, "running_decode_tokens": 0}  # fmt: skip
REFERENCE_PROFILE = read_profile(REFERENCE_PROFILE_FILE.read_bytes())
KEY = PartKey(MODEL, "h200", PREFILL)
# By the reference profile: 100 us, and 5 for each token.
PREDICTED_US = 100 + 5 * len(PROMPT)


@pytest.fixture
async def process(database_url: str) -> AsyncIterator[InProcess]:
    """It learns when a test says so, and not by itself."""
    async with running(database_url) as made:
        for task in made.services._tasks:
            if task.get_name() == "learning":
                task.cancel()
                await asyncio.wait((task,))
        await made.services.calibration.learn()
        yield made


async def plan(process: InProcess, **changes: Any) -> dict[str, Any]:
    query = {"tenant": "t", "model": MODEL, "tokens": PROMPT}
    answer = await process.post("/v1/plans", {"query": query, "targets": [TARGET], **changes})
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


async def computed(process: InProcess, observed_us: float) -> None:
    """A plan that computes, and the runtime's word on how long that took."""
    made = await plan(process)
    await stored(process)
    report = {"status": "recomputed", "observed_us": round(observed_us) + 500,
              "detail": {"prefill_us": observed_us}}  # fmt: skip
    path = f"/v1/decisions/{made['decision_id']}/outcome"
    (await process.post(path, report)).raise_for_status()


async def stored(process: InProcess) -> None:
    spool = process.services.spool
    assert await spool.wait_committed(spool.recorded, wait_s=WAIT_S)


async def recompute_us(process: InProcess) -> dict[str, Any]:
    terms = (await plan(process))["chosen"]["terms"]
    return next(term for term in terms if term["name"] == "recompute")


async def test_prefills_that_take_four_times_as_long_are_learnt(process: InProcess) -> None:
    calibration = process.services.calibration
    before = await recompute_us(process)
    assert (before["value_us"], before["provenance"]) == (5 * len(PROMPT), "profile")
    for _ in range(12):
        await computed(process, 4 * PREDICTED_US)
    assert await calibration.learn() == 12
    await calibration.refresh()
    learnt = calibration.current.known[KEY]
    assert learnt.estimator.observations == 12
    assert learnt.estimator.factor == pytest.approx(4, rel=0.05)
    after = await recompute_us(process)
    assert after["value_us"] == pytest.approx(4 * before["value_us"], rel=0.05)
    assert after["provenance"] == "measured"
    assert await calibration.learn() == 0


async def test_one_observation_goes_no_further_than_the_policy_lets_it(process: InProcess) -> None:
    await computed(process, 100 * PREDICTED_US)
    await process.services.calibration.learn()
    await process.services.calibration.refresh()
    learnt = process.services.calibration.current.known[KEY]
    assert learnt.estimator.factor == pytest.approx(1.25)


async def test_what_is_no_time_teaches_nothing(process: InProcess) -> None:
    made = await plan(process)
    await stored(process)
    path = f"/v1/decisions/{made['decision_id']}/outcome"
    for number, wrong in enumerate((0, -5, "soon", None, True, 1e30, [1], {})):
        report = {"status": "recomputed", "report_id": f"r{number}",
                  "detail": {"prefill_us": wrong, "transfer_us": wrong}}  # fmt: skip
        (await process.post(path, report)).raise_for_status()
    await process.services.calibration.learn()
    await process.services.calibration.refresh()
    assert process.services.calibration.current.known == {}


async def test_two_replicas_learn_each_outcome_once(process: InProcess, database_url: str) -> None:
    for _ in range(6):
        await computed(process, 2 * PREDICTED_US)
    services = process.services
    async with other_keeper(process, database_url) as other:
        read = await other.learn() + await services.calibration.learn()
        assert read == 6
        await other.refresh()
        await services.calibration.refresh()
        assert other.current.known == services.calibration.current.known
    assert services.calibration.current.known[KEY].estimator.observations == 6


@asynccontextmanager
async def other_keeper(process: InProcess, url: str) -> AsyncIterator[CalibrationKeeper]:
    services = process.services
    async with Database(url, pool_connections=2) as database:
        yield CalibrationKeeper(
            database,
            lambda model, hardware: services.profiles.current.best(model, hardware).profile,
            lambda: services.topology.current.links,
            CalibrationLimits,
            process.clock,
        )


async def test_another_profile_begins_anew(process: InProcess) -> None:
    services = process.services
    for _ in range(10):
        await computed(process, 3 * PREDICTED_US)
    await services.calibration.learn()
    await services.calibration.refresh()
    document = (
        f"schema_version: nexuskv.cost_profile.v1\nname: own\nsource: measured\nmodel: {MODEL}\n"
        "prefill: {schedule_us: 0, per_token_us: 15, per_pair_us: 0, uncertainty: 0.1}\n"
        "paths: []\nrestore_us: 0\ndefault_bytes_per_token: 1\n"
    )
    await services.profile_store.push(document, "tests")
    await services.profiles.refresh()
    # The factor was of the other profile.
    assert (await recompute_us(process))["value_us"] == 15 * len(PROMPT)
    await computed(process, 15 * len(PROMPT))
    await services.calibration.learn()
    await services.calibration.refresh()
    assert services.calibration.current.known[KEY].estimator.observations == 1


async def test_a_plan_made_under_calibration_is_explained_as_it_was(process: InProcess) -> None:
    for _ in range(10):
        await computed(process, 2 * PREDICTED_US)
    await process.services.calibration.learn()
    await process.services.calibration.refresh()
    made = await plan(process)
    await stored(process)
    for _ in range(10):
        await computed(process, 8 * PREDICTED_US)
    await process.services.calibration.learn()
    await process.services.calibration.refresh()
    again = (await process.client.get(f"/v1/plans/{made['decision_id']}")).json()
    assert again["chosen"] == made["chosen"]
    assert (await recompute_us(process))["value_us"] > 1.5 * made["chosen"]["total_us"]


def test_parts_have_names_that_are_read_back() -> None:
    known = {
        PartKey("m", "h", path_part(tier, remote=remote)): learnt_of(2.0, "basis")
        for tier in TierKind
        for remote in (True, False)
    }
    assert len(Calibration(known)._by_target["m", "h"]) == 2 * len(TierKind)
    linked = Calibration({PartKey("", "", link_part("a:1", "b")): learnt_of(2.0, "x")})
    assert list(linked._of_links) == [("a:1", "b")]


def learnt_of(factor: float, basis: str) -> Learnt:
    return Learnt(Estimator(log(factor), 0.05, 20), basis)


def transferred(link: list[float] | None = None, **changes: Any) -> Happened:
    """A materialization whose worker took 2 ms for 100 MB."""
    situation = {
        "tier": "host_dram", "locator": "node://a/state/s", "target_residency": "b", "tokens": 10,
    }  # fmt: skip
    inputs = {"situation": situation, "link": link, "hardware": "h200"}
    fields: dict[str, Any] = {
        "status": "completed", "transfer_us": 2_000, "bytes_transferred": 100_000_000,
        "detail": {}, "kind": "materialize", "model": MODEL, "inputs": inputs, "estimate": {},
        "query_tokens": None,
    }  # fmt: skip
    return Happened(**fields | changes)


def test_a_transfer_teaches_its_path_or_its_link() -> None:
    """By the reference profile 100 MB from memory take 500 us; by the link 1 ms and 20 us."""
    base, links = REFERENCE_PROFILE, Links(("a", "b"), {("a", "b"): Link(20.0, 100_000.0)})
    (by_path,) = observations(transferred(), lambda *_: base, links)
    assert by_path.key == PartKey(MODEL, "h200", "path:host_dram:remote")
    assert (by_path.predicted_us, by_path.observed_us) == (500.0, 2_000)
    # With one transfer beside it, half of the link.
    used = [20.0, 50_000.0, 1, 0]
    (by_link,) = observations(transferred(used), lambda *_: base, links)
    assert by_link.key == PartKey("", "", "link:a/b")
    assert (by_link.predicted_us, by_link.observed_us) == (2_020.0, 2_000)
    # The link is no more: nothing is said of it.
    assert not list(observations(transferred(used), lambda *_: base, NO_LINKS))


@pytest.mark.parametrize(
    "changes",
    [
        {"transfer_us": None}, {"transfer_us": 0}, {"bytes_transferred": 0},
        {"bytes_transferred": 4 * 1024 * 1024 - 1},
        {"inputs": {}}, {"inputs": {"situation": None}}, {"kind": "plan"},
        {"inputs": {"situation": {"tier": "moon", "locator": "", "target_residency": ""}}},
        {"kind": "plan", "estimate": {"source": 3, "terms": 7}, "detail": {"prefill_us": 5}},
    ],
)  # fmt: skip
def test_a_record_that_says_too_little_teaches_nothing(changes: dict[str, Any]) -> None:
    assert not list(observations(transferred(**changes), lambda *_: REFERENCE_PROFILE, NO_LINKS))


def test_a_link_that_is_slower_than_the_topology_says_is_priced_so() -> None:
    base = Links(("a", "b"), {("a", "b"): Link(20.0, 100_000.0, 0, 4), ("b", "a"): Link(1.0, 1.0)})
    key = PartKey("", "", link_part("a", "b"))
    slower = Calibration({key: learnt_of(4.0, "20+100000")})
    found = slower.links(base)
    assert found.get("a", "b") == pytest.approx(Link(80.0, 25_000.0, 0, 4))
    assert found.get("b", "a") == base.get("b", "a")
    assert base.get("a", "b").bytes_per_us == 100_000.0
    # Of a link as it was before the topology changed nothing is known.
    assert Calibration({key: learnt_of(4.0, "20+5")}).links(base).get("a", "b") == base.get(
        "a", "b"
    )


async def test_what_is_learnt_is_shown_and_measured(process: InProcess) -> None:
    for _ in range(9):
        await computed(process, 2 * PREDICTED_US)
    await process.services.calibration.learn()
    await process.services.calibration.refresh()
    shown = (await process.client.get("/v1/calibration", params={"model": MODEL})).json()
    (part,) = shown["parts"]
    assert (part["part"], part["hardware"], part["observations"]) == (PREFILL, "h200", 9)
    assert part["factor"] == pytest.approx(2, rel=0.1)
    assert part["measured"]
    assert (await process.client.get("/v1/calibration", params={"model": "x"})).json()[
        "parts"
    ] == []
    metrics = (await process.client.get("/metrics")).text
    assert 'nexuskv_cost_observed_over_predicted_count{part="prefill"} 9.0' in metrics
    assert "nexuskv_calibration_outcomes_total 9.0" in metrics
