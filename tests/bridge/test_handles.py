"""Signed handles: what is sealed opens, and nothing else does; secrets can be rotated."""

import re
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bridge.handles import (
    HandleKeys,
    HandleSecretError,
    option_id_text,
    parse_option_id,
    target_digest,
)
from app.bridge.schemas import MAX_HANDLE_CHARS, MAX_SCOPE_CHARS, MAX_TEXT_CHARS
from app.execution.grants import OptionGrant, SourceGrant
from tests.fixtures.service import ServiceProcess
from tests.fixtures.wire import (
    error_code,
    estimate_body,
    estimated,
    matched,
    materialize_body,
    new_tenant,
    register,
    registration,
    source_handle,
)
from tests.process.waiting import until

OLD = "old-" + "a" * 32
NEW = "new-" + "b" * 32
ALPHABET = string.ascii_letters + string.digits + "-_"

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
hashes = st.binary(min_size=16, max_size=16)
# No text of a tenant or of a residency may hold U+0000: bodies with it are refused.
texts = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
tenants = st.text(texts, min_size=1, max_size=MAX_SCOPE_CHARS)
common = {
    "tenant": tenants,
    "state_id": st.uuids(),
    "generation": u32,
    "matched_tokens": u32,
    "identity_hash": hashes,
    "lookup_id": st.uuids(),
    "expires_us": u64,
}
source_grants = st.builds(SourceGrant, **common)
option_grants = st.builds(
    OptionGrant,
    **common,
    option_id=st.uuids(),
    target_digest=hashes,
    target_residency=st.text(texts, min_size=1, max_size=MAX_TEXT_CHARS),
    estimate_id=st.uuids(),
    transfer_us=u64,
)
SOURCE = SourceGrant(
    tenant="tenänt",
    state_id=UUID(int=1),
    generation=2,
    matched_tokens=3,
    identity_hash=b"i" * 16,
    lookup_id=UUID(int=4),
    expires_us=5,
)
OPTION = OptionGrant(
    option_id=UUID(int=6),
    tenant="tenänt",
    state_id=UUID(int=1),
    generation=2,
    matched_tokens=3,
    identity_hash=b"i" * 16,
    target_digest=b"t" * 16,
    lookup_id=UUID(int=4),
    estimate_id=UUID(int=7),
    transfer_us=8,
    expires_us=5,
    target_residency="node-b",
)


@given(source_grants, option_grants)
def test_what_is_sealed_opens(source, option) -> None:
    keys = HandleKeys(NEW)
    assert keys.open_source(keys.seal_source(source)) == source
    assert keys.open_option(keys.seal_option(option)) == option


def test_every_handle_fits_the_field_that_carries_it() -> None:
    longest = msgspec.structs.replace(OPTION, tenant="\N{GRINNING FACE}" * MAX_SCOPE_CHARS)
    assert len(HandleKeys(NEW).seal_option(longest)) <= MAX_HANDLE_CHARS


def test_every_other_character_at_every_place_is_refused() -> None:
    keys = HandleKeys(NEW)
    for handle, opened in (
        (keys.seal_source(SOURCE), keys.open_source),
        (keys.seal_option(OPTION), keys.open_option),
    ):
        assert opened(handle) is not None
        for place in range(len(handle)):
            for other in (ALPHABET + "+/=. \n\x00é").replace(handle[place], ""):
                assert opened(handle[:place] + other + handle[place + 1 :]) is None, (place, other)
            assert opened(handle[:place] + handle[place + 1 :]) is None
            assert opened(handle[:place]) is None


def test_only_the_spelling_that_was_issued_counts() -> None:
    """Base64 decoders skip what they do not know, and ignore spare bits at the end."""
    keys = HandleKeys(NEW)
    handle = keys.seal_source(SOURCE)
    for other in (
        handle + "=",
        handle + "==",
        handle + "\n",
        handle[:20] + "\n" + handle[20:],
        handle[:20] + "!" + handle[20:],
        handle + "A",
        " " + handle,
        handle.replace("-", "+").replace("_", "/") + "=",
        handle.upper(),
        "",
        "nkvs1.",
        "nkvs1." + "A" * 200,
    ):
        assert keys.open_source(other) is None, other
    # Of the last character, only four of six bits carry data when two characters are left over.
    spare = {text for last in ALPHABET if keys.open_source(text := handle[:-1] + last) is not None}
    assert spare == {handle}


def test_a_handle_opens_as_its_own_kind_only() -> None:
    keys = HandleKeys(NEW)
    source, option = keys.seal_source(SOURCE), keys.seal_option(OPTION)
    assert keys.open_option(source) is None
    assert keys.open_source(option) is None
    assert keys.open_option("nkvo1." + source.removeprefix("nkvs1.")) is None
    assert keys.open_source("nkvs1." + option.removeprefix("nkvo1.")) is None


@given(st.text(max_size=300) | st.text(ALPHABET, max_size=300).map(lambda text: "nkvs1." + text))
def test_arbitrary_text_opens_nothing(text) -> None:
    keys = HandleKeys(f"{NEW},{OLD}")
    assert keys.open_source(text) is None
    assert keys.open_option(text) is None


