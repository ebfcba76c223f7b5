"""How the calls are answered in which a container would meet the host's addresses."""

import socket
import struct

import pytest

from hekla.node.shim.address_calls import as_seen_inside, one_address, replacement

POD = "127.64.0.9"


def v4(host: str, port: int, family: int = socket.AF_INET) -> bytes:
    return struct.pack("=H", family) + port.to_bytes(2, "big") + socket.inet_aton(host) + bytes(8)


def v6(host: str, port: int) -> bytes:
    return (
        struct.pack("=H", socket.AF_INET6)
        + port.to_bytes(2, "big")
        + bytes(4)
        + socket.inet_pton(socket.AF_INET6, host)
        + bytes(4)
    )


@pytest.mark.parametrize(
    ("wanted", "becomes"),
    [
        (v4("0.0.0.0", 80), (POD, 80)),
        (v6("::", 80), (f"::ffff:{POD}", 80)),
        (v4("0.0.0.0", 0), None),
        (v6("::", 0), None),
        (v4("127.0.0.1", 80), None),
        (v6("::1", 80), None),
        (v4("0.0.0.0", 0, socket.AF_UNSPEC), (POD, 0)),
        (v4("0.0.0.0", 80, socket.AF_UNSPEC), None),
        (b"\x01\x00/a", None),
        (b"", None),
    ],
)
def test_wildcards_become_the_pods_address(wanted: bytes, becomes: tuple[str, int] | None) -> None:
    assert replacement(wanted, POD) == becomes


@pytest.mark.parametrize(
    ("host", "seen"),
    [
        ("192.0.2.2", POD),
        ("::ffff:192.0.2.2", POD),
        ("127.0.0.1", None),
        ("127.64.0.9", None),
        ("::ffff:127.64.0.9", None),
        ("0.0.0.0", None),
        ("::", None),
        ("::1", None),
        ("fe80::1", None),
    ],
)
def test_only_the_hosts_own_ipv4_addresses_are_hidden(host: str, seen: str | None) -> None:
    assert as_seen_inside(host, POD) == seen


def entry(name: str, host: str) -> bytes:
    return name.encode().ljust(16, b"\0") + v4(host, 0) + bytes(8)


def test_a_host_with_many_interfaces_shows_the_pods_address_once() -> None:
    host = entry("lo", "127.0.0.1") + entry("eth0", "192.0.2.2") + entry("docker0", "172.17.0.1")
    assert one_address(host, POD) == entry("lo", "127.0.0.1") + entry("eth0", POD)
    assert one_address(b"", POD) == b""
