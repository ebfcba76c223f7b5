import asyncio
from pathlib import Path

from hekla.api.coordination import Lease
from hekla.api.core import ConfigMap, Event, Service
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.kube.client import PatchType
from hekla.kube.clock import SystemClock
from hekla.node import agent
from hekla.node.pod_lifecycle import Backoff
from hekla.node.runtimes.isolation import PROCESS_GROUP
from hekla.node.runtimes.process import ProcessRuntime
from hekla.node.runtimes.simulated import SimulatedRuntime


def env(name, **source):
    return {"name": name, "valueFrom": source}


def main(script, **more):
    return {"containers": [{"name": "main", "image": "busybox", "command": ["sh", "-c", script], **more}]}


def test_a_pod_runs_and_its_end_is_told_as_a_kubelet_would(live):
    async def story(cluster):
        pod, log = await cluster.run("p", "echo hello; echo bye > /dev/termination-log; exit 3")
        assert log == "hello\n"
        assert pod.status.phase == "Failed"
        state = pod.status.container_statuses[0].state.terminated
        assert (state.exit_code, state.reason, state.message) == (3, "Error", "bye\n")
        assert state.container_id == f"process://{pod.metadata.uid}/main/0"
        assert pod.status.pod_ip.startswith("127.")
        assert "not registered" in await cluster.event("HostRootfs")

    live(story)


def test_events_name_their_container_and_use_the_kubelets_words(live):
    async def story(cluster):
        cluster.agent._actions._images.roots["mine:1"] = Path("/")
        init = {"name": "first", "image": "mine:1", "command": ["true"]}
        server = {
            "name": "main", "image": "busybox", "command": ["sleep", "1000"],
            "livenessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1},
        }  # fmt: skip
        await cluster.apply("p", {"containers": [server], "initContainers": [init], "terminationGracePeriodSeconds": 0})
        await cluster.event("Killing")
        await cluster.agent._events.written()
        events = (await cluster.client.list(Event, "default")).items
        told = {
            (one.reason, one.involved_object.field_path, one.message) for one in events if one.reason != "HostRootfs"
        }
        path, first = "spec.containers{main}", "spec.initContainers{first}"
        image = 'Container image "mine:1" already present on machine and can be accessed by the pod'
        assert {
            ("Pulled", first, image), ("Created", first, "Container created"), ("Started", first, "Container started"),
            ("Created", path, "Container created"), ("Started", path, "Container started"),
            ("Unhealthy", path, "Liveness probe failed: "),
            ("Killing", path, "Container main failed liveness probe, will be restarted"),
        } <= told  # fmt: skip
        assert "Pulled" not in {reason for reason, where, _ in told if where == path}

    live(story)


def test_a_node_says_what_it_offers_and_how_it_isolates(live):
    async def story(cluster):
        node = await cluster.client.get(Node, "n0")
        assert node.status.allocatable["nvidia.com/gpu"] == "4"
        conditions = {each.type: each for each in node.status.conditions}
        assert conditions["Ready"].status == "True"
        assert "containers run on rung" in conditions["Isolation"].message
        assert "limits by" in conditions["Limits"].message
        assert node.metadata.labels["hekla.dev/isolation"]
        lease = await cluster.client.get(Lease, "n0", "kube-node-lease")
        assert lease.spec.holder_identity == "n0"

    live(story)


def test_a_pod_that_others_called_unready_while_its_node_seemed_gone_is_ready_again(live, monkeypatch):
    """A cluster whose API server was away for half a minute had called all pods of our nodes unready, and they stayed so for ever."""
    monkeypatch.setattr(agent, "CONTRADICTS_S", 0.0)

    def is_ready(pod):
        return {each.type: each.status for each in pod.status.conditions}.get("Ready") == "True"

    async def story(cluster):
        await cluster.apply("p", main("exec sleep 1000"))
        before = await cluster.until("p", is_ready)
        told = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        for _ in range(2):
            changed = await cluster.client.patch(
                Pod, "p", told, "default", patch_type=PatchType.STRATEGIC, subresource="status"
            )
            assert not is_ready(changed)
            again = await cluster.until("p", is_ready)
            assert again.status.conditions == before.status.conditions

    live(story)


