"""`/v1/profiles`: what operators upload and read of the figures that plans are priced by."""

from hashlib import sha256
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from app.api.declared import errors_of, list_errors, one_errors
from app.api.documents import REFUSED, UNREADABLE, document_body, require_document
from app.api.openapi import PROFILE_SCHEMA
from app.api.profile_schemas import (
    DocumentUpload,
    InForceQuery,
    ProfileDetail,
    ProfileFaultView,
    ProfileInForce,
    ProfilePage,
    ProfileQuery,
    ProfileValidation,
    ProfileView,
)
from app.contract.limits import MAX_I63
from app.dependencies import ProfilesReader, ProfilesWriter, ServicesDep
from app.errors import ErrorCode, FieldError, NexusError
from app.paging import decode_cursor, encode_cursor
from app.planner.profile import canonical_bytes
from app.problem import ProblemField, problem_field
from app.profiles.provider import Profiles
from app.profiles.repository import ProfileFilter, ProfileSummary, StoredProfile
from app.profiles.store import no_profile

_CURSOR_KIND: Final = "profiles"

Number = Annotated[int, Path(ge=1, le=MAX_I63, description="The version's number.")]


def profiles_router() -> APIRouter:
    """The routes of cost profiles."""
    router = APIRouter(tags=["profiles"])
    done = errors_of(*REFUSED)
    done[200] = {"model": ProfileDetail, "description": "The content is stored already."}
    body = document_body(PROFILE_SCHEMA)
    router.post(
        "/v1/profiles",
        summary="Store a cost profile",
        status_code=201,
        response_model=ProfileDetail,
        responses=done,
        openapi_extra=body,
    )(push_profile)
    router.get("/v1/profiles", summary="List cost profiles", responses=list_errors())(list_profiles)
    router.post(
        "/v1/profiles:validate",
        summary="Check a cost profile and store nothing",
        responses=errors_of(*UNREADABLE),
        openapi_extra=body,
    )(validate_profile)
    router.get(
        "/v1/profiles/in-force",
        summary="The cost profile of a model on hardware",
        responses=errors_of(ErrorCode.UNKNOWN_FIELD),
    )(get_profile_in_force)
    router.get("/v1/profiles/{number}", summary="One cost profile", responses=one_errors())(
        get_profile
    )
    return router


async def push_profile(
    request: Request,
    response: Response,
    query: Annotated[DocumentUpload, Query()],
    principal: ProfilesWriter,
    services: ServicesDep,
) -> ProfileDetail:
    """Store the document, YAML or JSON, and bring it into force: here at once, on every replica
    within a second, where no other fits better. The same content, however written, is the same
    version: then the answer is 200, nothing changes, and a newer one stays in force.
    """
    require_document(request)
    stored, created = await services.profile_store.push(
        await request.body(), principal.key_id, query.message
    )
    if created:
        await services.profiles.refresh_now()
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/profiles/{stored.number}"
    return _detail(stored, services.profiles.current)


async def list_profiles(
    query: Annotated[ProfileQuery, Query()], _: ProfilesReader, services: ServicesDep
) -> ProfilePage:
    """Stored versions, newest first."""
    filters = {"name": query.name, "model": query.model, "hardware": query.hardware}
    after = decode_cursor(_CURSOR_KIND, filters, query.cursor, int) if query.cursor else None
    found = await services.profile_store.page(ProfileFilter(**filters), after, query.page_size + 1)
    page = found[: query.page_size]
    more = len(found) > len(page)
    current = services.profiles.current
    return ProfilePage(
        items=[ProfileView(**_summary(profile, current)) for profile in page],
        next_cursor=encode_cursor(_CURSOR_KIND, filters, page[-1].number) if more else None,
    )


async def get_profile(number: Number, _: ProfilesReader, services: ServicesDep) -> ProfileDetail:
    """One version: its document, and its text as uploaded."""
    stored = await services.profile_store.get(number)
    if stored is None:
        raise no_profile(number)
    return _detail(stored, services.profiles.current)


async def validate_profile(
    request: Request, _: ProfilesWriter, services: ServicesDep
) -> ProfileValidation:
    """Every finding at once; a document that is not valid is an answer, too."""
    require_document(request)
    try:
        profile = await services.profile_store.check(await request.body())
    except NexusError as error:
        if error.code is ErrorCode.REQUEST_TOO_LARGE:
            raise
        found = error.errors or (FieldError("", error.code, error.message),)
        errors = [ProblemField(**problem_field(finding)) for finding in found]
        return ProfileValidation(valid=False, content_sha256=None, errors=errors)
    digest = sha256(canonical_bytes(profile)).hexdigest()
    return ProfileValidation(valid=True, content_sha256=digest, errors=[])


async def get_profile_in_force(
    query: Annotated[InForceQuery, Query()], _: ProfilesReader, services: ServicesDep
) -> ProfileInForce:
    """What this process prices a model on hardware by, and why; another replica follows a change
    within a second."""
    current = services.profiles.current
    profile, number = current.best(query.model, query.hardware)
    fault = services.profiles.status().fault
    return ProfileInForce(
        number=number,
        fit=current.fit(query.model, query.hardware),
        name=profile.name,
        version=profile.version,
        document=msgspec.json.decode(canonical_bytes(profile)),
        fault=None if fault is None else ProfileFaultView.model_validate(fault),
    )


def _detail(stored: StoredProfile, current: Profiles) -> ProfileDetail:
    return ProfileDetail(
        **_summary(stored, current),
        document=msgspec.json.decode(stored.document),
        source=stored.source,
    )


def _summary(profile: ProfileSummary, current: Profiles) -> dict[str, Any]:
    known = current.found.get((profile.model, profile.hardware))
    return {
        "number": profile.number,
        "name": profile.name,
        "model": profile.model,
        "hardware": profile.hardware,
        "content_sha256": profile.content_sha256.hex(),
        "message": profile.message,
        "key_id": profile.key_id,
        "created_at": profile.created_at,
        "in_force": known is not None and known.number == profile.number,
    }
