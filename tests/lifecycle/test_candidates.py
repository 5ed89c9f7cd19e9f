"""What else a decision could have come to, what it would have cost, and why it lost."""

from typing import Any

import httpx
import pytest

from tests.fixtures.wire import TOKENS, registration
from tests.lifecycle.in_process import InProcess, running

TENANT = "choosing"
# [4, tokens, 8, 64] of float16.
BYTES_A_TOKEN = 4 * 8 * 64 * 2
HOST, DISK, OBJECTS = 200_000, 7_000, 1_000


@pytest.fixture
async def process(database_url: str):
    async with running(database_url) as found:
        yield found


async def candidates(process: InProcess, answer: httpx.Response) -> list[dict[str, Any]]:
    decision_id = answer.headers["x-nexuskv-decision-id"]
    await process.decisions()
    found = await process.client.get(f"/v1/decisions/{decision_id}")
    listed: list[dict[str, Any]] = found.raise_for_status().json()["candidates"]
    assert [one["chosen"] for one in listed] == [True] + [False] * (len(listed) - 1)
    for one in listed:
        assert one["chosen"] == (one["lost"] is None)
        assert one["predicted_us"] == sum(term["value_us"] for term in one["terms"])
    return listed


def brief(listed: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    return [(one["name"], one["lost"]) for one in listed]


def bringing(moved_bytes: int, bytes_per_us: int) -> int:
    return 50 + -(-moved_bytes // bytes_per_us)


async def test_of_a_lookup_those_before_and_behind_the_winner(process: InProcess) -> None:
    await process.register(TENANT, "withdrawn", reusable=False)
    await process.register(TENANT, "on-disk", tier="local_ssd")
    await process.register(TENANT, "in-memory")
    await process.register(TENANT, "shorter", tokens=TOKENS[:5], tier="object_store")
    listed = await candidates(process, await process.lookup(TENANT))
    assert brief(listed) == [
        ("in-memory", None),
        ("withdrawn", "not_reusable"),
        ("on-disk", "ranked_lower"),
        ("shorter", "shorter_match"),
        ("recompute", "state_found"),
    ]
    whole, part = len(TOKENS) * BYTES_A_TOKEN, 5 * BYTES_A_TOKEN
    assert [one["predicted_us"] for one in listed] == [
        bringing(whole, HOST),
        bringing(whole, HOST),
        bringing(whole, DISK),
        bringing(part, OBJECTS),
        100 + 5 * len(TOKENS),
    ]
    assert [one["terms"][1]["provenance"] for one in listed[:4]] == ["profile"] * 4
    assert [one["matched_tokens"] for one in listed] == [len(TOKENS)] * 3 + [5, len(TOKENS)]


async def test_a_part_of_a_state_is_its_share_and_says_so(process: InProcess) -> None:
    partly = ["full", "partial", "fallback_recompute"]
    await process.register(TENANT, tokens=[*TOKENS, 91, 92], capabilities=partly)
    listed = await candidates(process, await process.lookup(TENANT))
    assert listed[0]["predicted_us"] == bringing(len(TOKENS) * BYTES_A_TOKEN, HOST)
    assert listed[0]["terms"][1]["provenance"] == "default"


async def test_eight_behind_the_winner_are_told_of(process: InProcess) -> None:
    for number in range(12):
        await process.register(TENANT, f"copy-{number}")
    listed = await candidates(process, await process.lookup(TENANT))
    assert [one["lost"] for one in listed] == [None, *["ranked_lower"] * 8, "state_found"]


async def test_a_miss_is_computed(process: InProcess) -> None:
    listed = await candidates(process, await process.lookup(TENANT))
    assert brief(listed) == [("recompute", None)]
    assert listed[0]["predicted_us"] == 100 + 5 * len(TOKENS)


@pytest.mark.parametrize(
    ("tier", "lost"), [("host_dram", "dearer"), ("object_store", "caller_decides")]
)
async def test_an_estimate_is_compared_with_computing(
    process: InProcess, tier: str, lost: str
) -> None:
    tokens = list(range(1_000))
    entry = registration(TENANT, tier=tier, tokens=tokens)
    entry["entry"]["descriptor"]["tensor_specs"][0]["shape"][0] = "64"
    answer = await process.post("/v1/states", {"entries": [entry]})
    assert answer.status_code == 201, answer.text
    handle = (await process.lookup(TENANT, tokens=tokens)).json()["match_result"]["validation"]
    answer = await process.estimate(handle["source_handle"], source_tier=tier)
    listed = await candidates(process, answer.raise_for_status())
    rate = {"host_dram": HOST, "object_store": OBJECTS}[tier]
    assert brief(listed) == [("engine", None), ("recompute", lost)]
    assert [one["predicted_us"] for one in listed] == [
        bringing(16 * 1_000 * BYTES_A_TOKEN, rate),
        100 + 5 * 1_000,
    ]
    option = answer.json()
    done = await candidates(process, await process.materialize(option))
    assert brief(done) == [("engine", None), ("recompute", lost)]
