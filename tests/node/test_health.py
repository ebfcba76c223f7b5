"""What probes say of those that do not answer is what kubelets say: people look for it by these words."""

import asyncio
import socket

import msgspec
import pytest

from hekla.api.containers import Container, LifecycleHandler, Probe
from hekla.node.health import _late, ask, port_of, run_hook
from hekla.node.reaching import Place

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


class Server:
    """Answers each path with what is written for it, and remembers what it was asked."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head)
        path = head.split()[1]
        told = self.answers.get(path, "404 Not Found\r\n\r\n")
        writer.write(f"HTTP/1.1 {told.replace('PORT', str(self.port))}".encode())
        writer.close()

    async def probe(self, path="/", **more):
        asked = {"httpGet": {"port": self.port, "path": path, **more}, "timeoutSeconds": 60}
        return await ask(msgspec.convert(asked, Probe), CONTAINER, AT, exec=None)

    async def hook(self, path="/", **more):
        handler = msgspec.convert({"httpGet": {"port": self.port, "path": path, **more}}, LifecycleHandler)
        return await run_hook(handler, CONTAINER, AT, exec=None, within_s=60)


def asked_of(answers, story):
    async def whole():
        async with Server(answers) as server:
            return await story(server), server

    return asyncio.run(whole())


def moved(location, status="302 Found", body=""):
    return f"{status}\r\nContent-Length: {len(body)}\r\nLocation: {location}\r\n\r\n{body}"


OK = "200 OK\r\nContent-Length: 2\r\n\r\nup"


def test_a_redirect_to_the_same_host_is_followed_and_the_last_answer_counts():
    answers = {
        "/": moved("/a?x=1"), "/a?x=1": moved("http://127.0.0.1:PORT/d/b", "301 Moved"), "/d/b": moved("c", "307 X"),
        "/d/c": OK, "/ill": moved("/gone"),
    }  # fmt: skip
    answer, server = asked_of(answers, lambda server: server.probe())
    assert (answer.is_healthy, answer.has_warning, answer.message) == (True, False, "up")
    assert [head.split()[1] for head in server.asked] == ["/", "/a?x=1", "/d/b", "/d/c"]
    answer, _ = asked_of(answers, lambda server: server.probe("ill"))
    assert (answer.is_healthy, answer.message) == (False, "HTTP probe failed with statuscode: 404")


@pytest.mark.parametrize("location", ["http://localhost:1/", "//example.com/x", "ftp://example.com"])
def test_a_redirect_to_another_host_is_healthy_with_a_warning_and_nobody_is_asked(location):
    answer, _ = asked_of({"/": moved(location, body="go there")}, lambda server: server.probe())
    assert (answer.is_healthy, answer.has_warning) == (True, True)
    assert answer.message == "Probe terminated redirects, Response body: go there"


@pytest.mark.parametrize(
    "head", ["302 Found\r\n\r\n", "304 Not Modified\r\nContent-Length: 9\r\n\r\n", "300 X\r\n\r\n"]
)
def test_a_redirect_that_leads_nowhere_is_a_warning_too(head):
    answer, _ = asked_of({"/": head}, lambda server: server.probe())
    assert (answer.is_healthy, answer.has_warning) == (True, True)


def test_ten_questions_are_the_most():
    answer, server = asked_of({"/": moved("/")}, lambda server: server.probe())
    assert (answer.is_healthy, answer.message) == (False, 'Get "/": stopped after 10 redirects')
    assert len(server.asked) == 10
    ways = {f"/{number}": moved(f"/{number + 1}") for number in range(9)} | {"/9": OK}
    answer, server = asked_of(ways, lambda server: server.probe("/0"))
    assert (answer.is_healthy, len(server.asked)) == (True, 10)


@pytest.mark.parametrize("location", ["http://127.0.0.1:99999/", "http://[::1/", "gopher://127.0.0.1/"])
def test_a_redirect_that_is_no_address_is_a_failure_with_a_sentence(location):
    answer, server = asked_of({"/": moved(location)}, lambda server: server.probe())
    assert (answer.is_healthy, len(server.asked)) == (False, 1)
    assert answer.message.startswith('Get "')


def test_a_name_given_for_the_server_goes_along_a_relative_redirect_alone():
    headers = {"httpHeaders": [{"name": "host", "value": "shop.example"}, {"name": "X-A", "value": "1"}]}
    answers = {"/": moved("/a"), "/a": moved("http://127.0.0.1:PORT/b"), "/b": OK}
    _, server = asked_of(answers, lambda server: server.probe(**headers))
    hosts = [[line for line in head.splitlines() if line.lower().startswith("host:")] for head in server.asked]
    assert hosts == [["Host: shop.example"], ["Host: shop.example"], [f"Host: 127.0.0.1:{server.port}"]]
    assert all("X-A: 1" in head for head in server.asked)


def test_no_header_and_no_path_of_a_probe_writes_a_second_request():
    bad = {"httpHeaders": [{"name": "X-A", "value": "1\r\n\r\nPOST / HTTP/1.1"}]}
    answer, server = asked_of({"/": OK}, lambda server: server.probe(**bad))
    assert "invalid header field value" in answer.message
    assert server.asked == []
    _, server = asked_of({}, lambda server: server.probe("/a b\r\nX: y%zz%20"))
    assert server.asked[0].splitlines()[0] == "GET /a%20b%0D%0AX:%20y%25zz%20 HTTP/1.1"


@pytest.mark.parametrize(
    "told", ["\r\n\r\n", "abc\r\n\r\n", "200 OK\r\nContent-Length: 5\r\n\r\nab", f"200 OK\r\nX: {'x' * 90000}\r\n\r\n",
             "103 Early\r\n\r\n" + "HTTP/1.1 103 Early\r\n\r\n" * 9, "\xb2\xb2 OK\r\n\r\n", "200 OK\r\n" + "X: y\r\n" * 9000],
)  # fmt: skip
def test_what_is_no_answer_is_a_failure_with_a_sentence(told):
    answer, _ = asked_of({"/": told}, lambda server: server.probe())
    assert (answer.is_healthy, answer.message[:5]) == (False, 'Get "')


def test_what_comes_before_the_answer_is_passed_over():
    answer, _ = asked_of({"/": f"103 Early Hints\r\n\r\nHTTP/1.1 {OK}"}, lambda server: server.probe())
    assert (answer.is_healthy, answer.message) == (True, "up")


def test_a_hook_is_content_with_any_answer_and_follows_redirects_too():
    answers = {"/": moved("/a"), "/a": "500 Oops\r\n\r\n"}
    answer, server = asked_of(answers, lambda server: server.hook())
    assert (answer.is_healthy, len(server.asked)) == (True, 2)
    assert "User-Agent: kube-lifecycle/1.36" in server.asked[0]


def test_a_hook_by_https_to_a_server_without_it_is_asked_in_plain_http():
    async def story():
        asked = []

        async def serve(reader, writer):
            begin = await reader.read(65536)
            asked.append(begin)
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        headers = [{"name": "Authorization", "value": "Bearer x"}]
        handler = {"httpGet": {"port": port, "scheme": "HTTPS", "httpHeaders": headers}}
        answer = await run_hook(msgspec.convert(handler, LifecycleHandler), CONTAINER, AT, exec=None, within_s=60)
        probe = msgspec.convert({"httpGet": {"port": port, "scheme": "HTTPS"}, "timeoutSeconds": 60}, Probe)
        refused = await ask(probe, CONTAINER, AT, exec=None)
        server.close()
        return answer, asked, refused

    answer, asked, refused = asyncio.run(story())
    assert answer.is_healthy
    assert asked[1].startswith(b"GET / HTTP/1.1")
    assert b"Bearer" not in asked[1]
    assert not refused.is_healthy
    assert "server gave HTTP response to HTTPS client" in refused.message


@pytest.mark.parametrize("host", ["x" * 64, "a..b", "%zz\u0000"])
@pytest.mark.parametrize("way", ["tcpSocket", "httpGet"])
def test_a_host_that_is_no_name_is_an_answer_and_no_failure_of_the_node(way, host):
    # the hook was tried again for ever, beside the log, and the pod never heard of it
    probe = msgspec.convert({way: {"port": 7, "host": host}, "timeoutSeconds": 60}, Probe)
    answer = asyncio.run(ask(probe, CONTAINER, AT, exec=None))
    assert not answer.is_healthy
    assert answer.message
