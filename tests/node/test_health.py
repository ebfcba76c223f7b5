"""What probes say of those that do not answer is what kubelets say: people look for it by these words."""

import asyncio
import socket

import msgspec
import pytest

from hekla.api.containers import Container, Probe
from hekla.node.health import Place, _late, ask, port_of

AT = Place("127.0.0.1")
CONTAINER = msgspec.convert({"name": "main", "ports": [{"name": "web", "containerPort": 80}]}, Container)
LATE = [
    ({"exec": {"command": ["sh", "-c", "sleep 5"]}}, 'command timed out: "sh -c sleep 5" timed out after 2s'),
    (
        {"httpGet": {"port": "web", "path": "ready"}},
        'Get "http://127.0.0.1:80/ready": context deadline exceeded (Client.Timeout exceeded while awaiting headers)',
    ),
    ({"tcpSocket": {"port": 7}}, "dial tcp 127.0.0.1:7: i/o timeout"),
    ({"grpc": {"port": 7}}, "timeout: health rpc did not complete within 2s"),
]


@pytest.mark.parametrize(("asked", "said"), LATE)
def test_whoever_is_late_is_told_so_by_how_he_was_asked(asked, said):
    assert _late(msgspec.convert(asked, Probe), CONTAINER, AT, 2) == said


def test_where_nobody_listens_the_address_is_told():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        port = held.getsockname()[1]
        where = f"dial tcp 127.0.0.1:{port}: connect: connection refused"
        for asked, said in (
            ({"httpGet": {"port": port, "scheme": "HTTPS"}}, f'Get "https://127.0.0.1:{port}/": {where}'),
            ({"tcpSocket": {"port": port}}, where),
            ({"grpc": {"port": port}}, where),
        ):
            probe = msgspec.convert(asked | {"timeoutSeconds": 60}, Probe)
            answer = asyncio.run(ask(probe, CONTAINER, AT, exec=None))
            assert (answer.is_healthy, answer.message) == (False, said)


def test_a_port_is_a_number_or_the_name_of_one():
    assert [port_of(port, CONTAINER) for port in (7, "7", "web", "other", "\xb2", None)] == [7, 7, 80, 0, 0, 0]
