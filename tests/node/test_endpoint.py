import asyncio
import os
import shutil

import pytest

from hekla.api.pods import Pod
from hekla.node.pod_lifecycle import Backoff
from hekla.wire.messages import Request, Response
from hekla.wire.server import Server

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")

WEB = """
import http.server, os
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"hello from {self.path}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer((os.environ["IP"], 8080), Hello).serve_forever()
"""


class Kubectl:
    """The real kubectl against a cluster's API server."""

    def __init__(self, cluster, port):
        self.cluster, self.port = cluster, port

    async def __call__(self, *args, stdin=b"", env=None):
        process = await asyncio.create_subprocess_exec(
            "kubectl", f"--server=http://127.0.0.1:{self.port}", *args,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "HOME": str(self.cluster.directory), "KUBECONFIG": "", **(env or {})},
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(stdin), 60)
        return process.returncode, out.decode(), err.decode()


@pytest.fixture
def told(live):
    """Live a story with kubectl and one running pod, `p`."""

    def told(story, script="echo started; exec sleep 1000", backoff=None, **container):
        async def with_kubectl(cluster):
            wire = Server()
            await wire.start(cluster.server.handle, host="127.0.0.1", port=0)
            try:
                if script:
                    main = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], **container}
                    await cluster.apply("p", {"containers": [main]})
                    await cluster.running("p")
                await story(cluster, Kubectl(cluster, wire.port))
            finally:
                await wire.stop()

        live(with_kubectl, **({"backoff": backoff} if backoff else {}))

    return told


SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}


@pytest.mark.parametrize("env", [{}, SPDY], ids=["websocket", "spdy"])
def test_exec_carries_streams_and_the_exit_code(told, env):
    async def story(cluster, kubectl):
        code, out, err = await kubectl(
            "exec", "-i", "p", "--", "sh", "-c", "cat; echo oops >&2; exit 4", stdin=b"in\n", env=env
        )
        assert (code, out) == (4, "in\n")
        assert "oops" in err

    told(story)


@pytest.mark.parametrize("env", [{}, SPDY], ids=["websocket", "spdy"])
def test_megabytes_pass_through_exec_unharmed(told, env):
    async def story(cluster, kubectl):
        data = os.urandom(3_000_000)
        code, out, _ = await kubectl("exec", "-i", "p", "--", "sha256sum", stdin=data, env=env)
        import hashlib

        assert code == 0
        assert out.split()[0] == hashlib.sha256(data).hexdigest()

    told(story)


def test_exec_of_a_missing_command_says_so(told):
    async def story(cluster, kubectl):
        code, _, err = await kubectl("exec", "p", "--", "no-such-command")
        assert code == 1
        assert 'exec: "no-such-command": executable file not found in $PATH' in err

    told(story)


def test_cp_goes_in_and_comes_out(told):
    async def story(cluster, kubectl):
        source = cluster.directory / "up"
        source.mkdir()
        (source / "f").write_text("content" * 1000)
        assert (await kubectl("cp", str(source), "p:/tmp/up"))[0] == 0
        assert (await kubectl("cp", "p:/tmp/up/f", str(cluster.directory / "back")))[0] == 0
        assert (cluster.directory / "back").read_text() == "content" * 1000

    told(story)


def test_while_a_container_backs_off_its_latest_log_is_the_previous_one_too(told):
    async def story(cluster, kubectl):
        waiting = {"name": "first", "image": "busybox", "command": ["sleep", "1000"]}
        await cluster.apply("held", {"initContainers": [waiting], "containers": [{"name": "main", "image": "busybox"}]})
        script = 'echo x >> /marks/n; echo "run $(wc -l < /marks/n)"; exit 3'
        main = {"name": "main", "image": "busybox", "command": ["sh", "-c", script]}
        main["volumeMounts"] = [{"name": "marks", "mountPath": "/marks"}]
        marks = {"name": "marks", "emptyDir": {}}
        await cluster.apply("q", {"restartPolicy": "Always", "containers": [main], "volumes": [marks]})
        assert "Back-off restarting failed container main in pod q_default(" in await cluster.event("BackOff")
        assert (await kubectl("logs", "q", "--previous"))[1] == (await kubectl("logs", "q"))[1] == "run 2\n"
        assert (
            'container "main" in pod "held" is waiting to start: PodInitializing' in (await kubectl("logs", "held"))[2]
        )

    told(story, script="", backoff=Backoff(first_s=1000))


