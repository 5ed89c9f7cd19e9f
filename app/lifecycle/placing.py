"""Plan, for state that lies on a worker: which of its backends may bring it to which other one."""

from typing import Protocol

from msgspec import Struct, structs

from app.contract.enums import (
    BufferKind,
    DeviceClass,
    Disposition,
    MaterializationCapability,
    TierKind,
    TransferBackend,
)
from app.contract.locators import node_locator, parse_locator
from app.contract.payload import PayloadLocation
from app.execution.catalog import NoSelection, Selection
from app.execution.situation import Situation, choose
from app.execution.worker_catalog import worker_registrations
from app.index.registry import stored_registration, wall_us
from app.index.repository import StoredState
from app.policy.document import ExecutionPolicy
from app.topology.directory import Worker, WorkerStatus
from app.transfer.wire import SINK_NAMESPACE


class Directory(Protocol):
    """The workers, as far as the pipeline asks for them."""

    def get(self, name: str) -> Worker | None: ...

    def status(
        self, name: str, registered_us: int, tenant: str, payload_id: str
    ) -> WorkerStatus: ...


class Placement(Struct, frozen=True):
    """From where to where, by what."""

    source: Worker
    payload_id: str
    target: Worker
    location: PayloadLocation
    capability: MaterializationCapability
    selection: Selection


class Asked(Struct, frozen=True):
    """What is to be placed: the first `tokens` of a stored state, into a location of a worker."""

    action: Disposition
    stored: StoredState
    tokens: int
    target_worker: str
    location: PayloadLocation
    preferred: TransferBackend | None = None


def situation_of(directory: Directory, asked: Asked) -> Situation:
    """What is known now that the plan depends on."""
    stored, plain = asked.stored, by_engine(asked)
    found = parse_locator(plain.locator)
    source = directory.get(found[0]) if found else None
    target = directory.get(asked.target_worker)
    if found is None or source is None or target is None:
        return structs.replace(plain, ends="no_path")
    status = directory.status(found[0], wall_us(stored.updated_at), stored.tenant, found[1])
    return structs.replace(
        plain,
        ends="workers" if status == "available" else "source_unavailable",
        preferred=asked.preferred,
        offers=tuple(worker_registrations(source, target)),
    )


def by_engine(asked: Asked) -> Situation:
    """What an engine brings by a way of its own: nobody is chosen for it."""
    entry = stored_registration(asked.stored).entry
    return Situation(
        action=asked.action,
        tier=entry.location.tier,
        locator=entry.location.locator,
        tokens=asked.tokens,
        target_residency=asked.target_worker,
        target=asked.location,
        descriptor=entry.descriptor,
        capability=capability_for(asked.stored, asked.tokens),
        ends="engine",
    )


def place(
    directory: Directory, asked: Asked, policy: ExecutionPolicy
) -> tuple[Situation, Placement | NoSelection]:
    """The choice for a transfer between two workers, and what it was made from; a name nobody
    registered has no path.
    """
    situation = situation_of(directory, asked)
    chosen = choose(situation, policy)
    found = parse_locator(situation.locator)
    source = directory.get(found[0]) if found else None
    target = directory.get(asked.target_worker)
    if isinstance(chosen, NoSelection) or found is None or source is None or target is None:
        assert isinstance(chosen, NoSelection)
        return situation, chosen
    placement = Placement(source, found[1], target, asked.location, situation.capability, chosen)
    return situation, placement


def concerns_workers(directory: Directory, locator: str, target_residency: str) -> bool:
    """Whether both ends are workers of ours, silent or not: else the engine has its own way."""
    found = parse_locator(locator)
    return (
        found is not None
        and directory.get(found[0]) is not None
        and directory.get(target_residency) is not None
    )


def capability_for(stored: StoredState, matched_tokens: int) -> MaterializationCapability:
    whole = matched_tokens >= stored.token_count
    return MaterializationCapability.FULL if whole else MaterializationCapability.PARTIAL


def sink_on(worker: str, sink_id: str) -> PayloadLocation:
    """A sink of a worker: memory of its host, which the engine may take over."""
    return PayloadLocation(
        handle_kind=f"sink:{SINK_NAMESPACE}",
        tier=TierKind.HOST_DRAM,
        buffer_kind=BufferKind.HOST_PAGEABLE,
        device_class=DeviceClass.CPU,
        locator=f"node://{worker}/sink/{sink_id}" if sink_id else None,
    )


def payload_on(worker: str, payload_id: str) -> PayloadLocation:
    """A payload of a worker, in its own memory; no locator where none is named yet."""
    return PayloadLocation(
        handle_kind="payload",
        tier=TierKind.HOST_DRAM,
        buffer_kind=BufferKind.HOST_PAGEABLE,
        device_class=DeviceClass.CPU,
        locator=node_locator(worker, payload_id) if payload_id else None,
    )
