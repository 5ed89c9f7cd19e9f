"""Topology documents: what they refuse, with every finding, and what is the same content."""

import json
import random
from pathlib import Path

import pytest
import yaml

from app.errors import ErrorCode, NexusError
from app.topology.document import MAX_TOPOLOGY_BYTES, canonical_bytes, load_topology
from tests.topology.fleets import link, text, topology

ROOT = Path(__file__).resolve().parents[2]


def findings(content: str | bytes) -> dict[str, str]:
    with pytest.raises(NexusError) as caught:
        load_topology(content)
    return {finding.pointer: finding.detail for finding in caught.value.errors}


def test_equal_content_is_equal_however_it_is_written() -> None:
    first = load_topology(text())
    document = topology()
    document["nodes"].reverse()
    document["engines"].reverse()
    again = load_topology("# the same\n" + yaml.safe_dump(document))
    assert again.content_sha256 == first.content_sha256
    assert load_topology(canonical_bytes(first)) == first
    assert load_topology(text(6)).content_sha256 != first.content_sha256
    assert load_topology(text(links=[link(both_ways=True, max_in_flight=0)])) == first


def test_the_least_is_one_list_of_nodes() -> None:
    found = load_topology('{"schema_version": "nexuskv.topology.v1", "nodes": []}')
    assert (found.nodes, found.engines, found.links, found.tiers) == ((), (), (), ())


@pytest.mark.parametrize(
    ("changes", "pointer", "detail"),
    [
        ({"bandwidth_bytes_per_us": 0}, "/links/0/bandwidth_bytes_per_us", "above 0"),
        ({"bandwidth_bytes_per_us": -5}, "/links/0/bandwidth_bytes_per_us", "above 0"),
        ({"bandwidth_bytes_per_us": float("inf")}, "/links/0/bandwidth_bytes_per_us", "at most"),
        ({"bandwidth_bytes_per_us": float("nan")}, "/links/0/bandwidth_bytes_per_us", ""),
        ({"bandwidth_bytes_per_us": "fast"}, "/links/0/bandwidth_bytes_per_us", "a number"),
        ({"latency_us": -1}, "/links/0/latency_us", "at least 0"),
        ({"latency_us": float("nan")}, "/links/0/latency_us", ""),
        ({"max_in_flight": -1}, "/links/0/max_in_flight", "between 0"),
        ({"max_in_flight": 1.5}, "/links/0/max_in_flight", "an integer"),
        ({"both_ways": "yes"}, "/links/0/both_ways", "a boolean"),
        ({"target": "c"}, "/links/0/target", "not among the nodes"),
        ({"source": ""}, "/links/0/source", ""),
        ({"color": "red"}, "/links/0/color", "not a field"),
    ],
)
def test_a_wrong_link_is_named(changes: dict, pointer: str, detail: str) -> None:
    found = findings(yaml.safe_dump(topology(links=[link(**changes)])))
    assert pointer in found
    assert detail in found[pointer]


def test_json_has_no_number_without_end() -> None:
    endless = text().replace("50000.0", "1e999")
    assert "at most" in findings(endless)["/links/0/bandwidth_bytes_per_us"]
    assert "string" in findings(text().replace("50000.0", "NaN"))["/links/0/bandwidth_bytes_per_us"]


