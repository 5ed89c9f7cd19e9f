"""`/v1/topology` and `nexuskv topology`, against a running service."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import yaml
from typer.testing import CliRunner, Result

from app.cli.topology import topology_app
from app.control.keys import Scope
from app.topology.document import load_topology
from tests.fixtures.service import ServiceProcess
from tests.topology.fleets import link, text, topology

JSON = {"content-type": "application/json"}


@pytest.fixture
def client(module_service: ServiceProcess):
    with module_service.client() as client:
        yield client


def put(client: httpx.Client, content: str, *, headers=(), **params) -> httpx.Response:
    return client.put("/v1/topology", content=content, headers=JSON | dict(headers), params=params)


def in_force(client: httpx.Client) -> dict:
    return client.get("/v1/topology").raise_for_status().json()


def test_none_comes_first(own_service: ServiceProcess) -> None:
    with own_service.client() as client:
        found = client.get("/v1/topology")
        assert found.json() == {"topology": None, "known_version": None, "fault": None}
        tag = found.headers["etag"]
        assert client.get("/v1/topology", headers={"if-none-match": tag}).status_code == 304
        assert put(client, text(), headers={"if-match": tag}).status_code == 201
        assert put(client, text(2), headers={"if-match": tag}).status_code == 412
        assert put(client, text(3), expected_version=0).status_code == 412
        before = in_force(client)
    own_service.kill()
    own_service.start()
    with own_service.client() as client:
        assert in_force(client) == before
        assert before["known_version"] == 1


def test_what_is_put_is_in_force_at_once_and_safe_to_repeat(client) -> None:
    first = put(client, text(101), message="a rack")
    assert first.status_code == 201
    version = first.json()["version"]
    assert first.headers["location"] == f"/v1/topology/{version}"
    found = client.get("/v1/topology")
    assert found.headers["etag"] == first.headers["etag"]
    shown = found.json()
    assert (shown["known_version"], shown["topology"]["message"]) == (version, "a rack")
    assert load_topology(json.dumps(shown["topology"]["document"])) == load_topology(text(101))
    again = put(client, yaml.safe_dump(topology(101)), headers={"content-type": "text/yaml"})
    assert (again.status_code, again.json()) == (200, first.json())
    assert client.get(f"/v1/topology/{version}").json() == shown["topology"]
    newer = put(client, text(102)).json()
    assert newer["version"] == version + 1
    assert not client.get(f"/v1/topology/{version}").json()["in_force"]
    listed = client.get("/v1/topology/versions", params={"page_size": 1}).json()
    assert listed["items"] == [newer]
    rest = client.get(
        "/v1/topology/versions", params={"page_size": 1, "cursor": listed["next_cursor"]}
    ).json()
    assert (rest["items"][0]["version"], rest["items"][0]["in_force"]) == (version, False)


def test_conditions_keep_two_operators_from_undoing_each_other(client) -> None:
    version = put(client, text(201)).json()["version"]
    tag = client.get("/v1/topology").headers["etag"]
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(put, client, text(n), headers={"if-match": tag}) for n in (202, 203)]
        statuses = sorted(one.result().status_code for one in both)
    assert statuses == [201, 412]
    for outdated in (tag, '"nonsense"', f"W/{tag}"):
        refused = put(client, text(204), headers={"if-match": outdated})
        assert (refused.status_code, refused.json()["code"]) == (412, "topology_changed")
        assert f"version {version + 1}" in refused.json()["detail"]
    assert put(client, text(204), expected_version=version).status_code == 412
    both = put(client, text(204), headers={"if-match": tag}, expected_version=version + 1)
    assert both.status_code == 412
    assert put(client, text(204), expected_version=version + 1).status_code == 201
    assert put(client, text(205), headers={"if-match": "*"}).status_code == 201


@pytest.mark.parametrize(
    ("changes", "code", "pointer"),
    [
        ({"links": [link(bandwidth_bytes_per_us=0)]}, "invalid_field",
         "/links/0/bandwidth_bytes_per_us"),
        ({"links": [link(latency_us=-1)]}, "invalid_field", "/links/0/latency_us"),
        ({"links": [link("a", "z")]}, "invalid_field", "/links/0/target"),
        ({"links": [link(), link("b", "a")]}, "invalid_field", "/links/1"),
        ({"racks": 1}, "unknown_field", "/racks"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_a_pointer(
    client, changes: dict, code: str, pointer: str
) -> None:
    before = in_force(client)
    answer = put(client, text(**changes))
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert [finding["pointer"] for finding in answer.json()["errors"]] == [pointer]
    assert in_force(client) == before


def test_too_large_and_of_another_type(client) -> None:
    too_large = put(client, "{" + " " * (8 * 1024 * 1024))
    assert (too_large.status_code, too_large.json()["code"]) == (413, "request_too_large")
    other = put(client, text(), headers={"content-type": "text/plain"})
    assert other.status_code == 415
    for version, status in (("999999999", 404), ("0", 400), ("x", 400)):
        assert client.get(f"/v1/topology/{version}").status_code == status


def test_each_scope_does_its_own(module_service, client) -> None:
    version = put(client, text(301)).json()["version"]
    reads = ["/v1/topology", "/v1/topology/versions", f"/v1/topology/{version}"]
    for scope in (Scope.TOPOLOGY_READ, Scope.TOPOLOGY_WRITE, Scope.WORKERS_READ):
        with module_service.client(module_service.key(scope)) as caller:
            for path in reads:
                allowed = scope is Scope.TOPOLOGY_READ
                assert (caller.get(path).status_code == 200) == allowed, path
            status = put(caller, text(301)).status_code
            assert status == (200 if scope is Scope.TOPOLOGY_WRITE else 403)


def test_metrics_tell_the_version(client) -> None:
    version = put(client, text(401)).json()["version"]
    metrics = client.get("/metrics").text
    found = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if "topology_" in line)
    assert float(found["nexuskv_topology_version"]) == version
    assert float(found["nexuskv_topology_faulted"]) == 0


def run(service: ServiceProcess, *arguments: str, stdin: str | None = None) -> Result:
    env = {"NEXUSKV_URL": service.url, "NEXUSKV_KEY": service.admin_key, "COLUMNS": "160"}
    return CliRunner().invoke(topology_app, list(arguments), input=stdin, env=env)


def test_the_command_puts_and_shows(own_service: ServiceProcess) -> None:
    none = run(own_service, "show")
    assert none.exit_code == 1
    assert "there is no topology yet" in none.stderr
    assert "No topology yet" in run(own_service, "list").stdout
    commented = "# ours\n" + yaml.safe_dump(topology(1))
    first = run(own_service, "put", "-", "--expect", "0", "-m", "rack 1", stdin=commented)
    assert first.exit_code == 0, first.output
    assert "Topology 1 is in force now: sha256:" in first.stdout
    assert "was in force already" in run(own_service, "put", "-", stdin=text(1)).stdout
    refused = run(own_service, "put", "-", "--expect", "7", stdin=text(2))
    assert refused.exit_code == 1
    assert "412 topology_changed" in refused.stderr
    wrong = run(own_service, "put", "-", stdin=text(-1))
    assert wrong.exit_code == 1
    assert "/links/0/latency_us: must be at least 0" in wrong.stderr
    shown = run(own_service, "show").stdout
    assert shown.startswith("# topology 1 (in force), sha256:")
    assert "2 nodes, 2 engines, 1 links, 1 tiers" in shown
    assert load_topology(shown) == load_topology(text(1))
    put_2 = run(own_service, "put", "-", "--json", stdin=text(2))
    assert json.loads(put_2.stdout)["created"]
    assert "(not in force)" in run(own_service, "show", "1").stdout
    assert json.loads(run(own_service, "show", "--json").stdout)["known_version"] == 2
    listed = json.loads(run(own_service, "list", "--json").stdout)
    assert [item["version"] for item in listed["items"]] == [2, 1]
    assert "rack 1" in run(own_service, "list").stdout
    unknown = run(own_service, "show", "9")
    assert "There is no topology 9; `nexuskv topology list` shows" in unknown.stderr
    assert run(own_service, "put", "/nowhere.yaml").exit_code == 2


def test_a_large_one_is_shown_as_json(module_service) -> None:
    nodes = [{"name": name} for name in ("a", "b", *(f"n{n}" for n in range(400)))]
    assert run(module_service, "put", "-", stdin=text(nodes=nodes)).exit_code == 0
    shown = run(module_service, "show").stdout
    assert len(json.loads(shown)["nodes"]) == 402
