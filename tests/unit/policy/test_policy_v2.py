"""The second version of the policy document: all that the first says, and what planning needs."""

import json
from typing import Any

import pytest

from app.errors import ErrorCode, NexusError
from app.policy.document import canonical_bytes, load_policy
from tests.policies.documents import document

V2 = "nexuskv.execution_policy.v2"
BOUNDS = {
    "deviations": 2,
    "min_gain_us": 1_000,
    "max_queue_us": 500_000,
    "max_calibration_step": 1.5,
    "exploration_share": 0.01,
}
BUDGETS = {
    "max_bytes_in_flight": 10**9,
    "max_bytes_per_us": 10_000,
    "max_tier_share": 0.25,
    "min_use_probability": 0.2,
}


def second(**changes: Any) -> str:
    return json.dumps(document(schema_version=V2, **changes))


def refused(text: str) -> list[tuple[str, ErrorCode]]:
    with pytest.raises(NexusError) as caught:
        load_policy(text)
    return [(one.pointer, one.code) for one in caught.value.errors]


def test_it_says_all_that_the_first_does_and_more() -> None:
    policy = load_policy(
        second(cost_bounds=BOUNDS, prefetch_budgets=BUDGETS, history_durability={"plan": "spooled"})
    )
    assert policy.cost_bounds.deviations == 2.0
    assert policy.cost_bounds.max_queue_us == 500_000
    assert policy.prefetch_budgets.max_tier_share == 0.25
    assert policy.history_durability == {"plan": "spooled"}
    assert load_policy(canonical_bytes(policy)) == policy


def test_what_it_leaves_out_is_as_a_first_version_has_it() -> None:
    first, later = load_policy(json.dumps(document())), load_policy(second())
    assert (first.cost_bounds, first.prefetch_budgets) == (
        later.cost_bounds,
        later.prefetch_budgets,
    )
    assert first.version != later.version


def test_a_first_version_is_read_to_the_letter() -> None:
    """Its canonical bytes, and with them every digest that is stored, are what they were."""
    policy = load_policy(json.dumps(document()))
    assert json.loads(canonical_bytes(policy)) == {
        **document(),
        "tenant_namespace_policy": document()["tenant_namespace_policy"],
    }
    assert refused(json.dumps(document(cost_bounds=BOUNDS))) == [
        ("/cost_bounds", ErrorCode.UNKNOWN_FIELD)
    ]
    assert refused(json.dumps(document(prefetch_budgets=BUDGETS))) == [
        ("/prefetch_budgets", ErrorCode.UNKNOWN_FIELD)
    ]
    assert refused(json.dumps(document(history_durability={"plan": "group"}))) == [
        ("/history_durability/plan", ErrorCode.INVALID_FIELD)
    ]


@pytest.mark.parametrize(
    ("where", "field", "value"),
    [
        ("cost_bounds", "deviations", -0.1),
        ("cost_bounds", "deviations", 10.5),
        ("cost_bounds", "min_gain_us", -1),
        ("cost_bounds", "max_calibration_step", 1),
        ("cost_bounds", "max_calibration_step", 11),
        ("cost_bounds", "exploration_share", 0.2),
        ("prefetch_budgets", "max_tier_share", 0),
        ("prefetch_budgets", "max_tier_share", 1.01),
        ("prefetch_budgets", "min_use_probability", 2),
        ("prefetch_budgets", "max_bytes_in_flight", 1.5),
    ],
)
def test_a_value_beyond_its_bounds_is_named(where: str, field: str, value: float) -> None:
    found = refused(second(**{where: {field: value}}))
    assert found == [(f"/{where}/{field}", ErrorCode.INVALID_FIELD)]


@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf"])
def test_what_is_no_number_is_refused(number: str) -> None:
    text = second(cost_bounds={"deviations": "HERE"}).replace('"HERE"', number)
    yaml_text = "\n".join(f"{key}: {value}" for key, value in _lines(text, number))
    found = refused(yaml_text)
    assert ("/cost_bounds/deviations", ErrorCode.INVALID_FIELD) in found


def _lines(text: str, number: str) -> list[tuple[str, str]]:
    plain = json.loads(text.replace(number, '"HERE"'))
    return [(key, json.dumps(value).replace('"HERE"', number)) for key, value in plain.items()]