def test_the_environment_comes_from_everywhere(live):
    async def story(cluster):
        await cluster.config_map("cm", KEY="from map", **{"9-lives": "x"})
        secret = {"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}}
        await cluster.client.request(
            "POST", "/api/v1/namespaces/default/secrets", {"kind": "Secret", "apiVersion": "v1", **secret}
        )
        variables = [
            {"name": "PLAIN", "value": "$(KEY)/$$(KEY)/$(ABSENT)"},
            env("IP", fieldRef={"fieldPath": "status.podIP"}),
            env("LABEL", fieldRef={"fieldPath": "metadata.labels['app']"}),
            env("CPU", resourceFieldRef={"resource": "limits.cpu", "divisor": "1m"}),
            env("PASSWORD", secretKeyRef={"name": "s", "key": "password"}),
            env("MAYBE", configMapKeyRef={"name": "none", "key": "x", "optional": True}),
        ]
        script = 'echo "$PLAIN|$IP|$LABEL|$CPU|$PASSWORD|${MAYBE-unset}|$CUDA_VISIBLE_DEVICES"'
        resources = {"limits": {"cpu": "1500m", "nvidia.com/gpu": "2"}}
        spec = main(script, env=variables, envFrom=[{"configMapRef": {"name": "cm"}}], resources=resources)
        pod, log = await cluster.run("p", spec, labels={"app": "web"})
        assert log == f"from map/$(KEY)/$(ABSENT)|{pod.status.pod_ip}|web|1500|hunter2|unset|0,1\n"

    live(story)


def test_a_missing_config_map_holds_the_container_until_it_is_there(live):
    async def story(cluster):
        await cluster.apply("p", main("echo $KEY", envFrom=[{"configMapRef": {"name": "late"}}]))

        def waits(pod):
            statuses = pod.status.container_statuses
            return (
                bool(statuses)
                and statuses[0].state.waiting is not None
                and (statuses[0].state.waiting.reason == "CreateContainerConfigError")
            )

        pod = await cluster.until("p", waits)
        assert pod.status.container_statuses[0].state.waiting.message == 'configmap "late" not found'
        await cluster.config_map("late", KEY="now")
        await cluster.ended("p")
        assert await cluster.log("p") == "now\n"

    live(story)


def test_a_command_that_does_not_exist_is_a_start_error_with_128(live):
    async def story(cluster):
        await cluster.apply("p", {"containers": [{"name": "main", "image": "x", "command": ["no-such-command"]}]})
        pod = await cluster.ended("p")
        state = pod.status.container_statuses[0].state.terminated
        assert (state.exit_code, state.reason) == (128, "StartError")
        assert 'exec: "no-such-command": executable file not found in $PATH' in state.message

    live(story)


def test_a_pod_without_a_command_is_told_to_name_one(live):
    async def story(cluster):
        await cluster.apply("p", {"containers": [{"name": "main", "image": "my.registry/thing:1"}]})
        assert "has neither command nor args" in await cluster.event("Failed")

    live(story)


def test_a_crashing_container_backs_off_and_says_so(live):
    async def story(cluster):
        await cluster.apply("p", {**main("exit 1"), "restartPolicy": "Always"})

        def backs_off(pod):
            state = pod.status.container_statuses and pod.status.container_statuses[0].state
            return bool(state) and state.waiting is not None and state.waiting.reason == "CrashLoopBackOff"

        pod = await cluster.until("p", backs_off)
        assert pod.status.phase == "Running"
        assert pod.status.container_statuses[0].last_state.terminated.exit_code == 1
        assert pod.status.container_statuses[0].restart_count >= 1

    live(story, backoff=Backoff())


def test_init_containers_share_volumes_with_those_that_follow(live):
    async def story(cluster):
        mount = [{"name": "shared", "mountPath": "/shared"}]
        init = {
            "name": "init",
            "image": "busybox",
            "command": ["sh", "-c", "echo made > /shared/f"],
            "volumeMounts": mount,
        }
        spec = {
            **main("cat /shared/f", volumeMounts=mount),
            "initContainers": [init],
            "volumes": [{"name": "shared", "emptyDir": {}}],
        }
        pod, log = await cluster.run("p", spec)
        assert log == "made\n"
        assert pod.status.init_container_statuses[0].state.terminated.reason == "Completed"

    live(story)


def test_volumes_of_every_kind_hold_what_they_should(live):
    async def story(cluster):
        await cluster.config_map("cm", a="A", b="B")
        volumes = [
            {"name": "cm", "configMap": {"name": "cm", "items": [{"key": "a", "path": "deep/a.txt", "mode": 0o400}]}},
            {"name": "me", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"name": "all", "projected": {"sources": [
                {"configMap": {"name": "cm"}},
                {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ]}},
        ]  # fmt: skip
        mounts = [
            {"name": "cm", "mountPath": "/etc/conf/cm"},
            {"name": "me", "mountPath": "/me"},
            {"name": "all", "mountPath": "/all"},
            {"name": "all", "mountPath": "/etc/one-file", "subPath": "b"},
        ]
        script = "cat /etc/conf/cm/deep/a.txt /me/labels /all/name /all/b /etc/one-file; stat -Lc ' %a' /etc/conf/cm/deep/a.txt"
        _, log = await cluster.run("p", {**main(script, volumeMounts=mounts), "volumes": volumes}, labels={"x": "y"})
        assert log == 'Ax="y"pBB 400\n'

    live(story)


def test_a_changed_config_map_reaches_a_running_pod(live):
    async def story(cluster):
        await cluster.config_map("cm", word="old")
        script = "while ! grep -q new /conf/word; do sleep 0.02; done; cat /conf/word"
        spec = {
            **main(script, volumeMounts=[{"name": "v", "mountPath": "/conf"}]),
            "volumes": [{"name": "v", "configMap": {"name": "cm"}}],
        }
        await cluster.apply("p", spec)
        await cluster.running("p")
        await cluster.client.patch(ConfigMap, "cm", {"data": {"word": "new"}}, "default")
        await cluster.ended("p")
        assert await cluster.log("p") == "new"

    live(story)


def test_pods_of_a_headless_service_find_each_other_by_name_and_talk(live):
    async def story(cluster):
        service = {
            "metadata": {"name": "ring"},
            "spec": {"clusterIP": "None", "selector": {"ring": "yes"}, "ports": [{"port": 1}]},
        }
        await cluster.client.create(Service, service, "default")
        listen = "import os, socket; s = socket.socket(); s.bind((os.environ['IP'], 7000)); s.listen(); print(s.accept()[0].recv(9))"
        speak = (
            "import socket, time\n"
            "for _ in range(500):\n"
            "    try:\n"
            "        s = socket.create_connection(('w-0.ring.default.svc.cluster.local', 7000)); break\n"
            "    except OSError: time.sleep(0.02)\n"
            "s.sendall(b'hello')"
        )
        ip = [env("IP", fieldRef={"fieldPath": "status.podIP"})]
        for name, program in (("w-0", listen), ("w-1", speak)):
            container = {"name": "main", "image": "python:3", "command": ["python", "-u", "-c", program], "env": ip}
            await cluster.apply(
                name, {"containers": [container], "hostname": name, "subdomain": "ring"}, labels={"ring": "yes"}
            )
        assert (await cluster.ended("w-1")).status.phase == "Succeeded"
        await cluster.ended("w-0")
        assert await cluster.log("w-0") == "b'hello'\n"

    live(story)


def test_on_the_lowest_rung_python_resolves_names_and_volumes_are_found_at_their_paths(live, tmp_path):
    async def story(cluster):
        service = {
            "metadata": {"name": "ring"},
            "spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 1}]},
        }
        await cluster.client.create(Service, service, "default")
        await cluster.config_map("cm", f="content")
        program = "import socket; print(socket.gethostbyname('p.ring.default.svc'), open('/conf/f').read())"
        container = {
            "name": "main",
            "image": "python:3",
            "command": ["python", "-c", program],
            "volumeMounts": [{"name": "v", "mountPath": "/conf"}],
        }
        spec = {"containers": [container], "subdomain": "ring", "volumes": [{"name": "v", "configMap": {"name": "cm"}}]}
        pod, log = await cluster.run("p", spec, labels={"a": "b"})
        assert log == f"{pod.status.pod_ip} content\n"
        node = await cluster.client.get(Node, "n0")
        assert node.metadata.labels["hekla.dev/isolation"] == "process-group"

    runtime = ProcessRuntime(tmp_path / "runtime", hidden=[tmp_path], rung=PROCESS_GROUP)
    live(story, runtimes=[runtime, SimulatedRuntime(SystemClock())])


def test_readiness_and_hooks_run_inside_the_container(live):
    async def story(cluster):
        shared = cluster.directory / "shared"
        container = {
            "lifecycle": {
                "postStart": {"exec": {"command": ["sh", "-c", "echo posted > /tmp/posted"]}},
                "preStop": {"exec": {"command": ["sh", "-c", "echo stopping > /shared/f"]}},
            },
            "readinessProbe": {"exec": {"command": ["test", "-f", "/tmp/posted"]}, "periodSeconds": 1},
            "volumeMounts": [{"name": "v", "mountPath": "/shared"}],
        }
        volumes = [{"name": "v", "hostPath": {"path": str(shared), "type": "DirectoryOrCreate"}}]
        script = "trap 'cat /shared/f > /shared/g; exit 0' TERM; while :; do sleep 0.02; done"
        await cluster.apply("p", {**main(script, **container), "volumes": volumes})
        await cluster.until(
            "p", lambda pod: any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
        )
        await cluster.client.delete(Pod, "p", "default")
        await cluster.gone("p")
        assert (shared / "g").read_text() == "stopping\n"

    live(story)


def test_a_deleted_pod_leaves_nothing_on_disk(live):
    async def story(cluster):
        await cluster.apply("p", "exec sleep 1000")
        await cluster.running("p")
        await cluster.client.delete(Pod, "p", "default")
        await cluster.gone("p")
        data = cluster.directory / "node data"
        assert list((data / "pods").iterdir()) == []
        assert list((data / "runtime" / "logs").iterdir()) == []

    live(story)


def test_a_pod_that_is_forced_out_of_the_api_is_ended(live):
    async def story(cluster):
        await cluster.apply("p", "exec sleep 1000")
        await cluster.running("p")
        await cluster.client.delete(Pod, "p", "default", grace_s=0)
        async with asyncio.timeout(60):
            while list(cluster.agent.pods):
                await asyncio.sleep(0.01)
        assert not await cluster.agent.runtimes["process"].observe()

    live(story)


def test_a_pod_that_does_not_fit_is_refused_with_the_kubelets_reason(live):
    async def story(cluster):
        await cluster.apply("p", main("true", resources={"requests": {"cpu": "9"}}))
        pod = await cluster.ended("p")
        assert (pod.status.phase, pod.status.reason) == ("Failed", "OutOfcpu")
        assert "requested: 9000, used: 0, capacity: 8000" in pod.status.message
        await cluster.apply("g", main("true", resources={"limits": {"nvidia.com/gpu": "5"}}))
        assert (await cluster.ended("g")).status.reason == "UnexpectedAdmissionError"
        await cluster.apply("z", {**main("true"), "nodeSelector": {"zone": "b"}})
        assert (await cluster.ended("z")).status.reason == "NodeAffinity"

    live(story)


def test_an_unknown_runtime_class_is_refused_with_those_there_are(live):
    async def story(cluster):
        await cluster.client.request(
            "POST", "/apis/node.k8s.io/v1/runtimeclasses",
            {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "vm"}, "handler": "vm"},
        )  # fmt: skip
        await cluster.apply("p", {**main("true"), "runtimeClassName": "vm"})
        pod = await cluster.ended("p")
        assert pod.status.message.startswith('runtimeClassName "vm" is no runtime of node n0; it has gvisor, ')

    live(story)


def test_a_restarted_agent_starts_again_what_ran_and_leaves_alone_what_had_ended(live):
    async def story(cluster):
        await cluster.run("done", "exit 0")
        await cluster.apply("p", {**main("exec sleep 1000"), "restartPolicy": "Always"})
        before = await cluster.running("p")
        await cluster.restart_agent()
        after = await cluster.until("p", lambda pod: pod.status.container_statuses[0].restart_count == 1)
        after = await cluster.until("p", lambda pod: pod.status.container_statuses[0].state.running is not None)
        last = after.status.container_statuses[0].last_state.terminated
        assert (last.exit_code, last.reason) == (137, "ContainerStatusUnknown")
        assert after.metadata.uid == before.metadata.uid
        done = await cluster.client.get(Pod, "done", "default")
        assert (done.status.phase, done.status.container_statuses[0].restart_count) == ("Succeeded", 0)

    live(story)


def test_a_node_whose_heartbeats_were_missed_says_anew_that_it_is_ready(live):
    """After a full disk it stayed NotReady for up to five minutes: its lease alone makes no node ready again."""

    async def story(cluster):
        registrar = cluster.agent.registrar
        unknown = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
        await cluster.client.patch(Node, "n0", unknown, patch_type=PatchType.STRATEGIC, subresource="status")

        async def ready():
            node = await cluster.client.get(Node, "n0")
            return next(one.status for one in node.status.conditions if one.type == "Ready")

        await registrar._logged("n0", registrar._renew)
        assert await ready() == "Unknown"  # somebody's word against ours, which nobody waits for
        registrar._renewed_s["n0"] -= 41
        await registrar._logged("n0", registrar._renew)
        assert await ready() == "True"
        before = (await cluster.client.get(Node, "n0")).metadata.resource_version
        await registrar._logged("n0", registrar._renew)  # and no more often than that
        assert (await cluster.client.get(Node, "n0")).metadata.resource_version == before

    live(story)


def test_a_simulated_pod_lives_as_its_annotations_say(live):
    async def story(cluster):
        annotations = {"hekla.dev/simulated-duration": "20ms", "hekla.dev/simulated-exit-code": "4"}
        await cluster.apply("p", {"containers": [{"name": "main", "image": "x"}]}, node="s0", annotations=annotations)
        pod = await cluster.ended("p")
        assert pod.status.container_statuses[0].state.terminated.exit_code == 4

    live(story)


def test_hundreds_of_simulated_pods_need_one_timer(live):
    async def story(cluster):
        annotations = {"hekla.dev/simulated-duration": "50ms"}
        spec = {"containers": [{"name": "main", "image": "x"}]}
        names = [f"p{number}" for number in range(100)]
        for name in names:
            await cluster.apply(name, spec, node="s0", annotations=annotations)
        for name in names:
            assert (await cluster.ended(name)).status.phase == "Succeeded"

    live(story)


def test_a_simulated_pod_needs_none_of_the_files_it_mounts(live):
    async def story(cluster):
        mount = {"name": "token", "mountPath": "/token"}
        volume = {"name": "token", "configMap": {"name": "absent"}}
        spec = {"containers": [{"name": "main", "image": "x", "volumeMounts": [mount]}], "volumes": [volume]}
        await cluster.apply("p", spec, node="s0", annotations={"hekla.dev/simulated-duration": "20ms"})
        assert (await cluster.ended("p")).status.phase == "Succeeded"

    live(story)


def test_a_simulated_life_that_is_over_at_once_ends_under_uvloop_too():
    import uvloop

    from hekla.kube.clock import SystemClock
    from hekla.node.runtimes.simulated import SimulatedRuntime

    async def story():
        runtime = SimulatedRuntime(SystemClock())
        runtime._ends = [(0.0, None), (0.0, None)]
        runtime._arm()
        runtime._arm()
        await runtime.close()

    uvloop.run(story())
