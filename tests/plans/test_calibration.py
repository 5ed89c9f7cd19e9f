"""Costs follow outcomes: of prefills that runtimes report, and of transfers that workers time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import log
from typing import Any

import pytest

from app.calibration.keeper import CalibrationKeeper
from app.calibration.parts import PREFILL, Calibration, Learnt, PartKey, link_part, path_part
from app.contract.enums import TierKind
from app.db.session import Database
from app.planner.calibrate import CalibrationLimits, Estimator
from tests.lifecycle.in_process import WAIT_S, InProcess, running
from tests.plans.fleet import PROMPT

MODEL = "calibrated-model"
TARGET = {"engine_id": "engine-1", "hardware": "h200", "queue_depth": 0,
          "running_prefill_tokens": 0, "running_decode_tokens": 0}  # fmt: skip
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
