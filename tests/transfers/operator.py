"""The operator of a fleet: the shipped policies, variants of them, and switching between them."""

from pathlib import Path
from typing import Any

import yaml

from tests.fixtures.wire import lookup_body
from tests.process.waiting import until
from tests.transfers.fleet import Fleet

SHIPPED = ("default", "shared-fleet", "latency-first")
_FILES = Path(__file__).resolve().parents[2] / "policies"
_YAML = {"content-type": "application/yaml"}


def shipped(name: str) -> str:
    return (_FILES / f"{name}.yaml").read_text(encoding="utf-8")


def variant(name: str, **changes: Any) -> str:
    """A shipped policy with other values: a dict changes only the fields that it names."""
    document = yaml.safe_load(shipped(name))
    for field, value in changes.items():
        document[field] = document[field] | value if isinstance(value, dict) else value
    return yaml.safe_dump(document)


class Operator:
    """Pushes and activates over HTTP, as a person does with `nexuskv policy`."""

    def __init__(self, fleet: Fleet) -> None:
        self._client = fleet.client

    def push(self, text: str) -> int:
        answer = self._client.post("/v1/policies", content=text, headers=_YAML)
        assert answer.status_code in (200, 201), answer.text
        number: int = answer.json()["number"]
        return number

    def activate(self, text: str) -> str:
        """The label under which decisions are made from now on."""
        number = self.push(text)
        answer = self._client.post(f"/v1/policies/{number}:activate")
        assert answer.status_code == 200, answer.text
        active = self._client.get("/v1/policies/active").json()
        assert active["activation"]["number"] == number
        label: str = active["label"]
        return label

    def switch(self, text: str) -> str:
        """`activate`, and wait until a lookup is recorded under it."""
        label = self.activate(text)
        until(lambda: self._label_of_a_lookup() == label, f"lookups are made under {label}")
        return label

    def _label_of_a_lookup(self) -> str:
        answer = self._client.post("/locus/v1/lookup", json=lookup_body("tenant-operator"))
        path = f"/v1/decisions/{answer.headers['x-nexuskv-decision-id']}"
        until(lambda: self._client.get(path).status_code == 200, "the lookup is stored")
        label: str = self._client.get(path).json()["policy_version"]
        return label
