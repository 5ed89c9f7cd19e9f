"""Work in steps that each can be undone: all of them happen, or none is left behind.

Undo is called for the step that failed as well, since it may have done half of its work: an undo
of nothing is nothing. An undo that fails does not keep the others from being called; what it would
have given back has an end of its own (a claim, a charge, a sink: all of them expire).

The last step makes it final, and is not interrupted: a caller who goes away while it commits does
not learn what became of it, but the record does.
"""

import asyncio
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, Protocol

import structlog

UNDO_S: Final = 5.0
# For a last step whose caller went away: longer than a statement of the database may take.
LAST_S: Final = 10.0
log = structlog.get_logger("nexuskv.steps")


class End(Enum):
    """How one step, and with it the whole, goes on."""

    GO_ON = auto()
    DONE = auto()  # the whole is finished early, and well
    FALL_BACK = auto()  # the whole did not happen; the reason is where the steps keep it


class Step(Protocol):
    """One step. Both methods may be called again after they were."""

    @property
    def name(self) -> str: ...

    async def do(self) -> End:
        """Raises what the caller is to be told; `FALL_BACK` for what is no error."""

    async def undo(self) -> None: ...


class Steps:
    """Runs steps in order. It outlives its callers: an undo goes on when its caller went away."""

    def __init__(self) -> None:
        self._undoing: set[asyncio.Task[None]] = set()

    async def run(self, steps: Sequence[Step]) -> End:
        """GO_ON when every step was done. Whatever a step raises is raised once all is undone.

        Also GO_ON, and not cancelled, when it was cancelled while the last step did its work.
        """
        begun: list[Step] = []
        end = End.GO_ON
        try:
            for step in steps:
                begun.append(step)
                end = await (_to_its_end(step) if step is steps[-1] else step.do())
                if end is not End.GO_ON:
                    break
        except BaseException:
            await self._undo(begun)
            raise
        if end is End.FALL_BACK:
            await self._undo(begun)
        return end

    async def settled(self) -> None:
        """Returns once no undo is running: for a clean end of the process."""
        await asyncio.gather(*self._undoing, return_exceptions=True)

    async def _undo(self, begun: Sequence[Step]) -> None:
        task = asyncio.create_task(_undo_all(begun), name="undo")
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        # A caller that goes away meanwhile does not stop it.
        await asyncio.shield(task)


async def _to_its_end(step: Step) -> End:
    """What `step` comes to, also when this is cancelled meanwhile; only a failure is cut short."""
    task = asyncio.create_task(step.do(), name="last step")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait((task,), timeout=LAST_S)
        finally:
            task.cancel()
        if not task.done() or task.cancelled() or task.exception() is not None:
            raise
        # It is done, so there is nothing to stop any more.
        asking = asyncio.current_task()
        assert asking is not None
        asking.uncancel()
        return task.result()


async def _undo_all(begun: Sequence[Step]) -> None:
    for step in reversed(begun):
        try:
            async with asyncio.timeout(UNDO_S):
                await step.undo()
        except Exception as error:  # noqa: BLE001 - the others must be undone as well
            log.warning("step_not_undone", step=step.name, error=repr(error))
