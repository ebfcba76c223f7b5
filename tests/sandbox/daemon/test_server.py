"""The daemon as a process, spoken to over its socket in every dialect; secrets stay its own."""

import asyncio
import base64
import contextlib
import hashlib
import http.client
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.parse import quote

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hekla.sandbox.daemon import http as http_module
from hekla.sandbox.daemon.http import HttpServer

TOKEN = "access-token-of-this-sandbox"
KEY = rsa.generate_private_key(65537, 2048)
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def gone(pid):
    """Wait until a process has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        with os.fdopen(descriptor, "rb"):
            assert select.select([descriptor], [], [], 30)[0], f"process {pid} is alive"


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the daemon's socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self._path)


class Daemon:
    """One running daemon."""

    def __init__(self, path, workspace, process):
        self.path = path
        self.workspace = workspace
        self.process = process

    def send(self, method, path, body=None, **headers):
        """A request whose answer is read whole: status, bytes."""
        connection = UnixConnection(self.path)
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def call(self, path, body, **headers):
        status, content = self.send(
            "POST", path, body, content_type="application/json", x_access_token=TOKEN, **headers
        )
        return status, json.loads(content)

    def stream(self, path, body, **headers):
        """A Connect stream: its messages as they come."""
        data = json.dumps(body).encode()
        connection = UnixConnection(self.path)
        framed = struct.pack(">BI", 0, len(data)) + data
        connection.request(
            "POST", path, framed, {"content-type": "application/connect+json", "x-access-token": TOKEN, **headers}
        )
        answer = connection.getresponse()
        try:
            while head := answer.read(5):
                message = json.loads(answer.read(int.from_bytes(head[1:], "big")))
                yield ("end" if head[0] & 2 else "message"), message
        finally:
            connection.close()

    def picod(self, path, body, **claims):
        status, content = self.send("POST", path, body, authorization=f"Bearer {token(**claims)}")
        return status, json.loads(content)

    def form(self, path, body):
        kind = "multipart/form-data; boundary=b"
        status, content = self.send("POST", path, body.encode(), content_type=kind, authorization=f"Bearer {token()}")
        return status, json.loads(content)


def token(**claims):
    now = time.time()
    return jwt.encode({"iat": now, "exp": now + 60, "session_id": "s1", "aud": "sandbox-1", **claims}, KEY, "RS256")


@contextmanager
def daemon_at(folder, **secrets):
    workspace = folder / "w"
    workspace.mkdir()
    path = str(folder / "d.sock")
    read, write = os.pipe()
    os.write(write, json.dumps(secrets).encode())
    os.close(write)
    arguments = ["--listen", f"unix:{path}", "--workspace", str(workspace), "--secrets-fd", str(read)]
    process = subprocess.Popen(
        [sys.executable, "-m", "hekla.sandbox.daemon.server", *arguments],
        pass_fds=[read],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(read)
    try:
        assert process.stdout.readline() == "listening\n"
        yield Daemon(path, workspace, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with daemon_at(
        tmp_path_factory.mktemp("d"), access_token=TOKEN, public_key=PUBLIC, audience="sandbox-1", session="s1"
    ) as one:
        yield one


def started(daemon, *argv, **more):
    """Run a command to its end over E2B's dialect: output by stream, and the end."""
    body = {"process": {"cmd": argv[0], "args": list(argv[1:]), **more.pop("process", {})}, **more.pop("body", {})}
    output, end = {}, None
    for kind, message in daemon.stream("/process.Process/Start", body, **more):
        event = message.get("event", {})
        for name, data in event.get("data", {}).items():
            output[name] = output.get(name, b"") + base64.b64decode(data)
        end = event.get("end", end)
        if kind == "end" and "error" in message:
            end = message["error"]
    return output, end


def test_a_command_streams_and_ends_as_e2b_has_it(daemon):
    output, end = started(daemon, "/bin/sh", "-c", "echo out; echo err >&2; exit 3")
    assert output == {"stdout": b"out\n", "stderr": b"err\n"}
    assert end == {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}


def test_a_command_whose_time_is_over_says_so(daemon):
    _, end = started(daemon, "sleep", "1000", **{"connect-timeout-ms": "50"})
    assert end["code"] == "deadline_exceeded"


