"""A registration body, entry by entry: what is good is registered, what is not says why."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import orjson
import structlog

from app.contract.findings import pointer_to
from app.contract.registration import Registration, parse_registration
from app.control.keys import Principal
from app.errors import ErrorCode, FieldError, NexusError
from app.index.registry import ENTRIES_AT_A_TIME, Registered, RegisterStatus, StateRegistry
from app.lifecycle.observe import Policies
from app.metrics import Metrics
from app.policy.document import (
    advisory_mismatches,
    resolve_namespace,
    resolve_tenant,
)
from app.settings import MAX_BATCH_ENTRIES

_STATUS: Final = {
    RegisterStatus.CREATED: 201,
    RegisterStatus.SUPERSEDED: 200,
    RegisterStatus.UNCHANGED: 200,
    RegisterStatus.CONFLICT: 409,
}
log = structlog.get_logger(__name__)
_MAX_NAMED: Final = 20
_KEY_PATHS: Final = (("reuse_key", "identity"), ("entry", "identity", "key"))


@dataclass(frozen=True, slots=True)
class ItemResult:
    """One entry's result; exactly one of `registered` and `error` is set, both on a conflict."""

    registration: Registration | None
    registered: Registered | None
    error: NexusError | None

    @property
    def status(self) -> int:
        if self.registered is not None:
            return _STATUS[self.registered.status]
        assert self.error is not None
        return self.error.status


class StateIntake:
    """Decodes, completes, authorises and registers a batch."""

    def __init__(self, registry: StateRegistry, policies: Policies, metrics: Metrics) -> None:
        self._registry = registry
        self._policies = policies
        self._metrics = metrics

    async def register(self, body: bytes, principal: Principal) -> list[ItemResult]:
        """One result for each entry. Raises NexusError when the body as a whole is wrong."""
        items: list[Registration | NexusError] = []
        for item in decode_batch(body):
            items.append(self._parse(item, principal))
            if len(items) % ENTRIES_AT_A_TIME == 0:
                await asyncio.sleep(0)
        self._note_advisory(items)
        good = [item for item in items if isinstance(item, Registration)]
        stored = iter(await self._registry.register(good) if good else ())
        results = [
            ItemResult(None, None, item)
            if isinstance(item, NexusError)
            else _item_result(item, next(stored))
            for item in items
        ]
        for result in results:
            self._metrics.count_registration(
                result.registered.status.value if result.registered else "rejected"
            )
        return results

    def _note_advisory(self, items: Sequence[Registration | NexusError]) -> None:
        """Advisory tenancy denies nothing; a batch that strays from it leaves a line in the log."""
        keys = [item.entry.identity.key for item in items if isinstance(item, Registration)]
        straying = sum(
            bool(advisory_mismatches(self._policies.current.policy, key.tenant, key.namespace))
            for key in keys
        )
        if straying:
            log.info("tenancy_advisory", entries=straying, of_entries=len(keys))

    def _parse(self, item: object, principal: Principal) -> Registration | NexusError:
        if not isinstance(item, dict):
            return NexusError(ErrorCode.INVALID_FIELD, "an entry must be a JSON object")
        try:
            registration = parse_registration(self._with_defaults(item))
        except NexusError as error:
            return error
        if not principal.may_use(registration.entry.identity.key.tenant):
            return NexusError(
                ErrorCode.TENANT_FORBIDDEN, "this key may not register for that tenant"
            )
        return registration

    def _with_defaults(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        for path in _KEY_PATHS:
            key: Any = item
            for part in path:
                key = key.get(part) if isinstance(key, dict) else None
            if isinstance(key, dict):
                if "tenant" not in key and (
                    tenant := resolve_tenant(self._policies.current.policy, None)
                ):
                    key["tenant"] = tenant
                if "namespace" not in key and (
                    space := resolve_namespace(self._policies.current.policy, None)
                ):
                    key["namespace"] = space
        return item


def decode_batch(body: bytes) -> list[object]:
    """The entries of a body. Raises NexusError unless it is `{"entries": [...]}` of 1 to 1,000."""
    try:
        batch = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NexusError(ErrorCode.INVALID_JSON, f"the body is not valid JSON: {error}") from None
    if not isinstance(batch, dict):
        raise NexusError(ErrorCode.INVALID_BODY, 'the body must be an object {"entries": [...]}')
    if unknown := list(islice((name for name in batch if name != "entries"), _MAX_NAMED)):
        raise NexusError(
            ErrorCode.UNKNOWN_FIELD,
            "the body holds fields besides entries",
            errors=[
                FieldError(pointer_to("", name), ErrorCode.UNKNOWN_FIELD, "is not known")
                for name in unknown
            ],
        )
    if "entries" not in batch:
        raise NexusError(ErrorCode.MISSING_FIELD, "entries is missing")
    entries = batch["entries"]
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_BATCH_ENTRIES:
        raise NexusError(
            ErrorCode.INVALID_FIELD,
            f"entries must be a list of 1 to {MAX_BATCH_ENTRIES} registrations",
            errors=[
                FieldError("/entries", ErrorCode.INVALID_FIELD, "has the wrong length or type")
            ],
        )
    return entries


def _item_result(registration: Registration, registered: Registered) -> ItemResult:
    if registered.status is not RegisterStatus.CONFLICT:
        return ItemResult(registration, registered, None)
    stored = f"generation {registered.generation}"
    message = (
        f"the state was deleted at {stored}; register a higher generation"
        if registered.deleted
        else f"the state is stored at {stored} with other content; register a higher generation"
    )
    return ItemResult(registration, registered, NexusError(ErrorCode.GENERATION_CONFLICT, message))
