"""Where workers may be."""

import pytest

from app.errors import ErrorCode, NexusError
from app.host_list import HostAllowList
from app.settings import DEFAULT_WORKER_HOSTS
from app.topology.hosts import VARIABLE, check_host

LISTED = HostAllowList(
    ["10.1.0.0/16", "192.168.7.9", "worker-a", "fd00::/8", "Node.Example"], VARIABLE
)


def refusal(address, allowed=LISTED) -> ErrorCode | None:
    try:
        check_host("url", address, allowed)
    except NexusError as error:
        return error.code
    return None


@pytest.mark.parametrize(
    "address",
    [
        "http://10.1.255.255:80",
        "https://10.1.0.1:443",
        "192.168.7.9:1",
        "worker-a:7000",
        "http://WORKER-A:7000",
        "node.example:65535",
        "http://[fd00::1]:80",
        "[::ffff:10.1.2.3]:80",
    ],
)
def test_listed_hosts(address):
    assert refusal(address) is None


@pytest.mark.parametrize(
    "address",
    [
        "http://10.2.0.1:80",
        "192.168.7.8:1",
        "worker-b:1",
        "evil.worker-a:1",
        "worker-a.:1",
        "http://169.254.169.254:80",
        "http://[::ffff:10.2.2.3]:80",
        "[fe80::1]:80",
        # Ways of writing 10.1.0.1 that resolvers accept: no addresses here, and no listed names.
        "http://10.1.1:80",
        "http://167837697:80",
        "http://0x0a010001:80",
    ],
)
def test_hosts_that_are_not_listed(address):
    assert refusal(address) is ErrorCode.WORKER_HOST_NOT_ALLOWED


@pytest.mark.parametrize(
    "address",
    [
        "http://worker-a",
        "worker-a",
        "worker-a:0",
        "worker-a:65536",
        "http://user@worker-a:80",
        "http://worker-a:80/path",
        "http://worker-a\\@evil:80",
        "http://worker-a:80@evil:80",
        "ftp://worker-a:80",
        "http://[worker-a]:80",
        "http://[fd00::zz]:80",
        "http://fd00::1:80",
        "http://wörker:80",
        "http://worker-a:8٠",
        "",
    ],
)
def test_what_names_no_host_and_port(address):
    assert refusal(address) is ErrorCode.INVALID_FIELD


def test_only_this_machine_unless_told_otherwise():
    allowed = HostAllowList(DEFAULT_WORKER_HOSTS, VARIABLE)
    for address in ("127.0.0.1:1", "http://127.8.8.8:1", "localhost:1", "http://[::1]:1"):
        assert refusal(address, allowed) is None
    assert refusal("10.0.0.1:1", allowed) is ErrorCode.WORKER_HOST_NOT_ALLOWED


def test_the_refusal_says_what_to_configure():
    with pytest.raises(NexusError, match="NEXUSKV_WORKER_HOSTS") as caught:
        check_host("data_address", "10.9.9.9:1", LISTED)
    assert "10.9.9.9" in caught.value.message


@pytest.mark.parametrize("entry", ["", "10.0.0.1/8", "10.0.0.0/33", "a b", "http://a", "*", "é"])
def test_entries_that_are_no_host_are_refused(entry):
    with pytest.raises(ValueError, match="NEXUSKV_WORKER_HOSTS"):
        HostAllowList([entry], VARIABLE)