def test_rotation() -> None:
    before, during, after = HandleKeys(OLD), HandleKeys(f"{NEW},{OLD}"), HandleKeys(NEW)
    old_handle = before.seal_source(SOURCE)
    assert during.open_source(old_handle) == SOURCE
    assert after.open_source(old_handle) is None
    # The first signs, so that the old secret can go once its last handle has expired.
    new_handle = during.seal_source(SOURCE)
    assert new_handle == after.seal_source(SOURCE)
    assert after.open_source(new_handle) == SOURCE
    assert before.open_source(new_handle) is None
    # A replica that is one step behind still understands both.
    assert HandleKeys(f"{OLD},{NEW}").open_source(new_handle) == SOURCE


@pytest.mark.parametrize("separator", [",", ", ", "\n", " \t", ",\n"])
def test_secrets_are_separated_by_commas_or_white_space(separator) -> None:
    keys = HandleKeys(f"{NEW}{separator}{OLD}\n")
    assert keys.open_source(HandleKeys(OLD).seal_source(SOURCE)) == SOURCE
    assert keys.seal_source(SOURCE) == HandleKeys(NEW).seal_source(SOURCE)


@pytest.mark.parametrize(
    ("secrets", "says"),
    [
        ("", "one or two"),
        (" ,\n", "one or two"),
        (f"{NEW},{OLD},{'c' * 40}", "not 3"),
        ("short", "32 characters"),
        ("c" * 31, "32 characters"),
        (f"{NEW},short-one", "32 characters"),
    ],
)
def test_secrets_that_cannot_be_used(secrets, says) -> None:
    with pytest.raises(HandleSecretError, match=says) as refused:
        HandleKeys(secrets)
    for secret in re.findall(r"[\w-]{5,}", secrets):
        assert secret not in str(refused.value)


def test_one_character_of_the_secret_makes_another_key() -> None:
    handle = HandleKeys("c" * 32).seal_source(SOURCE)
    assert HandleKeys("c" * 31 + "d").open_source(handle) is None


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4), u32), min_size=2, max_size=2))
def test_a_target_digest_keeps_its_parts_apart(targets) -> None:
    one, two = targets
    assert (target_digest(*one) == target_digest(*two)) == (one == two)


def test_target_digests_of_parts_that_run_together() -> None:
    digests = {
        target_digest(*target)
        for target in (("ab", "c", 1), ("a", "bc", 1), ("abc", "", 1), ("", "abc", 1))
    }
    assert len(digests) == 4
    assert target_digest("a", "b1", 2) != target_digest("a", "b", 12)


@given(st.uuids())
def test_option_ids(option_id) -> None:
    text = option_id_text(option_id)
    assert parse_option_id(text) == option_id
    for other in (
        text.upper(),
        text + "0",
        text[:-1],
        text + "\n",
        "opt-" + text[4:],
        f"opt_{option_id}",
        f" {text}",
        text[4:],
        "",
    ):
        assert parse_option_id(other) is None, other


@pytest.fixture
def replica(database_url: str, tmp_path: Path) -> Iterator[Callable[..., ServiceProcess]]:
    """Starts services on one database; kills those that a failed test leaves behind."""
    started: list[ServiceProcess] = []

    def start(**env: str) -> ServiceProcess:
        (directory := tmp_path / f"replica-{len(started)}").mkdir()
        started.append(ServiceProcess(database_url, directory, **env))
        return started[-1].start()

    yield start
    for running in started:
        if running.process is not None and running.process.poll() is None:
            running.kill()


def test_replicas_honour_each_others_handles_through_a_rotation(replica, tmp_path) -> None:
    """Old secret, then both, then the new one from a file: replicas of two steps run at a time."""
    tenant = new_tenant()
    before = replica(NEXUSKV_HANDLE_SECRET=OLD)
    during = replica(NEXUSKV_HANDLE_SECRET=f"{NEW},{OLD}")
    with before.client() as client:
        register(client, registration(tenant))
        old_source, old_option = source_handle(client, tenant), estimated(client, tenant)
    with during.client() as client:
        assert client.post("/locus/v1/estimate", json=estimate_body(old_source)).status_code == 200
        done = client.post("/locus/v1/materialize", json=materialize_body(old_option))
        assert done.status_code == 200, done.text
        until(lambda: matched(client, tenant), "the other replica knows the state", within_s=5)
        new_source = source_handle(client, tenant)
    with before.client() as client:
        # It does not know the new secret yet: the reason to roll the verifying one out first.
        answer = client.post("/locus/v1/estimate", json=estimate_body(new_source))
        assert error_code(answer) == (409, "source_handle_mismatch")
    assert before.stop() == 0
    file = tmp_path / "handle.secret"
    file.write_text(NEW + "\n", encoding="utf-8")
    file.chmod(0o600)
    # As orchestrators mount it: a link to the file of the current version.
    (tmp_path / "link").symlink_to(file)
    after = replica(NEXUSKV_HANDLE_SECRET="", NEXUSKV_HANDLE_SECRET_FILE=str(tmp_path / "link"))
    with after.client() as client:
        assert client.post("/locus/v1/estimate", json=estimate_body(new_source)).status_code == 200
        answer = client.post("/locus/v1/estimate", json=estimate_body(old_source))
        assert error_code(answer) == (409, "source_handle_mismatch")
    assert during.stop() == after.stop() == 0
