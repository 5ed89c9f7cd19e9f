"""`/v1/policies`: what operators validate, upload, activate and read; and tenants' quotas."""

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from app.api.declared import errors_of, list_errors, one_errors
from app.api.documents import (
    REFUSED,
    UNREADABLE,
    EntityTags,
    document_body,
    entity_tag,
    expected_numbers,
    names_tag,
    require_document,
)
from app.api.openapi import POLICY_SCHEMAS
from app.api.policy_schemas import (
    ActivationFaultView,
    ActivationResult,
    ActivationView,
    ActivePolicyView,
    PolicyDetail,
    PolicyPage,
    PolicyQuery,
    PolicyUpload,
    PolicyView,
    QuotaLimits,
    QuotaView,
    Validation,
    WarningView,
)
from app.contract.limits import MAX_I63
from app.control.auth import require_tenant
from app.dependencies import (
    PoliciesActivator,
    PoliciesReader,
    PoliciesWriter,
    ReadDb,
    ServicesDep,
)
from app.errors import ErrorCode, FieldError, NexusError
from app.paging import decode_cursor, encode_cursor
from app.policy.advice import warnings
from app.policy.document import (
    ExecutionPolicy,
    canonical_bytes,
)
from app.policy.provider import PolicyProvider
from app.policy.repository import Activation, PolicySummary, StoredPolicy
from app.policy.store import NO_ACTIVATION, PolicyStore, no_policy
from app.problem import ProblemField, problem_field
from app.quota.charges import usage

_CURSOR_KIND: Final = "policies"

Number = Annotated[int, Path(ge=1, le=MAX_I63, description="The version's number.")]
TenantName = Annotated[
    str, Path(min_length=1, max_length=128, pattern=r"^[^\x00]*$", description="The tenant.")
]


def policies_router() -> APIRouter:
    """The routes of policies, and the one of quotas."""
    router = APIRouter(tags=["policies"])
    done = errors_of(*REFUSED)
    done[200] = {"model": PolicyDetail, "description": "The content is stored already."}
    active = errors_of()
    active[304] = {"description": "It is the one that If-None-Match names."}
    router.post(
        "/v1/policies",
        summary="Store a policy",
        status_code=201,
        response_model=PolicyDetail,
        responses=done,
        openapi_extra=document_body(*POLICY_SCHEMAS),
    )(push_policy)
    router.get("/v1/policies", summary="List policies", responses=list_errors())(list_policies)
    router.post(
        "/v1/policies:validate",
        summary="Check a policy and store nothing",
        responses=errors_of(*UNREADABLE),
        openapi_extra=document_body(*POLICY_SCHEMAS),
    )(validate_policy)
    router.get(
        "/v1/policies/active",
        summary="The policy in force",
        response_model=ActivePolicyView,
        responses=active,
    )(get_active_policy)
    router.get("/v1/policies/{number}", summary="One policy", responses=one_errors())(get_policy)
    router.post(
        "/v1/policies/{number}:activate",
        summary="Activate a policy",
        responses=errors_of(ErrorCode.UNKNOWN_FIELD, ErrorCode.NOT_FOUND, ErrorCode.POLICY_CHANGED),
    )(activate_policy)
    router.get(
        "/v1/quotas/{tenant}",
        summary="A tenant's quota",
        responses=errors_of(ErrorCode.TENANT_FORBIDDEN, ErrorCode.NOT_FOUND),
    )(get_quota)
    return router


async def push_policy(
    request: Request,
    response: Response,
    query: Annotated[PolicyUpload, Query()],
    principal: PoliciesWriter,
    services: ServicesDep,
) -> PolicyDetail:
    """Store the document, YAML or JSON. The same content, however written, is the same version:
    then the answer is 200 and nothing changes. Storing a policy does not activate it.
    """
    require_document(request)
    stored, created = await services.policies.push(
        await request.body(), principal.key_id, query.message
    )
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/policies/{stored.number}"
    return await _detail(services.policies, stored.number)


async def list_policies(
    query: Annotated[PolicyQuery, Query()], _: PoliciesReader, services: ServicesDep
) -> PolicyPage:
    """Stored versions, newest first."""
    after = decode_cursor(_CURSOR_KIND, {}, query.cursor, int) if query.cursor else None
    found, active = await services.policies.page(after, query.page_size + 1)
    page = found[: query.page_size]
    more = len(found) > len(page)
    return PolicyPage(
        items=[PolicyView(**_summary(policy, active)) for policy in page],
        next_cursor=encode_cursor(_CURSOR_KIND, {}, page[-1].number) if more else None,
    )


async def get_policy(number: Number, _: PoliciesReader, services: ServicesDep) -> PolicyDetail:
    """One version: its document, its text as uploaded, and when it was active."""
    return await _detail(services.policies, number)


