"""What the workers offer, as registrations for one source and one target."""

from typing import Final

from app.contract.enums import (
    BufferKind,
    DeviceClass,
    Disposition,
    MaterializationCapability,
    TierKind,
)
from app.execution.catalog import BackendRegistration
from app.topology.directory import Worker

_MOVES: Final = frozenset({Disposition.MATERIALIZE, Disposition.PREFETCH, Disposition.STORE})
_CAPABILITIES: Final = frozenset(
    {
        MaterializationCapability.FULL,
        MaterializationCapability.PARTIAL,
        MaterializationCapability.PREFETCH,
        MaterializationCapability.ASYNC_FETCH,
    }
)
# Sinks and payloads of a worker lie in its own memory.
_TARGET_TIERS: Final = frozenset({TierKind.HOST_DRAM})
_DEVICES: Final = frozenset({DeviceClass.CPU})
_BUFFERS: Final = frozenset({BufferKind.HOST_PAGEABLE})


def worker_registrations(source: Worker, target: Worker) -> list[BackendRegistration]:
    """The target's backends in the order it offers them; both ends must speak one to use it."""
    available = source.available and target.available
    return [
        BackendRegistration(
            name=f"{target.name}/{backend}",
            backend=backend,
            actions=_MOVES,
            source_tiers=frozenset(source.tiers),
            target_tiers=_TARGET_TIERS,
            device_classes=_DEVICES,
            buffer_kinds=_BUFFERS,
            capabilities=_CAPABILITIES,
            available=available and backend in source.backends,
        )
        for backend in target.backends
    ]
