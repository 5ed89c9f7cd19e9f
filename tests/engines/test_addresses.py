"""Which endpoints a registration may name."""

import pytest

from app.cli.engine_env import engine_settings
from app.engines.addresses import HOSTS_VARIABLE, EngineAddresses, check_consistent
from app.engines.registration import Attach, EngineSpec
from app.errors import ErrorCode, NexusError
from app.host_list import HostAllowList

HOSTS = HostAllowList(["10.1.0.0/16", "engine-a", "::1", "127.0.0.1"], HOSTS_VARIABLE)


def spec(**fields):
    given = {"instance_id": "a", "model": "m", "block_tokens": 16, "tenants": ("t",)}
    return EngineSpec(**(given | fields))


def refusal(schemes=("tcp",), **fields):
    try:
        EngineAddresses(HOSTS, schemes).check(spec(**fields))
    except NexusError as error:
        return error.code
    return None


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://10.1.2.3:5557", "tcp://Engine-A:1", "tcp://[::1]:65535", "tcp://127.0.0.1:9"],
)
def test_listed_hosts(endpoint):
    assert refusal(endpoint=endpoint) is None
    assert refusal(endpoint="tcp://10.1.0.1:1", replay_endpoint=endpoint) is None


@pytest.mark.parametrize(
    "endpoint", ["tcp://10.2.0.1:5557", "tcp://engine-b:1", "tcp://169.254.169.254:80"]
)
def test_hosts_that_are_not_listed(endpoint):
    refused = ErrorCode.ENGINE_HOST_NOT_ALLOWED
    assert refusal(endpoint=endpoint) is refused
    assert refusal(endpoint="tcp://10.1.0.1:1", replay_endpoint=endpoint) is refused


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://10.1.0.1", "tcp://10.1.0.1:0", "tcp://10.1.0.1:65536", "tcp://10.1.0.1:x",
        "http://10.1.0.1:1", "10.1.0.1:1", "tcp://[::zz]:1", "tcp://10.1.0.1:1/x",
        "tcp://eth0;10.1.0.1:1", "inproc://a", "pgm://10.1.0.1;239.0.0.1:1", "tcp://10.1.0.1:1\n",
        "udp://10.1.0.1:1", "tcp://*:5557",
    ],
)  # fmt: skip
def test_what_no_socket_connects_to(endpoint):
    assert refusal(endpoint=endpoint) is ErrorCode.INVALID_FIELD


def test_sockets_that_listen_name_an_address_of_the_list():
    bind = {"attach": Attach.BIND}
    assert refusal(endpoint="tcp://127.0.0.1:5557", **bind) is None
    assert refusal(endpoint="tcp://engine-a:5557", **bind) is ErrorCode.INVALID_FIELD
    for everywhere in ("tcp://*:5557", "tcp://0.0.0.0:5557"):
        assert refusal(endpoint=everywhere, **bind) is ErrorCode.ENGINE_HOST_NOT_ALLOWED
        listed = EngineAddresses(HostAllowList(["0.0.0.0"], HOSTS_VARIABLE), ["tcp"])
        listed.check(spec(endpoint=everywhere, **bind))


def test_files_only_where_an_operator_allows_them():
    assert refusal(endpoint="ipc:///run/a.sock") is ErrorCode.ENGINE_HOST_NOT_ALLOWED
    assert refusal(("tcp", "ipc"), endpoint="ipc:///run/a.sock") is None
    assert refusal(("tcp", "ipc"), endpoint="ipc://a") is ErrorCode.INVALID_FIELD
    assert refusal(("ipc",), endpoint="tcp://10.1.0.1:1") is ErrorCode.ENGINE_HOST_NOT_ALLOWED


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        ({"tenants": ("t", "t")}, ["/tenants"]),
        ({"salts": {"s": "u"}}, ["/salts"]),
        ({"tenants": ("t", "u")}, ["/salts"]),
        ({"replay_endpoint": "tcp://a:1"}, ["/replay_endpoint"]),
        ({"attach": Attach.BIND, "tenants": ("t", "t")}, ["/tenants", "/attach"]),
    ],
)
def test_fields_that_contradict(fields, pointers):
    with pytest.raises(NexusError) as caught:
        check_consistent(spec(**fields))
    assert caught.value.code is ErrorCode.INVALID_FIELD
    assert [finding.pointer for finding in caught.value.errors] == pointers


def test_several_tenants_by_salt_or_as_a_pool():
    check_consistent(spec(tenants=("t", "u"), salts={"s": "u"}))
    check_consistent(spec(tenants=("t", "u"), pooled=True))


def test_settings_of_the_environment(tmp_path):
    found = engine_settings({})
    assert (found["block_index_file"], found["block_index_save_s"]) == (None, 60.0)
    assert (found["engine_schemes"], found["engine_stale_s"]) == (("tcp",), 30.0)
    found = engine_settings(
        {
            "NEXUSKV_ENGINE_HOSTS": "engine-a, 10.0.0.0/8",
            "NEXUSKV_ENGINE_SCHEMES": "tcp,ipc",
            "NEXUSKV_ENGINE_STALE_S": "5",
            "NEXUSKV_BLOCK_INDEX_BLOCKS": "1000",
            "NEXUSKV_BLOCK_INDEX_BYTES": "16777216",
            "NEXUSKV_BLOCK_INDEX_FILE": str(tmp_path / "copy"),
            "NEXUSKV_BLOCK_INDEX_SAVE_S": "5",
        }
    )
    assert found == {
        "engine_hosts": ("engine-a", "10.0.0.0/8"),
        "engine_schemes": ("tcp", "ipc"),
        "engine_stale_s": 5.0,
        "block_index_blocks": 1_000,
        "block_index_bytes": 1 << 24,
        "block_index_file": tmp_path / "copy",
        "block_index_save_s": 5.0,
    }


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NEXUSKV_ENGINE_HOSTS", "tcp://a"),
        ("NEXUSKV_ENGINE_SCHEMES", "inproc"),
        ("NEXUSKV_ENGINE_STALE_S", "1"),
        ("NEXUSKV_BLOCK_INDEX_BLOCKS", "1e6"),
        ("NEXUSKV_BLOCK_INDEX_BYTES", "0"),
        ("NEXUSKV_BLOCK_INDEX_FILE", "/tmp"),
        ("NEXUSKV_BLOCK_INDEX_FILE", "/nowhere/copy"),
        ("NEXUSKV_BLOCK_INDEX_SAVE_S", "1"),
    ],
)
def test_settings_that_cannot_be_used_name_their_variable(variable, value):
    with pytest.raises(ValueError, match=variable):
        engine_settings({variable: value})
