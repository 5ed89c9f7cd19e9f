"""Steps that can be undone: each one repeated, failed, and failed in its undo."""

import asyncio

import pytest
from structlog.testing import capture_logs

from app.lifecycle import steps as steps_module
from app.lifecycle.steps import End, Steps

NAMES = ["a", "b", "c"]


class Noted:
    """Keeps what it did in `held`, and can be told to fail."""

    def __init__(self, name, held, *, end=End.GO_ON, raises=None, undo_raises=None):
        self.name = name
        self.held = held
        self.end = end
        self.raises = raises
        self.undo_raises = undo_raises
        self.undone = 0

    async def do(self):
        self.held.add(self.name)
        if self.raises is not None:
            raise self.raises
        return self.end

    async def undo(self):
        self.undone += 1
        if self.undo_raises is not None:
            raise self.undo_raises
        self.held.discard(self.name)


def three(held, at=None, **changes):
    return [Noted(name, held, **(changes if name == at else {})) for name in NAMES]


async def test_all_steps_are_done_and_may_be_done_again():
    held, steps = set(), Steps()
    run = three(held)
    for _ in range(2):
        assert await steps.run(run) is End.GO_ON
    assert held == set(NAMES)
    assert [step.undone for step in run] == [0, 0, 0]


@pytest.mark.parametrize("at", NAMES)
async def test_a_step_that_fails_leaves_nothing_of_any(at):
    held = set()
    run = three(held, at, raises=RuntimeError("no"))
    with pytest.raises(RuntimeError, match="no"):
        await Steps().run(run)
    assert held == set()
    begun = NAMES.index(at) + 1
    assert [step.undone for step in run] == [1] * begun + [0] * (3 - begun)


@pytest.mark.parametrize("at", NAMES)
async def test_a_fallback_is_undone_and_is_no_error(at):
    held = set()
    assert await Steps().run(three(held, at, end=End.FALL_BACK)) is End.FALL_BACK
    assert held == set()


@pytest.mark.parametrize("at", NAMES)
async def test_an_early_end_keeps_what_was_done(at):
    held = set()
    assert await Steps().run(three(held, at, end=End.DONE)) is End.DONE
    assert held == set(NAMES[: NAMES.index(at) + 1])


@pytest.mark.parametrize("at", NAMES)
async def test_an_undo_that_fails_does_not_keep_the_others_from_theirs(at):
    held = set()
    run = three(held, at, undo_raises=RuntimeError("stuck"))
    run.append(Noted("last", held, raises=ValueError("the reason")))
    with capture_logs() as logs, pytest.raises(ValueError, match="the reason"):
        await Steps().run(run)
    assert held == {at}
    assert [line["step"] for line in logs if line["event"] == "step_not_undone"] == [at]


async def test_a_caller_that_goes_away_twice_is_undone_all_the_same():
    held, steps, release, undoing = set(), Steps(), asyncio.Event(), asyncio.Event()

    class Slow(Noted):
        async def do(self):
            await super().do()
            await asyncio.Event().wait()

        async def undo(self):
            undoing.set()
            await release.wait()
            await super().undo()

    task = asyncio.create_task(steps.run([Noted("a", held), Slow("b", held), Noted("c", held)]))
    while "b" not in held:
        await asyncio.sleep(0)
    task.cancel()
    await undoing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert held == {"a", "b"}
    release.set()
    await steps.settled()
    assert held == set()


class Last(Noted):
    """A last step that is at work until it is let go."""

    def __init__(self, held, **changes):
        super().__init__("last", held, **changes)
        self.at_work, self.go_on = asyncio.Event(), asyncio.Event()

    async def do(self):
        self.at_work.set()
        await self.go_on.wait()
        return await super().do()


async def test_a_last_step_at_work_comes_to_its_end_though_its_caller_goes_away():
    held = set()
    last = Last(held)
    task = asyncio.create_task(Steps().run([Noted("a", held), last]))
    await last.at_work.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    last.go_on.set()
    assert await task is End.GO_ON
    assert (held, last.undone, task.cancelling()) == ({"a", "last"}, 0, 0)


async def test_a_last_step_that_fails_meanwhile_is_undone():
    held = set()
    last = Last(held, raises=RuntimeError("no"))
    task = asyncio.create_task(Steps().run([Noted("a", held), last]))
    await last.at_work.wait()
    task.cancel()
    last.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (held, last.undone) == (set(), 1)


async def test_a_last_step_that_comes_to_no_end_is_given_up(monkeypatch):
    monkeypatch.setattr(steps_module, "LAST_S", 0.01)
    held = set()
    last = Last(held)
    task = asyncio.create_task(Steps().run([Noted("a", held), last]))
    await last.at_work.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (held, last.undone) == (set(), 1)
