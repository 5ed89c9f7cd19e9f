"""What a process knows once it says that it is ready."""

import asyncio

from tests.lifecycle.in_process import WAIT_S, running


async def test_states_are_back_before_it_is_ready(database_url, gate):
    async with running(database_url) as before:
        for number in range(120):
            await before.register("t", f"state-{number}", tokens=[number, 1, 2])
        gone = await before.register("t", "gone", tokens=[500, 1, 2])
        await before.client.delete(f"/v1/states/{gone['state_id']}")
    gate.close()
    async with running(database_url, served_url=gate.url, wait=False) as after:
        unready = await after.client.get("/readyz")
        assert unready.status_code == 503
        gate.open()
        async with asyncio.timeout(WAIT_S):
            while (await after.client.get("/readyz")).status_code != 200:
                after.clock.advance(1)
                await asyncio.sleep(0.001)
        for number in (0, 60, 119):
            answer = await after.lookup("t", tokens=[number, 1, 2])
            assert answer.json()["match_result"] is not None, number
        answer = await after.lookup("t", tokens=[500, 1, 2])
        assert answer.json()["match_result"] is None
        assert "x-nexuskv-match" not in answer.headers