def test_every_finding_is_told_at_once() -> None:
    wrong = topology(
        nodes=[{"name": "a"}, {"name": "b"}, {"name": "a"}],
        engines=[
            {"engine_id": "e", "node": "a"},
            {"engine_id": "e", "node": "z"},
            {"node": "b"},
        ],
        links=[
            link("a", "b"),
            link("b", "a", both_ways=False),
            link("a", "q", bandwidth_bytes_per_us=0),
        ],
        tiers=[
            {"node": "a", "tier": "host_dram", "capacity_bytes": 1},
            {"node": "a", "tier": "host_dram", "capacity_bytes": -1},
            {"node": "c", "tier": "tape", "capacity_bytes": 1},
        ],
        racks=1,
    )
    assert set(findings(json.dumps(wrong))) == {
        "/nodes/2/name", "/engines/1/engine_id", "/engines/1/node", "/engines/2/engine_id",
        "/links/1", "/links/2/target", "/links/2/bandwidth_bytes_per_us", "/tiers/1/tier",
        "/tiers/1/capacity_bytes", "/tiers/2/node", "/tiers/2/tier", "/racks",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("links", "twice"),
    [
        ([link(), link()], True),
        ([link(), link("b", "a")], True),
        ([link(both_ways=False), link("b", "a", both_ways=False)], False),
        ([link(both_ways=False), link("b", "a")], True),
        ([link("a", "a"), link("b", "b")], False),
        ([link("a", "a", both_ways=False), link("a", "a")], True),
    ],
)
def test_two_nodes_are_linked_once_each_way(links: list[dict], twice: bool) -> None:
    content = text(links=links)
    if twice:
        assert set(findings(content)) == {"/links/1"}
    else:
        assert len(load_topology(content).links) == 2


@pytest.mark.parametrize(
    ("content", "code", "hint"),
    [
        ("", ErrorCode.INVALID_BODY, "object"),
        ("- a", ErrorCode.INVALID_BODY, "object"),
        ("[1]", ErrorCode.INVALID_BODY, "object"),
        (b"\xff", ErrorCode.INVALID_BODY, "UTF-8"),
        ("a: &x 1", ErrorCode.INVALID_FIELD, "anchors"),
        ('{"nodes": 1, "nodes": 2}', ErrorCode.INVALID_FIELD, "twice"),
        ('{"nodes": [' + " " * 300_000, ErrorCode.INVALID_BODY, "not JSON"),
        ('{"a":' * 100_000, ErrorCode.INVALID_BODY, "not JSON"),
        ("{" + " " * MAX_TOPOLOGY_BYTES, ErrorCode.REQUEST_TOO_LARGE, str(MAX_TOPOLOGY_BYTES)),
        ("a: " + "x" * 300_000, ErrorCode.REQUEST_TOO_LARGE, "262144"),
        (text(schema_version="nexuskv.topology.v9"), ErrorCode.INVALID_FIELD, "schema_version"),
        (text(nodes=[{"name": f"n{n}"} for n in range(1025)]), ErrorCode.INVALID_FIELD, "1024"),
        (text(nodes=1), ErrorCode.INVALID_FIELD, "array"),
        (text(links=[1]), ErrorCode.INVALID_FIELD, "object"),
        (text(nodes=[{"name": "\x00"}]), ErrorCode.INVALID_FIELD, "U+0000"),
    ],
)
def test_what_is_no_topology(content: str | bytes, code: ErrorCode, hint: str) -> None:
    with pytest.raises(NexusError) as caught:
        load_topology(content)
    assert caught.value.code is code
    assert hint in caught.value.message


def test_the_largest_one_is_read() -> None:
    nodes = [f"n{n}" for n in range(1024)]
    chosen = random.Random(6).sample([(a, b) for a in nodes for b in nodes], 65_536)
    links = [
        {"source": a, "target": b, "bandwidth_bytes_per_us": 1, "latency_us": 0, "both_ways": False}
        for a, b in chosen
    ]
    document = {
        "schema_version": "nexuskv.topology.v1",
        "nodes": [{"name": name} for name in nodes],
        "links": links,
    }
    found = load_topology(json.dumps(document))
    assert len(found.links) == 65_536
    document["links"] = [*links, links[0]]
    assert "/links" in findings(json.dumps(document))


def test_the_example_of_the_documentation_is_a_topology() -> None:
    written = (ROOT / "docs" / "topology.md").read_text(encoding="utf-8")
    found = load_topology(written.split("```yaml")[1].split("```")[0])
    assert [engine.hardware for engine in found.engines] == ["h100", ""]
    assert found.links[0].both_ways