def test_a_client_who_leaves_does_not_end_the_command_and_can_come_back(daemon):
    stream = daemon.stream("/process.Process/Start", {"process": {"cmd": "cat"}, "stdin": True, "tag": "t"})
    _, first = next(stream)
    pid = first["event"]["start"]["pid"]
    stream.close()
    again = daemon.stream("/process.Process/Connect", {"process": {"tag": "t"}})
    assert next(again)[1] == {"event": {"start": {"pid": pid}}}
    selector = {"process": {"pid": pid}}
    assert (
        daemon.call("/process.Process/SendInput", {**selector, "input": {"stdin": base64.b64encode(b"hi").decode()}})[0]
        == 200
    )
    assert next(again)[1] == {"event": {"data": {"stdout": base64.b64encode(b"hi").decode()}}}
    assert daemon.call("/process.Process/List", {})[1]["processes"][0]["tag"] == "t"
    assert daemon.call("/process.Process/CloseStdin", selector)[0] == 200
    assert next(again)[1]["event"]["end"]["exitCode"] == 0
    assert daemon.call("/process.Process/SendSignal", {"process": {"pid": 1 << 22}, "signal": "SIGNAL_SIGKILL"}) == (
        404,
        {"code": "not_found", "message": f"there is no process {1 << 22}"},
    )


