"""Plan, for state that lies on a worker: which of its backends may bring it to which other one."""

from typing import Protocol

from msgspec import Struct

from app.contract.entry import CacheEntry
from app.contract.enums import (
    BufferKind,
    DeviceClass,
    Disposition,
    FallbackReason,
    MaterializationCapability,
    TierKind,
    TransferBackend,
)
from app.contract.locators import node_locator, parse_locator
from app.contract.payload import PayloadLocation
from app.execution.catalog import (
    NoSelection,
    Order,
    Selection,
    disposition_after,
    select,
)
from app.execution.worker_catalog import worker_registrations
from app.index.repository import StoredState
from app.policy.document import ExecutionPolicy
from app.policy.evaluate import FallbackCause
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
    """What is to be placed. `capability` is PARTIAL where only a part of the state is used."""

    action: Disposition
    entry: CacheEntry
    registered_us: int
    target_worker: str
    location: PayloadLocation
    capability: MaterializationCapability
    preferred: TransferBackend | None = None


def place(directory: Directory, asked: Asked, policy: ExecutionPolicy) -> Placement | NoSelection:
    """The choice for a transfer between two workers; a name nobody registered has no path."""
    found = parse_locator(asked.entry.location.locator)
    source = directory.get(found[0]) if found else None
    target = directory.get(asked.target_worker)
    if found is None or source is None or target is None:
        return _no_path(asked, policy)
    tenant = asked.entry.identity.key.tenant
    if directory.status(found[0], asked.registered_us, tenant, found[1]) != "available":
        return NoSelection(
            FallbackReason.CACHE_MISS,
            disposition_after(FallbackCause.CACHE_MISS, asked.entry.descriptor, policy),
            (),
        )
    order = Order(
        action=asked.action,
        source_tier=asked.entry.location.tier,
        target=asked.location,
        descriptor=asked.entry.descriptor,
        capability=asked.capability,
        preferred=asked.preferred,
    )
    chosen = select(worker_registrations(source, target), order, policy)
    if isinstance(chosen, NoSelection):
        return chosen
    return Placement(source, found[1], target, asked.location, asked.capability, chosen)


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


def _no_path(asked: Asked, policy: ExecutionPolicy) -> NoSelection:
    return NoSelection(
        FallbackReason.NO_TRANSFER_PATH,
        disposition_after(FallbackCause.CAPABILITY_MISS, asked.entry.descriptor, policy),
        (),
    )
