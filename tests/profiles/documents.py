"""Cost profiles as tests write them: valid, and different from each other by one number."""

import json
from typing import Any


def document(per_token_us: float = 5.0, **changes: Any) -> dict[str, Any]:
    prefill = {
        "schedule_us": 100.0,
        "per_token_us": per_token_us,
        "per_pair_us": 0.001,
        "uncertainty": 0.1,
    }
    return {
        "schema_version": "nexuskv.cost_profile.v1",
        "name": "measured",
        "source": "a test",
        "prefill": prefill,
        "paths": [
            {
                "tier": "host_dram",
                "latency_us": 20.0,
                "bytes_per_us": 40_000.0,
                "uncertainty": 0.1,
            }
        ],
        "restore_us": 50.0,
        "default_bytes_per_token": 131_072.0,
        **changes,
    }


def text(per_token_us: float = 5.0, **changes: Any) -> str:
    return json.dumps(document(per_token_us, **changes))
