"""Policies as tests write them: valid, and different from each other by one number."""

import json
from typing import Any


def document(max_entries: int = 0, **changes: Any) -> dict[str, Any]:
    """A policy that restricts nothing; `max_entries` makes it another one."""
    quota = {"mode": "advisory", "max_payload_bytes": 0, "max_entries": max_entries}
    return {
        "schema_version": "nexuskv.execution_policy.v1",
        "enabled_transfer_backends": ["baseline_transport", "staged_copy"],
        "backend_priority_order": ["baseline_transport", "staged_copy"],
        "allowed_source_tiers": [],
        "allowed_target_tiers": [],
        "allowed_device_classes": [],
        "allowed_buffer_kinds": [],
        "default_fallback_behavior": "degrade",
        "recompute_fallback_policy": {
            "on_cache_miss": True,
            "on_backend_rejection": True,
            "on_capability_miss": True,
            "on_policy_denial": True,
        },
        "tenant_namespace_policy": {
            "mode": "disabled",
            "default_tenant": "",
            "default_namespace": "",
        },
        "quota_admission_policy": quota,
        **changes,
    }


def text(max_entries: int = 0, **changes: Any) -> str:
    return json.dumps(document(max_entries, **changes))


def quotas(mode: str, payload_bytes: int = 0, entries: int = 0, transfers: int = 0) -> str:
    limits = {
        "mode": mode,
        "max_payload_bytes": payload_bytes,
        "max_entries": entries,
        "max_concurrent_transfers": transfers,
    }
    return text(quota_admission_policy=limits)
