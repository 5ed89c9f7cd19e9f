"""What a valid policy says that its author may not have meant. Pure; nothing here refuses."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.contract.findings import pointer_to
from app.policy.document import BackendOverlay, ExecutionPolicy, FallbackBehavior, QuotaMode


class WarningCode(StrEnum):
    UNRESTRICTED = "unrestricted"
    BACKEND_WITHOUT_EFFECT = "backend_without_effect"
    NO_BACKEND_LEFT = "no_backend_left"
    OVERLAY_WITHOUT_EFFECT = "overlay_without_effect"
    NO_FALLBACK_PATH = "no_fallback_path"
    BEHAVIOR_OVERRULED = "behavior_overruled"
    QUOTA_WITHOUT_LIMIT = "quota_without_limit"
    QUOTA_WITHOUT_EFFECT = "quota_without_effect"


@dataclass(frozen=True, slots=True)
class PolicyWarning:
    """One remark: JSON pointer, code, and what the policy does there."""

    pointer: str
    code: WarningCode
    detail: str


_LISTS: Final = (
    "allowed_source_tiers",
    "allowed_target_tiers",
    "allowed_device_classes",
    "allowed_buffer_kinds",
)
_OVERLAY_LISTS: Final = (*_LISTS, "allowed_materialization_capabilities")
_QUOTA: Final = "/quota_admission_policy"


def warnings(policy: ExecutionPolicy) -> tuple[PolicyWarning, ...]:
    """Every remark, in the order of the document."""
    return tuple(warning for look in _LOOKS for warning in look(policy))


def _unrestricted(policy: ExecutionPolicy) -> Iterator[PolicyWarning]:
    for field in _LISTS:
        if not getattr(policy, field):
            yield _empty(f"/{field}")
    for name, overlay in policy.backend_overlays.items():
        for field in _OVERLAY_LISTS:
            # An absent list leaves the policy's own.
            if getattr(overlay, field) == ():
                yield _empty(f"{_overlay_at(name)}/{field}")


def _backends(policy: ExecutionPolicy) -> Iterator[PolicyWarning]:
    enabled = policy.enabled_transfer_backends
    off = [
        index
        for index, backend in enumerate(enabled)
        if policy.backend_overlays.get(backend.value, BackendOverlay()).enabled is False
    ]
    for index in off:
        yield PolicyWarning(
            f"/enabled_transfer_backends/{index}",
            WarningCode.BACKEND_WITHOUT_EFFECT,
            f"{enabled[index]} is enabled here and disabled by its overlay: it never acts",
        )
    if len(off) == len(enabled):
        yield PolicyWarning(
            "/enabled_transfer_backends",
            WarningCode.NO_BACKEND_LEFT,
            "every enabled backend is disabled by its overlay: nothing is ever transferred",
        )


def _overlays(policy: ExecutionPolicy) -> Iterator[PolicyWarning]:
    enabled = {backend.value for backend in policy.enabled_transfer_backends}
    for name, overlay in policy.backend_overlays.items():
        at = _overlay_at(name)
        if name not in enabled:
            detail = "is the name of no enabled backend: the overlay has no effect"
            yield PolicyWarning(at, WarningCode.OVERLAY_WITHOUT_EFFECT, detail)
        elif overlay == BackendOverlay():
            yield PolicyWarning(at, WarningCode.OVERLAY_WITHOUT_EFFECT, "changes nothing")
        elif (
            overlay.allow_degraded_selection is True
            and policy.default_fallback_behavior is not FallbackBehavior.DEGRADE
        ):
            yield PolicyWarning(
                f"{at}/allow_degraded_selection",
                WarningCode.OVERLAY_WITHOUT_EFFECT,
                "permits what default_fallback_behavior rules out for every backend",
            )


def _fallback(policy: ExecutionPolicy) -> Iterator[PolicyWarning]:
    flags = policy.recompute_fallback_policy
    chosen = {field: getattr(flags, field) for field in flags.__struct_fields__}
    behavior = policy.default_fallback_behavior
    if behavior is not FallbackBehavior.DEGRADE and not any(chosen.values()):
        yield PolicyWarning(
            "/recompute_fallback_policy",
            WarningCode.NO_FALLBACK_PATH,
            "no lesser backend is taken and nothing is recomputed: whatever fails is skipped",
        )
    elif behavior is not FallbackBehavior.DEGRADE:
        expected = behavior is FallbackBehavior.RECOMPUTE
        for field, recomputes in chosen.items():
            if recomputes is not expected:
                yield PolicyWarning(
                    f"/recompute_fallback_policy/{field}",
                    WarningCode.BEHAVIOR_OVERRULED,
                    f"decides against default_fallback_behavior {behavior}, which only rules out "
                    "a lesser backend",
                )


def _quota(policy: ExecutionPolicy) -> Iterator[PolicyWarning]:
    quota = policy.quota_admission_policy
    limits = (quota.max_payload_bytes, quota.max_entries, quota.max_concurrent_transfers)
    if quota.mode is QuotaMode.ENFORCED and not any(limits[:2]):
        detail = "enforces nothing on what a tenant holds: both limits are 0, which is unlimited"
        yield PolicyWarning(f"{_QUOTA}/mode", WarningCode.QUOTA_WITHOUT_LIMIT, detail)
    if quota.mode is QuotaMode.DISABLED and any(limits):
        detail = "is disabled: the limits have no effect"
        yield PolicyWarning(f"{_QUOTA}/mode", WarningCode.QUOTA_WITHOUT_EFFECT, detail)
    if quota.max_pinned_dram_bytes:
        detail = "is kept and reported, and enforced by nothing: workers limit their own pins"
        at = f"{_QUOTA}/max_pinned_dram_bytes"
        yield PolicyWarning(at, WarningCode.QUOTA_WITHOUT_EFFECT, detail)


def _empty(at: str) -> PolicyWarning:
    return PolicyWarning(at, WarningCode.UNRESTRICTED, "is empty, which means unrestricted")


def _overlay_at(name: str) -> str:
    return pointer_to("/backend_overlays", name)


_LOOKS: Final[tuple[Callable[[ExecutionPolicy], Iterator[PolicyWarning]], ...]] = (
    _backends,
    _unrestricted,
    _fallback,
    _quota,
    _overlays,
)