def test_a_terminal_is_resized_and_killed(daemon):
    stream = daemon.stream(
        "/process.Process/Start",
        {"process": {"cmd": "sleep", "args": ["1000"]}, "pty": {"size": {"cols": 80, "rows": 24}}},
    )
    pid = next(stream)[1]["event"]["start"]["pid"]
    assert (
        daemon.call("/process.Process/Update", {"process": {"pid": pid}, "pty": {"size": {"cols": 10, "rows": 5}}})[0]
        == 200
    )
    assert daemon.call("/process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})[0] == 200
    (end,) = [message["event"]["end"] for _, message in stream if "end" in message.get("event", {})]
    assert (end["exited"], end["status"]) == (False, "signal: killed")


def test_files_as_e2b_has_them(daemon, tmp_path):
    path = str(tmp_path / "a" / "b.txt")
    status, written = daemon.send(
        "POST",
        f"/files?path={path}",
        b"hello",
        content_type="application/octet-stream",
        x_access_token=TOKEN,
        x_metadata_kind="note",
    )
    assert (status, json.loads(written)[0]["path"]) == (200, path)
    assert daemon.send("GET", f"/files?path={path}", x_access_token=TOKEN) == (200, b"hello")
    _, found = daemon.call("/filesystem.Filesystem/Stat", {"path": path})
    assert (found["entry"]["type"], found["entry"]["size"], found["entry"]["permissions"]) == (
        "FILE_TYPE_FILE",
        "5",
        "-rw-r--r--",
    )
    assert daemon.call("/filesystem.Filesystem/MakeDir", {"path": str(tmp_path / "a")})[0] == 409
    assert daemon.call("/filesystem.Filesystem/Move", {"source": path, "destination": str(tmp_path / "c")})[0] == 200
    _, listed = daemon.call("/filesystem.Filesystem/ListDir", {"path": str(tmp_path), "depth": 2})
    assert [one["name"] for one in listed["entries"]] == ["a", "c"]
    assert daemon.call("/filesystem.Filesystem/Remove", {"path": str(tmp_path / "c")}) == (200, {})
    assert daemon.call("/filesystem.Filesystem/Remove", {"path": str(tmp_path / "c")}) == (200, {})
    assert daemon.call("/filesystem.Filesystem/Stat", {"path": path})[0] == 404


def test_several_files_come_in_one_form(daemon, tmp_path):
    parts = [
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n%b\r\n'
        % (str(tmp_path / name).encode(), data)
        for name, data in (("one", b"1"), ("two", b"\r\n--not\r\n" + os.urandom(100_000)))
    ]
    status, written = daemon.send(
        "POST",
        "/files",
        b"".join(parts) + b"--B--\r\n",
        content_type="multipart/form-data; boundary=B",
        x_access_token=TOKEN,
    )
    assert (status, [one["name"] for one in json.loads(written)]) == (200, ["one", "two"])
    assert (tmp_path / "one").read_bytes() == b"1"
    assert len((tmp_path / "two").read_bytes()) == 100_009


@pytest.mark.parametrize("name", ["a\r\nset-cookie: b", "new\nline", 'quo"te\\', "\x7f", "ü"])
def test_a_files_name_makes_no_header(daemon, tmp_path, name):
    """Code inside names files; one with a line end in it answered with headers of its own, and the gateway read no HTTP."""
    (tmp_path / name).write_text("data")
    connection = UnixConnection(daemon.path)
    connection.request("GET", f"/files?path={quote(str(tmp_path / name))}", headers={"x-access-token": TOKEN})
    answer = connection.getresponse()
    assert (answer.status, answer.read(), answer.getheader("set-cookie")) == (200, b"data", None)
    assert answer.getheader("content-disposition").count('"') == 2
    connection.close()


def test_a_directory_is_watched(daemon, tmp_path):
    (tmp_path / "sub").mkdir()
    stream = daemon.stream("/filesystem.Filesystem/WatchDir", {"path": str(tmp_path), "recursive": True})
    assert next(stream)[1] == {"start": {}}
    (tmp_path / "sub" / "new").touch()
    assert next(stream)[1] == {"filesystem": {"name": "sub/new", "type": "EVENT_TYPE_CREATE"}}
    stream.close()
    _, made = daemon.call("/filesystem.Filesystem/CreateWatcher", {"path": str(tmp_path)})
    (tmp_path / "x").touch()
    events = []
    while not events:
        events = daemon.call("/filesystem.Filesystem/GetWatcherEvents", made)[1]["events"]
    assert events[0] == {"name": "x", "type": "EVENT_TYPE_CREATE"}
    assert daemon.call("/filesystem.Filesystem/RemoveWatcher", made)[0] == 200
    assert daemon.call("/filesystem.Filesystem/RemoveWatcher", made)[0] == 404


def test_a_watch_that_cannot_see_all_says_so_to_who_listens_and_to_who_asks(daemon, tmp_path):
    """16,385 directories are one more than a watch has, and 10,001 events one more than wait."""
    (tmp_path / "flat").mkdir()
    _, made = daemon.call("/filesystem.Filesystem/CreateWatcher", {"path": str(tmp_path / "flat")})
    for number in range(16_384):
        (tmp_path / "flat" / f"{number}").mkdir()
    asked = {"path": str(tmp_path / "flat"), "recursive": True}
    ((what, end),) = daemon.stream("/filesystem.Filesystem/WatchDir", asked)
    assert (what, end["error"]["code"]) == ("end", "internal")
    assert " is not watched: " in end["error"]["message"]
    status, refused = daemon.call("/filesystem.Filesystem/CreateWatcher", asked)
    assert (status, refused) == (500, end["error"])
    status, told = 200, {}
    while status == 200:
        status, told = daemon.call("/filesystem.Filesystem/GetWatcherEvents", made)
    assert (status, told) == (
        500,
        {"code": "internal", "message": "more than 10000 events wait, and nobody takes them"},
    )


def test_cells_run_as_the_code_interpreter_has_it(daemon):
    def cell(code, **more):
        status, lines = daemon.send("POST", "/execute", {"code": code, **more})
        assert status == 200
        return [json.loads(line) for line in lines.splitlines()]

    assert [one["type"] for one in cell("print(1, end=''); 2")] == [
        "stdout",
        "result",
        "number_of_executions",
        "end_of_execution",
    ]
    _, made = daemon.send("POST", "/contexts", {"cwd": "/usr"})
    context = json.loads(made)["id"]
    assert cell("import os; os.getcwd()", context_id=context)[0]["text"] == "'/usr'"
    assert daemon.send("POST", f"/contexts/{context}/restart")[0] == 204
    assert cell("os", context_id=context)[0]["name"] == "NameError"
    assert daemon.send("DELETE", f"/contexts/{context}")[0] == 204
    assert daemon.send("DELETE", f"/contexts/{context}")[0] == 404


def test_commands_and_files_as_agentcube_has_them(daemon):
    status, ran = daemon.picod(
        "/api/execute", {"command": ["sh", "-c", "echo $A; pwd; exit 2"], "env": {"A": "b"}, "working_dir": "x/y"}
    )
    assert (status, ran["stdout"], ran["exit_code"]) == (200, f"b\n{daemon.workspace}/x/y\n", 2)
    assert daemon.picod("/api/execute", {"command": ["sleep", "9"], "timeout": "50ms"})[1]["exit_code"] == 124
    assert daemon.picod("/api/execute", {"command": ["no-such-program"]})[1]["exit_code"] == 1
    assert daemon.picod("/api/execute", {"command": ["ls"], "timeout": "soon"})[0] == 400
    content = base64.b64encode(b"data").decode()
    status, written = daemon.picod("/api/files", {"path": "/f/g", "content": content, "mode": "0600"})
    assert (status, written["path"], written["size"], written["mode"]) == (200, "f/g", 4, "-rw-------")
    assert daemon.picod("/api/files", {"path": "../../etc/passwd", "content": content})[0] == 400


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "sandbox-2"}, "another sandbox"),
        ({"session_id": "s2"}, "another session"),
        ({"exp": 1}, "expired"),
        ({"exp": time.time() + 10**9}, "live too long"),
        ({"iat": time.time() + 86_400}, "not valid yet"),  # told at collection, long ago in a suite
    ],
)
def test_a_token_for_somebody_else_opens_nothing(daemon, claims, why):
    status, told = daemon.picod("/api/execute", {"command": ["id"]}, **claims)
    assert status == 401
    assert why in told["error"]