def test_a_container_of_kubectl_debug_runs_once_beside_the_others(told):
    async def story(cluster, kubectl):
        debug = ["debug", "p", "--image=busybox", "-c", "look", "--profile=general"]
        assert (await kubectl(*debug, "--", "sh", "-c", "echo looked; exit 3"))[0] == 0
        pod = await cluster.until(
            "p", lambda pod: [each for each in pod.status.ephemeral_container_statuses if each.state.terminated]
        )
        [looked] = pod.status.ephemeral_container_statuses
        assert (looked.name, looked.state.terminated.exit_code, looked.restart_count) == ("look", 3, 0)
        assert (await kubectl("logs", "p", "-c", "look"))[1] == "looked\n"
        assert (pod.status.phase, pod.status.container_statuses[0].ready) == ("Running", True)
        await cluster.client.delete(Pod, "p", "default", grace_s=0)
        await cluster.gone("p")

    told(story)


def test_a_node_that_has_not_taken_up_its_pods_says_so_instead_of_that_there_are_none(told):
    async def story(cluster, kubectl):
        async def asked():
            return await cluster.endpoint.answer("log", "default", "bound", Request("GET", "/"))

        assert (await asked()).status == 404
        cluster.agent.is_starting = True
        answer = await asked()
        assert (answer.status, b"has not taken up its pods yet; try again" in answer.body) == (503, True)

    told(story, script="")


def test_logs_by_tail_and_of_the_previous_attempt(told):
    async def story(cluster, kubectl):
        main = {"name": "main", "image": "busybox", "command": ["sh", "-c", "echo one; echo two; exit 1"]}
        await cluster.apply("p", {"containers": [main], "restartPolicy": "OnFailure"})
        await cluster.until(
            "p", lambda pod: pod.status.container_statuses and pod.status.container_statuses[0].restart_count
        )
        assert (await kubectl("logs", "p", "--tail=1", "--previous"))[1] == "two\n"
        code, _, err = await kubectl("logs", "p", "-c", "nope")
        assert code == 1
        assert "container nope is not valid for pod p" in err

    told(story, script="")


def test_logs_of_a_pod_with_many_containers_ask_which(told):
    async def story(cluster, kubectl):
        each = {"image": "busybox", "command": ["sleep", "1000"]}
        await cluster.apply("p", {"containers": [{"name": "a", **each}, {"name": "b", **each}]})
        await cluster.running("p")
        answer = await cluster.endpoint.answer("log", "default", "p", Request("GET", "/"))
        assert answer.status == 400
        assert b"a container name must be specified for pod p, choose one of: [a b]" in answer.body

    told(story, script="")


@pytest.mark.parametrize("env", [{}, SPDY], ids=["websocket", "spdy"])
def test_a_forwarded_port_and_the_proxy_reach_the_pod(told, env):
    async def story(cluster, kubectl):
        ip = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        ready = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
        main = {
            "name": "main",
            "image": "python:3",
            "command": ["python", "-c", WEB],
            "env": [ip],
            "readinessProbe": ready,
        }
        await cluster.apply("web", {"containers": [main]})
        await cluster.until(
            "web", lambda pod: any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
        )
        answer = await cluster.client.text("/api/v1/namespaces/default/pods/web:8080/proxy/a/b")
        assert answer == "hello from /a/b"
        forward = await asyncio.create_subprocess_exec(
            "kubectl", f"--server=http://127.0.0.1:{kubectl.port}", "port-forward", "pod/web", ":8080",
            stdout=asyncio.subprocess.PIPE, env={**os.environ, "HOME": str(cluster.directory), "KUBECONFIG": "", **env},
        )  # fmt: skip
        try:
            line = await asyncio.wait_for(forward.stdout.readline(), 30)
            port = int(line.decode().split("127.0.0.1:")[1].split()[0])
            for path in ("/x", "/y"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                assert (await asyncio.wait_for(reader.read(), 30)).endswith(f"hello from {path}".encode())
                writer.close()
        finally:
            forward.terminate()
            await forward.wait()

    told(story, script="")


def test_over_http_only_the_bearer_of_the_token_is_answered(told):
    async def story(cluster, kubectl):
        path = "/containerLogs/default/p/main"
        for headers in ({}, {"authorization": "Bearer wrong"}):
            refused = await cluster.endpoint.handle(Request("GET", path, headers))
            assert isinstance(refused, Response)
            assert refused.status == 401
        granted = await cluster.endpoint.handle(Request("GET", path, {"authorization": "Bearer secret"}))
        assert b"".join([piece async for piece in granted.body]) == b"started\n"

    told(story)
