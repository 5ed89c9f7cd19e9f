"""What a worker's answer proves: a movement, or a fallback with a reason; and its receipt."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.enums import (
    ActionStatus,
    Disposition,
    FallbackReason,
    Granularity,
    PayloadOwnership,
    TransferBackend,
    TransferStatus,
)
from app.contract.execution import BackendActionResult, TransferRequest, TransferResult
from app.contract.payload import PayloadDescriptor, PayloadHandle, StateSliceDescriptor
from app.contract.registration import parse_registration
from app.execution.backend import ProtocolBackend, settled
from app.execution.claims import ClaimRequest
from app.execution.orders import TransferOrder
from app.execution.receipt import receipt_of
from app.execution.worker_backend import FALLBACK_REASONS, WorkerBackend
from app.lifecycle.placing import payload_on, sink_on
from app.transfer.faults import WorkerCallError, WorkerFault
from app.transfer.wire import NewTransfer, TransferFacts, TransferFailure
from tests.fixtures.wire import registration

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = UUID(int=1)
BYTES = 4096
CHECKSUM = "0123456789abcdef" * 2
BACKEND = TransferBackend.STAGED_COPY
MOVES = [Disposition.MATERIALIZE, Disposition.PREFETCH, Disposition.STORE]
_DESCRIPTOR = parse_registration(registration("t")).entry.descriptor
SOURCE = PayloadHandle(
    "state.1",
    payload_on("node-a", "p"),
    PayloadDescriptor(
        _DESCRIPTOR.descriptor_id,
        _DESCRIPTOR.engine_family,
        _DESCRIPTOR.semantic_type,
        StateSliceDescriptor(Granularity.TOKEN, 40, 0),
    ),
    PayloadOwnership.BORROWED,
)
CLAIM = ClaimRequest(ID, "t", "import-1", "sinks", "sink-1", 1, ID, NOW, NOW)


def order(kind: Disposition = Disposition.MATERIALIZE) -> TransferOrder:
    into_sink = kind is Disposition.MATERIALIZE
    target = sink_on("node-b", "sink-1") if into_sink else payload_on("node-b", "p")
    return TransferOrder(
        session_id="session-1",
        decision_id=ID,
        tenant="t",
        request=TransferRequest(kind, target, SOURCE, BACKEND),
        source=SOURCE,
        target=target,
        source_worker="node-a",
        payload_id="p",
        target_worker="node-b",
        sink_id="sink-1" if into_sink else None,
        target_payload_id=None if into_sink else "p",
        payload_bytes=BYTES,
        deadline_s=1.0,
    )


def facts(kind: Disposition = Disposition.MATERIALIZE, **changes) -> TransferFacts:
    """Those of the completed transfer of `order(kind)`."""
    asked = order(kind)
    fields = {
        "session_id": asked.session_id,
        "status": TransferStatus.COMPLETED,
        "backend": BACKEND,
        "source_worker": asked.source_worker,
        "payload_id": asked.payload_id,
        "target_sink_id": asked.sink_id,
        "target_payload_id": asked.target_payload_id,
        "bytes_transferred": BYTES,
        "checksum": CHECKSUM,
        "transfer_us": 120,
    }
    return TransferFacts(**(fields | changes))


class Answers:
    """Workers that say one thing."""

    def __init__(self, answer: TransferFacts | WorkerCallError) -> None:
        self._answer = answer

    async def transfer(
        self, worker: str, order: NewTransfer, *, tenant: str, deadline_s: float
    ) -> TransferFacts:
        if isinstance(self._answer, WorkerCallError):
            raise self._answer
        return self._answer

    async def cancel(self, worker: str, order: NewTransfer, *, tenant: str) -> None:
        """Nothing."""


def result(
    answer: TransferFacts | WorkerCallError, kind: Disposition = Disposition.MATERIALIZE
) -> BackendActionResult:
    backend = WorkerBackend(BACKEND, Answers(answer))
    act = {
        Disposition.MATERIALIZE: backend.materialize,
        Disposition.PREFETCH: backend.prefetch,
        Disposition.STORE: backend.store,
    }[kind]
    return asyncio.run(act(order(kind))).result


def transfer_result(found: BackendActionResult) -> TransferResult:
    assert found.transfer_session is not None
    return found.transfer_session.result


def test_every_failure_of_a_worker_has_a_reason() -> None:
    assert set(FALLBACK_REASONS) == set(TransferFailure)
    assert set(FALLBACK_REASONS.values()) <= set(FallbackReason)


@pytest.mark.parametrize("failure", TransferFailure)
def test_a_failure_is_a_fallback(failure: TransferFailure) -> None:
    cancelled = failure is TransferFailure.CANCELLED
    status = TransferStatus.CANCELLED if cancelled else TransferStatus.FAILED
    found = result(facts(status=status, failure=failure, bytes_transferred=0, checksum=None))
    assert found.status is ActionStatus.RECOMPUTED
    assert found.fallback_reason is FALLBACK_REASONS[failure]
    assert (found.detail or "").startswith(failure)
    missing = failure is TransferFailure.PAYLOAD_MISSING
    assert transfer_result(found).status is (TransferStatus.MISSING if missing else status)


def test_a_worker_that_is_still_at_it_is_out_of_time() -> None:
    found = result(facts(status=TransferStatus.IN_FLIGHT, bytes_transferred=0, checksum=None))
    assert found.fallback_reason is FallbackReason.PREFERRED_BACKEND_UNAVAILABLE
    assert (found.detail or "").startswith("deadline: ")
    assert transfer_result(found).status is TransferStatus.FAILED


@pytest.mark.parametrize("fault", WorkerFault)
def test_a_worker_that_cannot_be_asked_is_unavailable(fault: WorkerFault) -> None:
    found = result(WorkerCallError(fault, "why"))
    assert found.fallback_reason is FallbackReason.PREFERRED_BACKEND_UNAVAILABLE
    assert transfer_result(found).status is TransferStatus.FAILED


@pytest.mark.parametrize("kind", MOVES)
def test_a_proven_movement(kind: Disposition) -> None:
    found = result(facts(kind), kind)
    assert (found.requested_kind, found.executed_kind, found.final_disposition) == (kind,) * 3
    assert (found.status, found.selected_backend) == (ActionStatus.SUCCEEDED, BACKEND)
    assert found.payload_handle is not None
    assert found.payload_handle.opaque_ref == f"xxh3-128:{CHECKSUM}"
    into_sink = kind is Disposition.MATERIALIZE
    ownership = PayloadOwnership.OWNED if into_sink else PayloadOwnership.CACHED
    assert found.payload_handle.ownership is ownership


answers = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(TransferStatus),
        "session_id": st.sampled_from(["session-1", "session-2"]),
        "target_sink_id": st.sampled_from(["sink-1", "sink-2", None]),
        "target_payload_id": st.sampled_from(["p", "q", None]),
        "bytes_transferred": st.sampled_from([0, BYTES - 1, BYTES, BYTES + 1]),
        "checksum": st.sampled_from([CHECKSUM, None]),
        "failure": st.sampled_from([*TransferFailure, None]),
    },
)


@given(st.sampled_from(MOVES), answers)
def test_only_the_whole_truth_is_a_movement(kind: Disposition, changes: dict) -> None:
    told, true = facts(kind, **changes), facts(kind)
    names = ("status", "session_id", "target_sink_id", "target_payload_id", "bytes_transferred",
             "checksum")  # fmt: skip
    proven = all(getattr(told, name) == getattr(true, name) for name in names)
    found = result(told, kind)
    assert (found.status is ActionStatus.SUCCEEDED) == proven
    assert (transfer_result(found).status is TransferStatus.COMPLETED) == proven
    assert (found.fallback_reason is None) == proven
    if proven:
        receipt = receipt_of(CLAIM, order(kind), found)
        assert (receipt.physical, receipt.bytes_transferred) == (True, BYTES)
        assert receipt.receipt_namespace == "nexuskv.physical-transfer-receipt.v1"
        assert receipt.receipt_value.endswith(CHECKSUM)
    else:
        with pytest.raises(AssertionError):
            receipt_of(CLAIM, order(kind), found)


def test_a_protocol_receipt_is_of_nothing() -> None:
    found = asyncio.run(ProtocolBackend().materialize(order())).result
    receipt = receipt_of(CLAIM, order(), found)
    assert (receipt.physical, receipt.bytes_transferred) == (False, 0)
    assert receipt.receipt_namespace == "nexuskv.protocol-transfer-receipt.v1"
    assert CHECKSUM not in receipt.receipt_value


def test_a_completed_transfer_without_its_handle_is_no_evidence() -> None:
    found = result(facts())
    session = found.transfer_session
    assert session is not None
    bare = msgspec.structs.replace(session, result=TransferResult(TransferStatus.COMPLETED))
    with pytest.raises(AssertionError):
        receipt_of(CLAIM, order(), msgspec.structs.replace(found, transfer_session=bare))


@pytest.mark.parametrize(
    ("disposition", "status"),
    [(Disposition.SKIP, ActionStatus.SKIPPED), (Disposition.RECOMPUTE, ActionStatus.RECOMPUTED)],
)
def test_a_fallback_ends_as_the_policy_says(disposition: Disposition, status: ActionStatus) -> None:
    unreachable = result(WorkerCallError(WorkerFault.UNREACHABLE, "why"))
    found = settled(unreachable, disposition)
    assert (found.executed_kind, found.final_disposition) == (disposition, disposition)
    assert (found.status, found.fallback_reason) == (status, unreachable.fallback_reason)


@pytest.mark.parametrize("kind", [Disposition.PREFETCH, Disposition.STORE])
def test_the_protocol_alone_moves_nothing_ahead(kind: Disposition) -> None:
    backend = ProtocolBackend()
    act = backend.store if kind is Disposition.STORE else backend.prefetch
    found = asyncio.run(act(order(kind))).result
    assert (found.requested_kind, found.final_disposition) == (kind, Disposition.SKIP)
    assert found.fallback_reason is FallbackReason.UNSUPPORTED_CAPABILITY
