import contextlib
import http.client
import itertools
import json
import socket
import ssl
from pathlib import Path

import pytest

MEGABYTE = 1 << 20
PATIENCE_S = 60


@contextlib.contextmanager
def connection(platform, *, rcvbuf=0):
    """A TLS connection by hand."""
    plain = socket.socket()
    if rcvbuf:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    plain.settimeout(PATIENCE_S)
    plain.connect(("127.0.0.1", platform.port))
    with plain, platform.tls().wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        yield secure


def first_line(secure):
    """The status line, however much was still being sent when it came."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        return secure.recv(100).split(b"\r\n")[0]
    return b""


# ---- too much


def test_a_body_of_100_megabytes_is_refused_before_it_is_read(platform, namespace):
    before = platform.resident_bytes
    with connection(platform) as secure:
        head = (
            f"POST /api/v1/namespaces/{namespace}/configmaps HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        )
        secure.sendall(f"{head}content-length: {100 * MEGABYTE}\r\n\r\n".encode())
        assert first_line(secure).startswith(b"HTTP/1.1 413")
    assert platform.resident_bytes - before < 32 * MEGABYTE


def test_a_body_without_a_length_is_cut_at_its_bound(platform, namespace):
    before, piece = platform.resident_bytes, b"100000\r\n" + b" " * MEGABYTE + b"\r\n"
    with connection(platform) as secure:
        head = (
            f"POST /api/v1/namespaces/{namespace}/configmaps HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        secure.sendall(head.encode())
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            for _ in range(100):
                secure.sendall(piece)
        assert first_line(secure)[:12] in (b"HTTP/1.1 413", b"")
    assert platform.resident_bytes - before < 64 * MEGABYTE


def test_a_body_over_kubernetes_bound_is_413_with_a_status(platform, namespace):
    body = {"metadata": {"name": "c"}, "data": {"text": "x" * (4 * MEGABYTE)}}
    answer = platform.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
    assert (answer.status, answer.document["reason"]) == (413, "RequestEntityTooLarge")


NESTED = {
    "object": b'{"metadata":{"name":"c"},"data":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
    "array": b'{"metadata":{"name":"c","finalizers":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "unclosed": b"[" * 100_000,
    "unclosed objects": b'{"a":' * 100_000,
}  # fmt: skip


WRITES = [
    ("POST", "", "application/json"),
    ("POST", "", "application/yaml"),
    ("PATCH", "/kept", "application/merge-patch+json"),
    ("PATCH", "/kept", "application/strategic-merge-patch+json"),
    ("PATCH", "/kept", "application/json-patch+json"),
    ("PATCH", "/kept?fieldManager=x", "application/apply-patch+yaml"),
    ("DELETE", "/nothing", "application/json"),
]
COLLECTIONS = ["/api/v1/namespaces/{}/configmaps", "/apis/batch.volcano.sh/v1alpha1/namespaces/{}/jobs"]


@pytest.mark.parametrize("body", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize(("method", "tail", "content_type"), WRITES)
@pytest.mark.parametrize("collection", COLLECTIONS)
def test_a_document_nested_a_hundred_thousand_deep_is_refused(
    platform, namespace, collection, method, tail, content_type, body
):
    path = collection.format(namespace)
    answer = platform.ask(method, path + tail, body, Content_Type=content_type)
    assert 400 <= answer.status < 500
    assert answer.document["message"]


def test_a_chain_of_yaml_aliases_does_not_unfold(platform, namespace):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    before = platform.resident_bytes
    body = "\n".join(["metadata: {name: c}", *lines]).encode()
    answer = platform.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", body, Content_Type="application/yaml")
    assert answer.status == 400
    assert platform.resident_bytes - before < 64 * MEGABYTE


def test_a_quantity_of_a_million_digits_is_refused(platform, namespace):
    # Python itself takes seconds for such a number
    spec = {"hard": {"cpu": "9" * 1_000_000}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    answer = platform.ask("POST", path, {"metadata": {"name": "q"}, "spec": spec})
    assert answer.status in (400, 422)


@pytest.mark.parametrize("digits", [25, 400, 10_000])
@pytest.mark.parametrize(("method", "tail", "content_type"), WRITES)
@pytest.mark.parametrize("collection", ["/api/v1/namespaces/{}/pods", COLLECTIONS[1]])
def test_a_number_of_ten_thousand_digits_is_refused(
    platform, namespace, collection, method, tail, content_type, digits
):
    body = b'{"metadata":{"name":"p"},"spec":{"activeDeadlineSeconds":' + b"9" * digits
    body += b',"minAvailable":' + b"9" * digits + b"}}"
    answer = platform.ask(method, collection.format(namespace) + tail, body, Content_Type=content_type)
    assert answer.status in (400, 404, 415, 422)
    assert answer.document["message"]


@pytest.mark.parametrize("size", [100_000, MEGABYTE])
@pytest.mark.parametrize("kind", ["labelSelector", "fieldSelector"])
def test_a_selector_of_a_megabyte_is_refused(platform, namespace, kind, size):
    answer = platform.ask("GET", f"/api/v1/namespaces/{namespace}/pods?{kind}={'a%3Db,' * (size // 6)}")
    assert answer.status in (400, 414)


def test_a_selector_of_many_requirements_is_refused_in_a_body_too(platform, namespace):
    expressions = [{"key": f"k{n}", "operator": "In", "values": ["x"] * 100} for n in range(2000)]
    spec = {"podSelector": {"matchExpressions": expressions}}
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    # allowed or not, it is answered
    assert platform.ask("POST", path, {"metadata": {"name": "n"}, "spec": spec}).status in (201, 400, 404, 413, 422)


@pytest.mark.parametrize(
    "head",
    [
        "x-large: " + "y" * MEGABYTE,
        "\r\n".join(f"x-{n}: y" for n in range(5000)),
        "authorization: Bearer " + "z" * 100_000,
        "impersonate-user: " + "u" * 60_000,
    ],
    ids=["one large", "many", "token", "impersonation"],
)
def test_huge_headers_are_refused(platform, head):
    with connection(platform) as secure:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            secure.sendall(f"GET /api/v1/nodes HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode())
        assert first_line(secure)[:12] in (
            b"HTTP/1.1 431",
            b"HTTP/1.1 401",
            b"HTTP/1.1 403",
            b"HTTP/1.1 400",
            b"HTTP/1.1 200",
            b"",
        )


# ---- what is no request


@pytest.mark.parametrize(
    "data",
    [b"\x00" * 4096, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\xff" * 5000, bytes(range(256)) * 64],
    ids=["zeros", "plain HTTP", "a broken hello", "every byte"],
)
def test_garbage_instead_of_tls_ends_that_connection_only(platform, data):
    plain = socket.create_connection(("127.0.0.1", platform.port), timeout=PATIENCE_S)
    with plain, contextlib.suppress(ConnectionError):
        plain.sendall(data)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(4096):
            pass


@pytest.mark.parametrize(
    "data",
    [b"\x00" * 100, b"\r\n" * 5000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
     b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", "GET /\u00e9 HTTP/1.1\r\n\r\n".encode()],
)  # fmt: skip
def test_garbage_inside_tls_is_400_or_the_end(platform, data):
    with connection(platform) as secure:
        secure.sendall(data)
        secure.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError, ssl.SSLError):
            secure.unwrap()


PATHS = [
    "/api/v1/namespaces/%00/pods", "/api/v1/namespaces/..%2f..%2fetc/pods", "/api//v1", "/apis/%ff/%fe", "/api/v1/pods/%0d%0ax",
    "/apis/a/b/c/d/e/f/g/h/i/j", "/" + "a/" * 5000, "/api/v1/namespaces/x/pods/y/log?tailLines=9999999999999999999",
    "/api/v1/pods?limit=-1", "/api/v1/pods?limit=1e9", "/api/v1/pods?resourceVersion=-5", "/api/v1/pods?continue=%00%00",
    "/api/v1/pods?watch=true&timeoutSeconds=-1&resourceVersion=x",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH", "BREW"])
def test_odd_paths_and_queries_are_answered(platform, method, path):
    with connection(platform) as secure:
        secure.sendall(f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}".encode())
        line = first_line(secure)
    assert line.startswith(b"HTTP/1.1 "), line
    assert not line.startswith(b"HTTP/1.1 500"), line


# ---- too many, too slow


def open_files(platform):
    return len(list(Path(f"/proc/{platform.pid}/fd").iterdir()))


def test_a_thousand_connections_opened_and_dropped_leave_nothing_behind(platform):
    before = open_files(platform)
    for number in range(1000):
        dropped = socket.create_connection(("127.0.0.1", platform.port), timeout=PATIENCE_S)
        if number % 3 == 1:
            dropped.sendall(b"\x16\x03\x01")  # the beginning of a handshake
        if number % 3 == 2:
            dropped.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        dropped.close()
    # each question is answered after what came before it was handled
    counts = (platform.ask("GET", "/readyz").status == 200 and open_files(platform) for _ in range(2000))
    assert any(count <= before + 5 for count in counts)


def test_requests_that_never_end_do_not_keep_others_waiting(platform, namespace):
    with contextlib.ExitStack() as stack:
        for number in range(200):
            slow = stack.enter_context(connection(platform))
            slow.sendall(b"GET /api/v1/nodes HTTP/1.1\r\nhost: x\r\nx-slow: " + b"a" * number)
        for number in range(20):
            body = {"metadata": {"name": f"c{number}"}}
            assert platform.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", body).status == 201


# ---- watches


def watch_by_hand(platform, stack, target, **options):
    secure = stack.enter_context(connection(platform, **options))
    secure.sendall(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    return secure


def write_many(platform, namespace, count, size, first=0):
    """Over one connection: the watcher is to be flooded, not the handshake measured."""
    keep = http.client.HTTPSConnection("127.0.0.1", platform.port, context=platform.tls(), timeout=PATIENCE_S)
    for number in range(first, first + count):
        body = json.dumps({"metadata": {"name": f"c{number}"}, "data": {"text": "x" * size}})
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        keep.request("POST", path, body, {"Content-Type": "application/json"})
        answer = keep.getresponse()
        answer.read()
        assert answer.status == 201
    keep.close()


def test_a_watcher_that_never_reads_is_cut_off_and_nobody_else_notices(platform, namespace):
    target = f"/api/v1/namespaces/{namespace}/configmaps?watch=true"
    count, size = 400, 200_000
    other = http.client.HTTPSConnection("127.0.0.1", platform.port, context=platform.tls(), timeout=PATIENCE_S)
    other.request("GET", f"/api/v1/namespaces/{namespace}/configmaps?watch=true&labelSelector=none%3Dsuch")
    quiet = other.getresponse()
    with contextlib.ExitStack() as stack:
        slow = watch_by_hand(platform, stack, target, rcvbuf=4096)
        slow.recv(10)  # the watch has begun
        before = platform.resident_bytes
        write_many(platform, namespace, count, size)
        # what is stored stays in memory; what the slow one has not read may not stay too
        assert platform.resident_bytes - before < count * size * 1.6 + 64 * MEGABYTE
        seen = 0
        with contextlib.suppress(OSError):
            while piece := slow.recv(MEGABYTE):
                seen += len(piece)
        assert seen < count * size, "it was cut off before the end"
    body = {"metadata": {"name": "last", "labels": {"none": "such"}}}
    assert platform.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", body).status == 201
    assert json.loads(next(quiet))["object"]["metadata"]["name"] == "last"
    other.close()


def test_a_watcher_that_was_cut_off_resumes_or_is_told_410(platform, namespace):
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    since = platform.ask("GET", path).document["metadata"]["resourceVersion"]
    write_many(platform, namespace, 50, 10)
    resumed = http.client.HTTPSConnection("127.0.0.1", platform.port, context=platform.tls(), timeout=PATIENCE_S)
    resumed.request("GET", f"{path}?watch=true&resourceVersion={since}")
    answer = resumed.getresponse()
    events = [json.loads(line) for line in itertools.islice(answer, 50)]
    assert [event["object"]["metadata"]["name"] for event in events] == [f"c{number}" for number in range(50)]
    resumed.close()
    oldest = platform.ask("GET", f"{path}?watch=true&resourceVersion=1&timeoutSeconds=1")
    assert oldest.status == 410 or (b"ADDED" in oldest.body) or (b'"code":410' in oldest.body)