def test_a_token_is_believed_once(daemon):
    assert daemon.picod("/api/execute", {"command": ["true"]}, jti="one")[0] == 200
    assert daemon.picod("/api/execute", {"command": ["true"]}, jti="one")[0] == 401


def test_without_the_token_nothing_is_answered(daemon):
    for path in ("/process.Process/List", "/filesystem.Filesystem/Stat"):
        assert daemon.send("POST", path, {}, x_access_token="wrong")[0] == 401
    assert daemon.send("GET", "/files?path=/etc/passwd")[0] == 401
    assert daemon.send("GET", "/health")[0] == 204


def test_a_signed_address_opens_one_file_for_one_purpose(daemon, tmp_path):
    def signed(path, operation="read", expires=""):
        terms = [path, operation, "", TOKEN, *([expires] if expires else [])]
        digest = base64.b64encode(hashlib.sha256(":".join(terms).encode()).digest()).decode().rstrip("=")
        return f"/files?path={path}&signature=v1_{digest.replace('+', '%2B')}" + (
            f"&signature_expiration={expires}" if expires else ""
        )

    path = str(tmp_path / "f")
    (tmp_path / "f").write_text("x")
    assert daemon.send("GET", signed(path))[0] == 200
    assert daemon.send("GET", signed(path, expires=str(int(time.time()) + 60)))[0] == 200
    assert daemon.send("GET", signed(path, expires="1"))[0] == 401
    assert daemon.send("POST", signed(path), b"y")[0] == 401
    assert daemon.send("GET", signed("/etc/passwd").replace("/etc/passwd", path))[0] == 401


def test_a_cell_finds_no_secret_in_its_memory_or_environment(daemon):
    code = f"""
import re
word = re.compile({(TOKEN[:-1] + "[" + TOKEN[-1] + "]").encode()!r})
found = []
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
    for line in maps:
        start, end = (int(x, 16) for x in line.split()[0].split('-'))
        if line.split()[1].startswith('rw'):
            memory.seek(start)
            try: found += word.findall(memory.read(end - start))
            except OSError: pass
import os
found, [name for name in os.environ if 'KEY' in name or 'TOKEN' in name]
"""
    _, lines = daemon.send("POST", "/execute", {"code": code})
    assert json.loads(lines.splitlines()[0])["text"] == "([], [])"


def test_the_daemon_cannot_be_looked_into_by_its_own_user(daemon):
    """Its memory and descriptors belong to root from when it has secrets, whoever it runs as."""
    with contextlib.suppress(PermissionError), open(f"/proc/{daemon.process.pid}/environ", "rb") as file:  # root may
        assert TOKEN.encode() not in file.read()
    assert os.stat(f"/proc/{daemon.process.pid}/mem").st_uid == 0


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX : y\r\n\r\n", 400),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/9\r\n\r\n", 400),
        (b"POST /execute HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", 431),
        (b"POST /execute HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /execute HTTP/1.1\r\nContent-Length: 3\r\n\r\n[1]", 400),
        (b"DELETE /nothing/here HTTP/1.1\r\n\r\n", 404),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_closed(daemon, raw, status):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(30)
        one.connect(daemon.path)
        one.sendall(raw)
        answer = b""
        try:
            while piece := one.recv(65_536):
                answer += piece
        except ConnectionResetError:  # it did not read what came after
            pass
    assert answer.split()[1] == str(status).encode()


