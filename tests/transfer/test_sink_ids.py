"""A sink's id says its length to whoever has the secret, and lies to nobody."""

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.transfer.sink_ids import SinkIds
from app.transfer.wire import SinkId

OLD, NEW = "old-" + "a" * 40, "new-" + "b" * 40
NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40
)
LENGTHS = st.integers(1, 2**63 - 1)
GENERATIONS = st.integers(0, 2**32 - 1)


@given(st.tuples(NAMES, NAMES, NAMES), GENERATIONS, LENGTHS, st.uuids())
def test_what_was_made_is_read_and_fits_the_wire(
    names: tuple[str, str, str], generation: int, length: int, unique: UUID
) -> None:
    worker, tenant, engine = names
    made = SinkIds([NEW, OLD]).make(
        worker, tenant, engine,
        engine_generation=generation, payload_bytes=length, unique=unique,
    )  # fmt: skip
    assert msgspec.convert(made, SinkId) == made
    assert len(made) <= 84
    for reader in (SinkIds([NEW]), SinkIds([OLD, NEW])):
        found = reader.payload_bytes(made, worker, tenant, engine, engine_generation=generation)
        assert found == length
    assert (
        SinkIds([OLD]).payload_bytes(made, worker, tenant, engine, engine_generation=generation)
        is None
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"worker": "node-b"},
        {"tenant": "other"},
        {"engine_id": "engine-2"},
        {"engine_generation": 2},
        {"sink_id": lambda made: made.replace("s1000.", "s1.", 1)},
        {"sink_id": lambda made: made[:-1] + ("0" if made[-1] != "0" else "1")},
        {"sink_id": lambda _: "sink-chosen-by-a-caller"},
        {"sink_id": lambda made: made.upper()},
    ],
)
def test_an_id_made_for_anything_else_says_nothing(changes: dict) -> None:
    ids = SinkIds([NEW])
    mine = {"worker": "node-a", "tenant": "acme", "engine_id": "engine-1"}
    made = ids.make(*mine.values(), engine_generation=1, payload_bytes=4096, unique=UUID(int=7))
    asked = {"sink_id": made, "engine_generation": 1, **mine}
    assert ids.payload_bytes(**asked) == 4096
    for name, value in changes.items():
        asked[name] = value(made) if callable(value) else value
    assert ids.payload_bytes(**asked) is None
