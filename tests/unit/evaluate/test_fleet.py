"""Fleet documents: the shipped ones are read, and what cannot be simulated is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from app.contract.enums import TierKind
from app.errors import NexusError
from app.evaluate.fleet import load_fleet
from app.policy.text import parse_document

FLEETS = Path(__file__).resolve().parents[3] / "fleets"


def shipped(name: str = "tiers.yaml") -> dict[str, Any]:
    document = parse_document((FLEETS / name).read_bytes())
    assert isinstance(document, dict)
    return document


def changed(pointer: str, value: object) -> dict[str, Any]:
    document: Any = shipped()
    *path, last = [int(part) if part.isdigit() else part for part in pointer.split("/")[1:]]
    at = document
    for part in path:
        at = at[part]
    at[last] = value
    return dict(document)


def test_the_fleet_with_tiers_is_read() -> None:
    fleet = load_fleet(shipped())
    assert fleet.nodes() == ["node-00", "node-01", "node-02", "node-03"]
    assert (fleet.node(1), fleet.node(2)) == ("node-00", "node-01")
    assert [one.kind for one in fleet.tiers] == [TierKind.LOCAL_SSD, TierKind.REMOTE_SHARED]
    assert all(one.source for one in (*fleet.tiers, *fleet.links))


def test_what_the_first_fleets_said_still_holds() -> None:
    fleet = load_fleet(shipped("default.yaml"))
    assert (fleet.engines_per_node, fleet.tiers, fleet.links) == (1, (), ())


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/links/0/bytes_per_us", -1.0),
        ("/links/0/bytes_per_us", 0.0),
        ("/links/0/latency_us", float("nan")),
        ("/links/0/source", ""),
        ("/profile/paths/0/bytes_per_us", 0.0),
        ("/profile/paths/0/bytes_per_us", float("inf")),
        ("/profile/prefill/per_token_us", float("nan")),
        ("/tiers/0/tier", "host_dram"),
        ("/tiers/0/tokens", 0),
        ("/engines_per_node", 3),
        ("/utilisation", float("nan")),
        ("/colour", "red"),
    ],
)
def test_a_bad_figure_is_named(pointer: str, value: object) -> None:
    assert f"{pointer} " in refusal(changed(pointer, value))


@pytest.mark.parametrize(
    ("pointer", "value", "said"),
    [
        ("/links/0/target", "node-09", "/links/0 is not between two nodes"),
        ("/links/0/target", "node-00", "/links/0 is not between two nodes"),
        ("/links/1", shipped()["links"][0], "/links/1 is there twice"),
        ("/tiers/1/tier", "local_ssd", "/tiers/1 is not below the tier before it"),
        ("/tiers/1/tier", "object_store", "/tiers/1 has no path in the profile"),
    ],
)
def test_what_does_not_go_together_is_named(pointer: str, value: object, said: str) -> None:
    assert said in refusal(changed(pointer, value))


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(NexusError) as refused:
        load_fleet(document)
    return str(refused.value)