def test_an_end_by_signal_leaves_nothing_behind(tmp_path):
    with daemon_at(tmp_path, access_token=TOKEN) as daemon:
        stream = daemon.stream("/process.Process/Start", {"process": {"cmd": "sleep", "args": ["1000"]}})
        pid = next(stream)[1]["event"]["start"]["pid"]
        _, lines = daemon.send("POST", "/execute", {"code": "import os; os.getpid()"})
        kernel = json.loads(lines.splitlines()[0])["text"]
        stream.close()
    for one in (pid, kernel):
        gone(int(one))


def test_an_uploaded_file_is_told_as_written_and_never_under_the_name_it_was_written_by(daemon, tmp_path):
    def upload():
        headers = {"content_type": "application/octet-stream", "x_access_token": TOKEN}
        assert daemon.send("POST", f"/files?path={tmp_path}/a.txt", b"text", **headers)[0] == 200

    def told():
        events = []
        while not events or events[-1][1] != "EVENT_TYPE_WRITE":
            found = daemon.call("/filesystem.Filesystem/GetWatcherEvents", made)[1]["events"]
            events += [(one["name"], one["type"]) for one in found]
        return events

    _, made = daemon.call("/filesystem.Filesystem/CreateWatcher", {"path": str(tmp_path)})
    upload()
    assert told() == [("a.txt", f"EVENT_TYPE_{kind}") for kind in ("CREATE", "CHMOD", "WRITE")]
    upload()
    assert told() == [("a.txt", "EVENT_TYPE_WRITE")]


def test_a_link_is_told_as_what_it_leads_to(daemon, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "broken").symlink_to("nowhere")
    link = daemon.call("/filesystem.Filesystem/Stat", {"path": f"{tmp_path}/link"})[1]["entry"]
    assert (link["type"], link["symlinkTarget"]) == ("FILE_TYPE_FILE", f"{tmp_path}/file")
    broken = daemon.call("/filesystem.Filesystem/Stat", {"path": f"{tmp_path}/broken"})[1]["entry"]
    assert (broken["type"], broken["symlinkTarget"]) == ("FILE_TYPE_SYMLINK", "nowhere")


def test_a_body_that_nobody_wanted_leaves_the_connection_as_the_answer_promised(daemon):
    connection = UnixConnection(daemon.path)
    headers = {"content-type": "application/json", "x-access-token": TOKEN}
    connection.request("POST", "/contexts", b"{}", headers)
    context = json.loads(connection.getresponse().read())["id"]
    was = connection.sock
    for _ in range(2):  # its body says nothing, and the next request comes behind it
        connection.request("POST", f"/contexts/{context}/restart", b'{"nobody": "reads this"}', headers)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("connection"), answer.read()) == (204, "keep-alive", b"")
    assert connection.sock is was
    connection.close()


def test_a_refusal_is_read_by_who_still_sends(daemon):
    """Nothing more was read of a body above 1 MiB: its client met a reset, and the gateway said that the server inside had closed the connection."""
    for size in (100_000, 50_000_000):
        status, told = daemon.send("POST", "/files?path=/dev/null", bytes(size), x_access_token=TOKEN)
        assert (status, json.loads(told)["message"]) == (400, '"/dev/null" is a device and no file')


@pytest.mark.parametrize("body", [b"", b'{"nobody": "reads this"}'])
def test_who_waits_to_be_asked_for_his_body_is_not_asked_after_the_answer(tmp_path, body):
    """He read `100 Continue` as the answer to his next request."""

    async def handle(request, answer):
        await answer.whole(204)

    async def told():
        server = HttpServer(handle, lambda request, error: error.message)
        listener = await asyncio.get_running_loop().create_unix_server(server.protocol, str(tmp_path / "s"))
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 24\r\n\r\n" + body)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        listener.close()
        return answer

    assert asyncio.run(asyncio.wait_for(told(), 30)) == b"HTTP/1.1 204 No Content\r\nconnection: keep-alive\r\n\r\n"


def test_a_refusal_about_files_is_said_in_connects_word_and_one_of_plain_http_in_a_number(daemon, tmp_path):
    directory = str(tmp_path / "made")
    assert daemon.call("/filesystem.Filesystem/MakeDir", {"path": directory})[0] == 200
    status, told = daemon.call("/filesystem.Filesystem/MakeDir", {"path": directory})
    assert (status, told["code"]) == (409, "already_exists")
    status, told = daemon.send("GET", f"/files?path={directory}/none", x_access_token=TOKEN)
    assert (status, json.loads(told)["code"]) == (404, 404)


