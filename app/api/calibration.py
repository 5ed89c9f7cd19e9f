"""`GET /v1/calibration`: what outcomes have taught of costs."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api.declared import errors_of
from app.calibration.parts import Learnt, PartKey
from app.dependencies import ProfilesReader, ServicesDep
from app.errors import ErrorCode
from app.planner.calibrate import is_measured

MAX_LISTED: Final = 1_000


class CalibrationQuery(BaseModel):
    """Which parts are listed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(None, max_length=512, description='Only of this model; "": links.')
    hardware: str | None = Field(None, max_length=128, description="Only of this hardware.")


class LearntPart(BaseModel):
    """One coefficient's factor, and how far it can be trusted."""

    model: str = Field(description='"" for a link.')
    hardware: str
    part: str = Field(
        description="`prefill`, `path:TIER:local|remote`, or `link:NODE/NODE`.",
        examples=["path:host_dram:remote"],
    )
    basis: str = Field(
        description="The version of the profile, or the link, that it is a factor of."
    )
    factor: float = Field(description="What predictions are multiplied by.")
    error: float = Field(
        description="Mean size of the logarithm of observed over predicted, factor included."
    )
    observations: int
    drifts: int = Field(description="Lasting changes that were found.")
    measured: bool = Field(description="Whether there are enough for it to count as measured.")


class CalibrationView(BaseModel):
    """Everything that is learnt, as this process follows it."""

    version: int = Field(description="Goes up whenever anything is learnt.")
    as_of: datetime
    parts: list[LearntPart] = Field(description="At most 1,000.")
    left_off: int


def calibration_router() -> APIRouter:
    """One route, of keys with the scope `profiles:read`."""
    router = APIRouter(tags=["profiles"])
    router.get(
        "/v1/calibration",
        summary="What outcomes have taught of costs",
        responses=errors_of(ErrorCode.UNKNOWN_FIELD),
    )(get_calibration)
    return router


async def get_calibration(
    query: Annotated[CalibrationQuery, Query()], _: ProfilesReader, services: ServicesDep
) -> CalibrationView:
    """Factors by which profiles and links are corrected. They are learnt from transfers that
    workers timed, and from reports on plans whose `detail` has `prefill_us` or `transfer_us`.
    """
    current = services.calibration.current
    chosen = [
        _shown(key, learnt)
        for key, learnt in sorted(current.known.items())
        if query.model in {None, key.model} and query.hardware in {None, key.hardware}
    ]
    return CalibrationView(
        version=current.version,
        as_of=services.clock.now(),
        parts=chosen[:MAX_LISTED],
        left_off=max(0, len(chosen) - MAX_LISTED),
    )


def _shown(key: PartKey, learnt: Learnt) -> LearntPart:
    estimator = learnt.estimator
    return LearntPart(
        model=key.model,
        hardware=key.hardware,
        part=key.part,
        basis=learnt.basis,
        factor=estimator.factor,
        error=estimator.spread,
        observations=estimator.observations,
        drifts=learnt.drifts,
        measured=is_measured(estimator),
    )
