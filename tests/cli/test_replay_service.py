"""A trace through a running service, as a user would: the whole command, real HTTP."""

import json

import httpx
import pytest
import typer
from typer.testing import CliRunner

from app.cli.replay import replay_command
from app.cli.trace import trace_app
from app.control.keys import Scope

REQUESTS = 80
BLOCK_TOKENS = 16
runner = CliRunner()
replay_app = typer.Typer()
replay_app.command()(replay_command)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    result = runner.invoke(
        trace_app,
        ["generate", f"--requests={REQUESTS}", f"--block-tokens={BLOCK_TOKENS}", f"--out={path}"],
    )
    assert result.exit_code == 0, result.output
    return path


def replay(service, trace, tmp_path, *arguments, key=None, expected=0):
    figures = tmp_path / "figures.json"
    result = runner.invoke(
        replay_app,
        [
            str(trace),
            f"--url={service.url}",
            f"--key={service.admin_key if key is None else key}",
            f"--block-tokens={BLOCK_TOKENS}",
            f"--json={figures}",
            *arguments,
        ],
    )
    assert result.exit_code == expected, result.output
    return json.loads(figures.read_bytes()), result


def test_both_rates_are_equal_and_every_decision_is_in_the_history(service, trace, tmp_path):
    figures, result = replay(service, trace, tmp_path)
    assert figures["requests"] == REQUESTS
    assert figures["matched_tokens"] == figures["reusable_tokens"] > 0
    assert figures["token_hit_rate"] == figures["token_hit_rate_bound"]
    assert figures["decisions"] == figures["decisions_answered"] == REQUESTS + figures["hits"]
    assert figures["errors"] == 0
    assert 0 < figures["lookup_p50_ms"] <= figures["lookup_p99_ms"]
    assert "infinite-cache bound" in result.stdout


def test_a_second_run_starts_cold_and_ends_the_same(service, trace, tmp_path):
    first, _ = replay(service, trace, tmp_path, "--limit=40")
    second, _ = replay(service, trace, tmp_path, "--limit=40")
    assert first["namespace"] != second["namespace"]
    assert first["token_hit_rate"] == second["token_hit_rate"]


def test_a_fixed_namespace_finds_what_an_earlier_run_registered(service, trace, tmp_path):
    cold, _ = replay(service, trace, tmp_path, "--limit=40")
    fixed = f"--namespace={cold['namespace']}"
    warm, _ = replay(service, trace, tmp_path, "--limit=40", fixed)
    assert warm["states_registered"] == 0
    assert warm["token_hit_rate"] > warm["token_hit_rate_bound"]


def test_requests_in_flight_together_do_not_conflict(service, trace, tmp_path):
    figures, _ = replay(service, trace, tmp_path, "--limit=40", "--concurrency=8")
    assert figures["requests"] == 40
    assert figures["errors"] == 0
    assert figures["decisions"] == figures["decisions_answered"]
    assert figures["token_hit_rate"] <= figures["token_hit_rate_bound"]


@pytest.mark.parametrize("semantic_type", ["mha_kv", "mqa_kv"])
@pytest.mark.parametrize("engine_family", ["vllm", "sglang"])
def test_other_identities_reach_the_bound_too(
    service, trace, tmp_path, semantic_type, engine_family
):
    identity = [f"--semantic-type={semantic_type}", f"--engine-family={engine_family}"]
    figures, _ = replay(service, trace, tmp_path, *identity, "--limit=20")
    assert figures["token_hit_rate"] == figures["token_hit_rate_bound"] > 0


def test_a_wrong_key_ends_the_run_at_once(service, trace, tmp_path):
    figures, result = replay(service, trace, tmp_path, key="nkv_no_such", expected=1)
    assert figures["requests"] == 1
    assert figures["error_codes"] == {"unauthorized": 1}
    assert "line 1: unauthorized" in result.stderr
    assert "--key-file" in result.stderr


def test_a_key_of_another_tenant_is_told_which(service, trace, tmp_path):
    key = service.key(Scope.ADMIN, tenants=("acme",))
    figures, result = replay(service, trace, tmp_path, key=key, expected=1)
    assert figures["error_codes"] == {"tenant_forbidden": 1}
    assert "the states are those of tenant replay; --tenant names one" in result.stderr


def test_an_unknown_type_is_reported_for_every_request(service, trace, tmp_path):
    figures, result = replay(
        service, trace, tmp_path, "--semantic-type=no_such", "--limit=3", expected=1
    )
    assert figures["error_codes"] == {"unsupported_identity": 3}
    assert "line 3: unsupported_identity" in result.stderr


def test_the_history_holds_lookups_and_estimates_of_the_run(service, trace, tmp_path):
    figures, _ = replay(service, trace, tmp_path, "--limit=30")
    query = {"tenant": figures["tenant"], "namespace": figures["namespace"], "page_size": 1000}
    answer = httpx.get(
        f"{service.url}/v1/decisions",
        params=query,
        headers={"authorization": f"Bearer {service.admin_key}"},
        trust_env=False,
    )
    kinds = [item["kind"] for item in answer.json()["items"]]
    assert kinds.count("lookup") == 30
    assert kinds.count("estimate") == figures["hits"]