def test_a_cell_over_its_time_is_interrupted_and_a_time_that_is_none_is_refused(daemon):
    status, told = daemon.send(
        "POST", "/execute", {"code": "import time; time.sleep(600)", "timeout": 0.2}, x_access_token=TOKEN
    )
    assert status == 200
    assert "KeyboardInterrupt" in told.decode()
    status, told = daemon.send("POST", "/execute", {"code": "1", "timeout": -1}, x_access_token=TOKEN)
    assert status == 400
    assert "must be a number of seconds" in json.loads(told)["message"]


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/process.Process/SendInput", {"process": "x"}, '"process" is "x"; it must be an object'),
        ("/process.Process/SendInput", {"process": {"pid": -1}}, '"pid" is -1; it must be a whole number from 0 to 4294967295'),
        ("/process.Process/SendSignal", {"process": {"pid": 1}, "signal": []}, "signal [] is none of SIGNAL_SIGKILL, SIGNAL_SIGTERM"),
        ("/process.Process/Update", {"process": {"pid": 1}, "pty": {"size": {"cols": "x"}}}, '"cols" is "x"; it must be a whole number'),
        ("/filesystem.Filesystem/ListDir", {"path": "/", "depth": True}, '"depth" is true; it must be a whole number'),
        ("/filesystem.Filesystem/Stat", {"path": "\ud800"}, "the body has half a surrogate pair in it"),
        ("/execute", {"code": "1", "env_vars": "x"}, '"env_vars" is "x"; it must be an object of texts'),
        ("/execute", {"code": "1", "context_id": 5}, '"context_id" is 5; it must be a text'),
        ("/contexts", {"cwd": ["/"]}, '"cwd" is ["/"]; it must be a text'),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused_with_a_sentence(daemon, path, body, sentence):
    status, told = daemon.call(path, body)
    assert (status, told["code"]) == (400, "invalid_argument")
    assert told["message"].startswith(sentence)


@pytest.mark.parametrize(
    "body",
    [
        b'{"code": "1", "env_vars": {"A": "\xed\xa0\x80"}}',
        '{"code": "1", "env_vars": {"A": "\\ud800"}}'.encode("utf-16"),
    ],
    ids=["half a surrogate pair", "UTF-16"],
)
def test_a_body_that_is_not_utf_8_is_refused_and_the_interpreter_lives(daemon, body):
    assert daemon.send("POST", "/execute", {"code": "kept = 41"}, x_access_token=TOKEN)[0] == 200
    status, told = daemon.send("POST", "/execute", body, x_access_token=TOKEN)
    assert (status, json.loads(told)["message"].partition(":")[0]) == (400, "the body is not UTF-8")
    status, told = daemon.send("POST", "/execute", {"code": "kept + 1"}, x_access_token=TOKEN)
    assert b'"text": "42"' in told
    status, told = daemon.send("POST", "/filesystem.Filesystem/Stat", b'{"path": "\xed\xa0\x80"}', x_access_token=TOKEN)
    assert status == 400


@pytest.mark.parametrize(
    ("body", "headers", "sentence"),
    [
        ({"process": 5}, {}, '"process" is 5; it must be an object'),
        ({"process": {"cmd": "echo", "args": 5}}, {}, '"args" is 5; it must be a list of texts'),
        ({"process": {"cmd": "echo", "envs": {"A": 5}}}, {}, '"envs" is {"A": 5}; it must be an object of texts'),
        ({"process": {"cmd": "echo"}, "pty": {"size": [80]}}, {}, '"size" is [80]; it must be an object'),
        ({"process": {"cmd": "echo"}}, {"connect-timeout-ms": "9" * 11}, "the header connect-timeout-ms is "),
        ({"process": {"cmd": "echo"}}, {"connect-timeout-ms": "\xb2"}, "the header connect-timeout-ms is "),
    ],
)
def test_a_stream_that_is_asked_for_with_a_wrong_value_ends_with_a_sentence(daemon, body, headers, sentence):
    ((kind, told),) = daemon.stream("/process.Process/Start", body, **headers)
    assert (kind, told["error"]["code"]) == ("end", "invalid_argument")
    assert told["error"]["message"].startswith(sentence)