async def validate_policy(request: Request, _: PoliciesWriter, services: ServicesDep) -> Validation:
    """Every finding and every warning at once; a document that is not valid is an answer, too."""
    require_document(request)
    try:
        policy = await services.policies.check(await request.body())
    except NexusError as error:
        if error.code is ErrorCode.REQUEST_TOO_LARGE:
            raise
        found = error.errors or (FieldError("", error.code, error.message),)
        errors = [ProblemField(**problem_field(finding)) for finding in found]
        return Validation(valid=False, content_sha256=None, errors=errors, warnings=[])
    return Validation(
        valid=True, content_sha256=policy.content_sha256, errors=[], warnings=_warnings(policy)
    )


async def get_active_policy(
    _: PoliciesReader, services: ServicesDep, if_none_match: EntityTags = None
) -> Response:
    """What this process decides by; another replica follows within a second."""
    provider = services.policy_provider
    tag = etag(provider)
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if if_none_match is not None and names_tag(if_none_match, tag):
        return Response(status_code=304, headers=headers)
    body = _active(provider).model_dump_json()
    return Response(body, media_type="application/json", headers=headers)


async def activate_policy(
    number: Number,
    query: Annotated[PolicyUpload, Query()],
    principal: PoliciesActivator,
    services: ServicesDep,
    if_match: EntityTags = None,
) -> ActivationResult:
    """Make the version the one in force: here at once, on every replica within a second.

    Decisions under way end under the version they began with. Activating what is active changes
    nothing. With `If-Match` it is 412 when the latest activation is another than the one read.
    """
    result = await services.policies.activate(
        number, principal.key_id, query.message, expected=expected_numbers(if_match)
    )
    await services.policy_provider.refresh_now()
    return ActivationResult(
        activation=ActivationView.model_validate(result.activation), changed=result.changed
    )


async def get_quota(
    tenant: TenantName, principal: PoliciesReader, services: ServicesDep, session: ReadDb
) -> QuotaView:
    """What the transfers that NexusKV made for the tenant hold now; zeroes when they hold nothing.
    The limits are those of the policy in force."""
    require_tenant(principal, tenant)
    active = services.policy_provider.current
    quota = active.policy.quota_admission_policy
    held = await usage(session, tenant, services.clock.now())
    return QuotaView(
        tenant=tenant,
        policy=active.label,
        mode=quota.mode,
        payload_bytes=held.payload_bytes,
        entries=held.entries,
        transfers=held.transfers,
        limits=QuotaLimits(
            max_payload_bytes=quota.max_payload_bytes,
            max_entries=quota.max_entries,
            max_concurrent_transfers=quota.max_concurrent_transfers,
        ),
    )


def etag(provider: PolicyProvider) -> str:
    """The latest activation known here (0 for none), and the content in force."""
    latest = _latest(provider)
    number = NO_ACTIVATION if latest is None else latest.activation_id
    return entity_tag(number, provider.current.policy.content_sha256)


def _latest(provider: PolicyProvider) -> Activation | None:
    fault = provider.status().fault
    return provider.current.activation if fault is None else fault.activation


async def _detail(store: PolicyStore, number: int) -> PolicyDetail:
    """Raises NOT_FOUND."""
    found = await store.with_activations(number)
    if found is None:
        raise no_policy(number)
    stored, activations, active = found
    return PolicyDetail(
        **_summary(stored, active),
        document=msgspec.json.decode(stored.document),
        source=stored.source,
        warnings=_stored_warnings(stored),
        activations=[ActivationView.model_validate(one) for one in activations],
    )


def _summary(policy: PolicySummary, active: Activation | None) -> dict[str, Any]:
    return {
        "number": policy.number,
        "content_sha256": policy.content_sha256.hex(),
        "message": policy.message,
        "key_id": policy.key_id,
        "created_at": policy.created_at,
        "active": active is not None and active.number == policy.number,
    }


def _active(provider: PolicyProvider) -> ActivePolicyView:
    current, fault = provider.current, provider.status().fault
    return ActivePolicyView(
        label=current.label,
        origin="file" if current.activation is None else "activation",
        content_sha256=current.policy.content_sha256,
        document=msgspec.json.decode(canonical_bytes(current.policy)),
        activation=None
        if current.activation is None
        else ActivationView.model_validate(current.activation),
        fault=None
        if fault is None
        else ActivationFaultView(
            activation=ActivationView.model_validate(fault.activation),
            reason=fault.reason,
            since=fault.since,
        ),
    )


def _warnings(policy: ExecutionPolicy) -> list[WarningView]:
    return [WarningView.model_validate(warning) for warning in warnings(policy)]


def _stored_warnings(stored: StoredPolicy) -> list[WarningView]:
    try:
        policy = msgspec.json.decode(stored.document, type=ExecutionPolicy)
    except msgspec.MsgspecError:
        return []  # Stored by a newer build: shown all the same, and judged by that one.
    return _warnings(policy)
