"""Handles and options live as long as they say, by the service's clock."""

from tests.fixtures.wire import error_code


async def test_a_source_handle_lives_ten_minutes(process):
    await process.register("t")
    handle = await process.handle("t")
    process.clock.advance(595)
    assert (await process.estimate(handle)).status_code == 200
    process.clock.advance(6)
    assert error_code(await process.estimate(handle)) == (409, "source_handle_mismatch")


async def test_an_option_lives_thirty_seconds(process):
    await process.register("t")
    used, unused = await process.option("t"), await process.option("t")
    process.clock.advance(25)
    assert (await process.materialize(used)).status_code == 200
    process.clock.advance(6)
    answer = await process.materialize(unused)
    assert error_code(answer) == (409, "materialization_option_expired")


async def test_a_receipt_is_given_again_after_the_option_has_expired(process):
    await process.register("t")
    option = await process.option("t")
    first = await process.materialize(option)
    process.clock.advance(31)
    again = await process.materialize(option)
    assert again.status_code == 200
    assert again.json() == first.json()
    other = await process.materialize(option, import_id="import-2")
    # That it was consumed comes before that it is expired.
    assert error_code(other) == (409, "materialization_option_consumed")


async def test_a_receipt_outlives_its_state(process):
    created = await process.register("t")
    option = await process.option("t")
    first = await process.materialize(option)
    await process.client.delete(f"/v1/states/{created['state_id']}")
    assert (await process.materialize(option)).json() == first.json()


async def test_the_wrong_target_comes_before_everything_the_database_knows(process):
    await process.register("t")
    option = await process.option("t")
    await process.materialize(option)
    process.clock.advance(31)
    answer = await process.materialize(option, target_id="other")
    assert error_code(answer) == (409, "materialization_target_mismatch")