def test_agentcubes_commands_take_variables_and_directories_that_are_texts(daemon):
    for wrong in ({"env": "x"}, {"env": {"A": 5}}, {"working_dir": 5}, {"working_dir": "\ud800"}):
        status, told = daemon.picod("/api/execute", {"command": ["true"], **wrong})
        assert (status, told["code"], told["detail"]) == (400, 400, "invalid_argument"), wrong
    assert daemon.picod("/api/files", {"path": "f", "content": "\xe9"})[0] == 400


def test_a_user_whose_name_cannot_be_one_is_nobody(daemon):
    status, _ = daemon.send("GET", "/files?path=x&username=%00", x_access_token=TOKEN)
    assert status == 401


def test_a_fault_of_ours_is_answered_and_reported_for_a_closed_connection_says_that_there_is_no_sandbox(tmp_path):
    reported = []

    async def failing(request, answer):
        raise LookupError("a fault")

    async def told():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(type(context["exception"])))
        server = HttpServer(failing, lambda request, error: {"code": error.code, "message": error.message})
        listener = await loop.create_unix_server(server.protocol, str(tmp_path / "s"))
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await reader.read()
        writer.close()
        listener.close()
        return answer

    head, _, body = asyncio.run(told()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ")
    assert json.loads(body) == {"code": "internal", "message": "internal server error"}
    assert reported == [LookupError]


def test_a_form_is_understood_in_any_order_and_writes_nothing_but_its_file(daemon):
    (daemon.workspace / "l.txt").write_text("mine")
    field = '--b\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    file = '--b\r\nContent-Disposition: form-data; name="file"; filename="l.txt"\r\n\r\nhello\r\n'
    path, mode = field.format("path", "z/{}.txt"), field.format("mode", "0600")
    for name, parts in (("one", path + file + mode), ("two", file + path + mode), ("three", mode + file + path)):
        status, told = daemon.form("/api/files", parts.replace("{}", name) + "--b--\r\n")
        assert (status, told.get("path"), told.get("mode")) == (200, f"z/{name}.txt", "-rw-------"), (name, told)
        assert (daemon.workspace / f"z/{name}.txt").read_text() == "hello"
    assert (daemon.workspace / "l.txt").read_text() == "mine"
    assert daemon.form("/api/files", file + field.format("path", "../z") + "--b--\r\n")[0] == 400
    assert not [one for one in os.listdir(daemon.workspace) if one.startswith(".hekla")]
    assert daemon.form("/api/files", file + "--b--\r\n")[1]["path"] == "l.txt"


def test_the_router_is_told_agentcubes_health_and_e2bs_clients_theirs(daemon):
    status, told = daemon.send("GET", "/health", authorization="Bearer x")
    assert (status, json.loads(told)["service"]) == (200, "PicoD")
    assert daemon.send("GET", "/health", authorization="Basic dXNlcjo=")[0] == 204


@pytest.mark.parametrize("said", [b"", b"G", b"GET / HTTP/1.1\r\nhost"])
def test_who_says_no_whole_request_for_too_long_is_dropped(tmp_path, monkeypatch, said):
    monkeypatch.setattr(http_module, "IDLE_TIMEOUT_S" if not said else "HEAD_TIMEOUT_S", 0.0)
    handled = []

    async def handle(request, answer):
        handled.append(request.path)

    async def told():
        server = HttpServer(handle, lambda request, error: error.message)
        listener = await asyncio.get_running_loop().create_unix_server(server.protocol, str(tmp_path / "s"))
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(said)
        answer = await reader.read()
        writer.close()
        listener.close()
        return answer

    assert asyncio.run(asyncio.wait_for(told(), 30)) == b""
    assert not handled


def test_a_command_whose_client_leaves_is_ended_with_what_it_started(daemon, tmp_path):
    """AgentCube's dialect answers once, when it is over: nobody else hears of it."""
    os.mkfifo(tmp_path / "pids")
    body = json.dumps({"command": ["sh", "-c", f"sleep 600 & echo $! $$ > {tmp_path}/pids; wait"]})
    with contextlib.closing(UnixConnection(daemon.path)) as connection:
        connection.request("POST", "/api/execute", body, {"authorization": f"Bearer {token()}"})
        pids = (tmp_path / "pids").read_text().split()
    for pid in pids:
        gone(int(pid))
    assert len(pids) == 2
