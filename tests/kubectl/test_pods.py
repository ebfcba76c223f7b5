import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hekla.testing.kubectl import Kubectl

pytestmark = pytest.mark.slow

WEB = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: server
    image: any
    workingDir: /tmp
    env: [{name: GREETING, value: hello}]
    command: [sh, -c, 'echo "$GREETING from the server"; echo "it works" > index.html; exec python3 -u -m http.server 8080']
    ports: [{name: http, containerPort: 8080}]
    readinessProbe: {httpGet: {path: /index.html, port: http}, periodSeconds: 1}
  - name: side
    image: any
    command: [sh, -c, 'for n in one two three; do echo "side $n"; done; exec sleep 3600']
"""


@pytest.fixture
def web(kubectl: Kubectl) -> Kubectl:
    kubectl("apply", "-f", "-", stdin=WEB)
    kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=30s")
    return kubectl


def pod(name: str, container: dict[str, Any], **spec: Any) -> str:
    whole = {"containers": [container], "terminationGracePeriodSeconds": 1, "restartPolicy": "Always", **spec}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole})


def wait_until_served(kubectl: Kubectl) -> None:
    kubectl("wait", "endpoints/web", "--for=create", "--timeout=20s")
    kubectl("wait", "endpoints/web", "--for=jsonpath={.subsets[0].addresses[0].ip}", "--timeout=20s")


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_logs_are_told_in_every_form(web: Kubectl) -> None:
    assert web("logs", "web").out.startswith("hello from the server\n")
    assert web("logs", "web", "-c", "side").out == "side one\nside two\nside three\n"
    assert web("logs", "web", "-c", "side", "--tail=1").out == "side three\n"
    assert web("logs", "web", "-c", "side", "--limit-bytes=4").out == "side"
    stamped = web("logs", "web", "-c", "side", "--timestamps", "--tail=1").out
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z side three\n", stamped)
    assert web("logs", "-l", "app=web", "-c", "side", "--tail=2").out == "side two\nside three\n"
    assert "[pod/web/side] side one\n" in web("logs", "web", "--all-containers", "--prefix").out
    assert web("logs", "web", "-c", "side", "--since=1h").out.count("\n") == 3
    refused = web("logs", "web", "-c", "absent", code=1)
    assert "container absent is not valid for pod web" in refused.err
    refused = web("logs", "web", "-c", "side", "--previous", code=1)
    assert 'previous terminated container "side" in pod "web" not found' in refused.err


def test_logs_that_are_followed_end_with_the_container(kubectl: Kubectl) -> None:
    kubectl("run", "follower", "--image=any", "--restart=Never", "--", "sh", "-c", "sleep 1; echo late")
    kubectl("wait", "pod/follower", "--for=jsonpath={.status.phase}=Running", "--timeout=20s")
    assert kubectl("logs", "-f", "follower").out == "late\n"


def test_the_log_before_a_restart_is_kept(kubectl: Kubectl) -> None:
    script = "if [ -e /work/been ]; then echo second; exec sleep 3600; fi; touch /work/been; echo first; exit 3"
    mounted = {"name": "work", "mountPath": "/work"}
    container = {"name": "c", "image": "any", "command": ["sh", "-c", script], "volumeMounts": [mounted]}
    kubectl("apply", "-f", "-", stdin=pod("again", container, volumes=[{"name": "work", "emptyDir": {}}]))
    kubectl("wait", "pod/again", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=40s")
    kubectl("wait", "pod/again", "--for=condition=Ready", "--timeout=40s")
    assert kubectl("logs", "again", "--previous").out == "first\n"
    assert kubectl("logs", "again").out == "second\n"
    last = "jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}"
    assert kubectl("get", "pod", "again", "-o", last).out == "3"
    described = kubectl("describe", "pod", "again").out
    assert re.search(r"Last State: +Terminated\n +Reason: +Error\n +Exit Code: +3", described)


def test_commands_run_inside_with_their_own_streams_and_code(web: Kubectl) -> None:
    said = web("exec", "web", "-c", "side", "--", "sh", "-c", "echo out; echo err >&2; exit 7", code=7)
    assert said.out == "out\n"
    assert said.err == "err\ncommand terminated with exit code 7\n"
    assert web("exec", "-i", "web", "--", "tr", "a-z", "A-Z", stdin="typed in").out == "TYPED IN"
    assert web("exec", "web", "--", "sh", "-c", "echo $GREETING; pwd").out == "hello\n/tmp\n"
    assert web("exec", "web", "-c", "side", "--", "sh", "-c", 'echo "[$GREETING]"').out == "[]\n"
    absent = web("exec", "web", "--", "no-such-command", code=None)
    assert absent.code != 0
    assert "no-such-command" in absent.err
    large = "x" * 500_000
    assert web("exec", "-i", "web", "--", "cat", stdin=large).out == large
    assert 'pods "absent" not found' in web("exec", "absent", "--", "true", code=1).err


def test_attaching_reaches_the_first_process(kubectl: Kubectl) -> None:
    script = 'while read word; do echo "heard $word"; done; echo done'
    container = {"name": "c", "image": "any", "command": ["sh", "-c", script], "stdin": True, "stdinOnce": True}
    kubectl("apply", "-f", "-", stdin=pod("reader", container, restartPolicy="Never"))
    kubectl("wait", "pod/reader", "--for=condition=Ready", "--timeout=20s")
    with kubectl.running("attach", "-i", "reader") as attached:
        attached.send("one\n")
        attached.wait_for("heard one")
        attached.send("two\n")
        attached.wait_for("heard two")
        attached.end()
        attached.wait_for("done")
    kubectl("wait", "pod/reader", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")


def test_a_pod_can_be_run_for_one_answer(kubectl: Kubectl) -> None:
    said = kubectl("run", "once", "-i", "--rm", "--image=any", "--restart=Never", "--", "cat", stdin="asked\n")
    assert "asked\n" in said.out
    assert 'pod "once" deleted' in said.out + said.err
    failed = kubectl(
        "run", "bad", "-i", "--rm", "--image=any", "--restart=Never", "--", "sh", "-c", "exit 5", code=None
    )
    assert failed.code == 5
    assert kubectl("get", "pods").out == ""


def test_files_are_copied_both_ways(web: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a b.txt").write_text("with a space")
    (tmp_path / "there" / "large").write_bytes(bytes(range(256)) * 8192)
    web("cp", str(tmp_path / "there"), "web:/tmp/copied", "-c", "server")
    assert web("exec", "web", "--", "cat", "/tmp/copied/a b.txt").out == "with a space"
    web("cp", "web:/tmp/copied", str(tmp_path / "back"), "-c", "server")
    assert (tmp_path / "back" / "a b.txt").read_text() == "with a space"
    assert (tmp_path / "back" / "large").read_bytes() == (tmp_path / "there" / "large").read_bytes()


def test_a_port_is_forwarded_to_pod_and_service(web: Kubectl) -> None:
    web("expose", "pod", "web", "--port=80", "--target-port=http")
    wait_until_served(web)
    for target, port in (("pod/web", "8080"), ("service/web", "80"), ("pod/web", "http")):
        with web.running("port-forward", target, f":{port}") as forward:
            local = forward.wait_for(r"127\.0\.0\.1:(\d+)")
            assert [get(f"http://127.0.0.1:{local}/index.html") for _ in range(3)] == ["it works\n"] * 3
    with web.running("port-forward", "pod/web", ":9") as forward:
        local = forward.wait_for(r"127\.0\.0\.1:(\d+)")
        with pytest.raises(OSError, match=r".*"):
            get(f"http://127.0.0.1:{local}/")
        forward.wait_for("an error occurred forwarding|error forwarding|lost connection")


def test_an_exposed_service_answers_the_host_and_other_pods(web: Kubectl) -> None:
    web("expose", "pod", "web", "--port=80", "--target-port=8080")
    wait_until_served(web)
    address = web("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}").out
    ask = (
        "import urllib.request as r\n"
        f"for h in ('web', 'web.{web.namespace}', 'web.{web.namespace}.svc.cluster.local', '{address}'):\n"
        "    print(h, r.urlopen(f'http://{h}/index.html', timeout=10).read().decode().strip())"
    )
    said = web("run", "client", "-i", "--rm", "--image=any", "--restart=Never", "--", "python3", "-c", ask)
    assert said.out.count("it works") == 4, said
    assert get(f"http://{address}/index.html") == "it works\n"
    slices = web("get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "json").json["items"]
    pod_ip = web("get", "pod", "web", "-o", "jsonpath={.status.podIP}").out
    assert [one["addresses"] for each in slices for one in each["endpoints"]] == [[pod_ip]]
    described = web("describe", "service", "web").out
    assert f"{pod_ip}:8080" in described
    assert address in described


def test_the_api_proxies_to_a_pod_and_a_service(web: Kubectl) -> None:
    web("expose", "pod", "web", "--port=80", "--target-port=8080")
    wait_until_served(web)
    base = f"/api/v1/namespaces/{web.namespace}"
    assert web("get", "--raw", f"{base}/pods/web:8080/proxy/index.html").out == "it works\n"
    assert web("get", "--raw", f"{base}/services/web:80/proxy/index.html").out == "it works\n"
    with web.running("proxy", "--port=0") as proxy:
        port = proxy.wait_for(r"127\.0\.0\.1:(\d+)")
        listed = json.loads(get(f"http://127.0.0.1:{port}{base}/pods"))
        assert [one["metadata"]["name"] for one in listed["items"]] == ["web"]


def test_describe_tells_the_story_of_a_pod(web: Kubectl) -> None:
    described = web("describe", "pod", "web").out
    for expected in (
        r"Status: +Running", r"GREETING: +hello", r"Port: +8080/TCP", r"Ready +True", r"State: +Running",
        r"Successfully assigned .*/web to node-\d", r"Container created", r"Container started",
        r"image \"any\" is not registered on this node",
    ):  # fmt: skip
        assert re.search(expected, described), f"{expected} in\n{described}"
    events = web("events", "--for=pod/web").out
    assert "Scheduled" in events
    assert "Started" in events
    wide = web("get", "pod", "web", "-o", "wide").out.splitlines()
    assert re.match(r"web +2/2 +Running +0 +\S+ +127\.\d+\.\d+\.\d+ +node-\d +<none> +<none>", wide[1])


def test_a_watch_shows_a_pod_through_its_life(kubectl: Kubectl) -> None:
    with kubectl.running("get", "pods", "-w", "--output-watch-events") as watch:
        kubectl("create", "-f", "-", stdin=pod("waits", {"name": "c", "image": "any"}, nodeSelector={"no": "where"}))
        watch.wait_for(r"ADDED +waits +0/1 +Pending")  # the watch has begun
        kubectl("run", "short", "--image=any", "--restart=Never", "--", "sh", "-c", "sleep 0.5")
        watch.wait_for(r"ADDED +short +0/1 +(Pending|ContainerCreating)")
        watch.wait_for(r"MODIFIED +short +1/1 +Running")
        watch.wait_for(r"MODIFIED +short +0/1 +Completed")
        kubectl("delete", "pod", "short")
        watch.wait_for(r"DELETED +short")


def test_a_volume_of_a_pods_own_is_made_for_it_and_goes_with_it(kubectl: Kubectl) -> None:
    container = {
        "name": "main",
        "image": "any",
        "command": ["sh", "-c", "echo kept > /scratch/f; cat /scratch/f"],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    claim = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": claim}}]
    kubectl("apply", "-f", "-", stdin=pod("worker", container, restartPolicy="Never", volumes=volumes))
    kubectl("wait", "pod/worker", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s")
    assert kubectl("logs", "worker").out == "kept\n"
    volume = kubectl("get", "pvc/worker-scratch", "-o", "jsonpath={.spec.volumeName}").out
    shown = json.loads(kubectl("get", f"pv/{volume}", "-o", "json").out)
    directory = Path(shown["spec"]["local"]["path"])
    assert (directory / "f").read_text() == "kept\n"
    kubectl("delete", "pod/worker", "--timeout=30s")
    kubectl("wait", "pvc/worker-scratch", "--for=delete", "--timeout=30s")
    kubectl("wait", f"pv/{volume}", "--for=delete", "--timeout=30s")
