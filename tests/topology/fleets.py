"""Topologies as tests write them: valid, and different from each other by one number."""

import json
from typing import Any


def link(source: str = "a", target: str = "b", **changes: Any) -> dict[str, Any]:
    return {
        "source": source,
        "target": target,
        "bandwidth_bytes_per_us": 50_000.0,
        "latency_us": 5.0,
        **changes,
    }


def topology(latency_us: float = 5.0, **changes: Any) -> dict[str, Any]:
    """Two nodes, an engine on each, a link between them and a tier."""
    return {
        "schema_version": "nexuskv.topology.v1",
        "nodes": [{"name": "a"}, {"name": "b"}],
        "engines": [
            {"engine_id": "e1", "node": "a", "hardware": "h200", "model": "m"},
            {"engine_id": "e2", "node": "b"},
        ],
        "links": [link(latency_us=latency_us)],
        "tiers": [{"node": "a", "tier": "host_dram", "capacity_bytes": 2**40}],
        **changes,
    }


def text(latency_us: float = 5.0, **changes: Any) -> str:
    return json.dumps(topology(latency_us, **changes))
