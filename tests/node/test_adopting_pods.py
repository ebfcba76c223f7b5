"""An agent that was away finds its pods' containers as they are: nothing is started again that runs, and what ended is told as it ended."""

import asyncio

from hekla.api.pods import Pod
from hekla.node.pod_lifecycle import Backoff
from hekla.node.pod_record import ProbeKind
from hekla.testing.conformance.runtimes import eventually, output_of, processes_with

SH = ["sh", "-c"]


def container(script, name="main", **more):
    mounts = [{"name": "marks", "mountPath": "/marks"}]
    return {"name": name, "image": "busybox", "command": [*SH, script], "volumeMounts": mounts, **more}


def seeing(directory, *containers, **more):
    """A pod whose containers see the marks that are made in a directory of the host."""
    directory.mkdir(exist_ok=True)
    volumes = [{"name": "marks", "hostPath": {"path": str(directory)}}]
    return {"containers": list(containers), "volumes": volumes, **more}


def waits_for(mark, then="exit 0"):
    """A script that goes on once somebody has made a mark."""
    return f"echo $$; until [ -e /marks/{mark.name} ]; do sleep 0.01; done; {then}"


def backs_off(pod):
    waiting = status_of(pod).state.waiting if pod.status.container_statuses else None
    return waiting is not None and waiting.reason == "CrashLoopBackOff"


def waiting(mark):
    return processes_with(f"/marks/{mark.name} ]")


def status_of(pod, name="main"):
    return next(
        each for each in (*pod.status.init_container_statuses, *pod.status.container_statuses) if each.name == name
    )


async def away(cluster, meanwhile=None):
    await cluster.restart_agent(leaves_containers=True, meanwhile=meanwhile)


def test_a_pod_goes_on_with_process_log_address_and_readiness(live, tmp_path):
    mark = tmp_path / "marks/mark"
    ready = {"exec": {"command": ["true"]}, "periodSeconds": 1}

    async def story(cluster):
        script = waits_for(mark, "echo done; sleep 71234.1")
        await cluster.apply("p", seeing(mark.parent, container(script, readinessProbe=ready)))
        told = await cluster.until("p", lambda pod: pod.status.container_statuses and status_of(pod).ready)

        async def meanwhile():
            mark.touch()
            await eventually(lambda: len(processes_with("sleep\x0071234.1")) == 1)

        await away(cluster, meanwhile)
        tracked = cluster.agent.find("default", "p")
        assert (await cluster.log("p")).splitlines()[1:] == ["done"]
        output, _, code = await output_of(await tracked.runtime.exec(tracked.key("main"), ["hostname"]))
        assert (output, code) == ("p\n", 0)
        await asyncio.sleep(0.1)
        now = await cluster.client.get(Pod, "p", "default")
        assert (status_of(now).container_id, status_of(now).restart_count) == (status_of(told).container_id, 0)
        assert status_of(now).state.running.started_at == status_of(told).state.running.started_at
        assert (now.status.pod_ip, status_of(now).ready) == (told.status.pod_ip, True)
        assert len(processes_with("sleep\x0071234.1")) == 1
        await cluster.client.delete(Pod, "p", "default", grace_s=1)
        await cluster.gone("p")
        assert processes_with("sleep\x0071234.1") == []

    live(story)


def test_how_it_ended_while_nobody_was_there_is_told(live, tmp_path):
    mark = tmp_path / "marks/mark"

    async def story(cluster):
        await cluster.apply("once", seeing(mark.parent, container(waits_for(mark, "exit 7"))))
        script = waits_for(mark, "exit 9")
        again = seeing(mark.parent, container(script), restartPolicy="OnFailure")
        await cluster.apply("again", again)
        for name in ("once", "again"):
            await cluster.running(name)

        async def meanwhile():
            mark.touch()
            await eventually(lambda: waiting(mark) == [])

        told = await cluster.client.get(Pod, "once", "default")
        await away(cluster, meanwhile)
        once = await cluster.ended("once")
        ended = status_of(once).state.terminated
        assert (once.status.phase, ended.exit_code, ended.reason) == ("Failed", 7, "Error")
        assert (status_of(once).restart_count, once.status.pod_ip) == (0, told.status.pod_ip)
        restarted = await cluster.until("again", lambda pod: status_of(pod).restart_count >= 1)
        assert status_of(restarted).last_state.terminated.exit_code == 9

    live(story)


def test_a_pod_that_is_deleted_while_nobody_is_there_ends(live, tmp_path):
    async def story(cluster):
        for name in ("forced", "asked"):
            script = f"trap 'echo bye; exit 0' TERM; sleep 71234.{2 if name == 'forced' else 3} & wait"
            await cluster.apply(name, seeing(tmp_path / "marks", container(script)))
            await cluster.running(name)
        await eventually(lambda: len(processes_with("71234.2")) > 1)
        directory = cluster.agent.find("default", "forced").directory
        assert directory.exists()

        async def meanwhile():
            await cluster.client.delete(Pod, "forced", "default", grace_s=0)
            await cluster.client.delete(Pod, "asked", "default", grace_s=5)

        await away(cluster, meanwhile)
        await cluster.gone("asked")
        await eventually(lambda: processes_with("71234.2") == processes_with("71234.3") == [])
        await eventually(lambda: not directory.exists())

    live(story)


def test_what_a_pod_left_that_went_while_the_machine_was_down_is_removed(live, tmp_path):
    async def story(cluster):
        script = "[ -e /kept/f ] || touch /kept/f; echo log; exec sleep 71234.7"
        kept = {"name": "kept", "emptyDir": {}}
        main = container(script, volumeMounts=[{"name": "kept", "mountPath": "/kept"}])
        await cluster.apply("p", {"containers": [main], "volumes": [kept]})
        pod = await cluster.running("p")
        tracked = cluster.agent.find("default", "p")
        node = tracked.directory.parent.parent
        await eventually(lambda: (tracked.directory / "volumes").exists())

        async def meanwhile():
            await cluster.client.delete(Pod, "p", "default", grace_s=0)

        await cluster.restart_agent(meanwhile=meanwhile)
        of_it = [tracked.directory, *(node / "runtime" / each / pod.metadata.uid for each in ("logs", "containers"))]
        await eventually(lambda: not any(each.exists() for each in of_it))

    live(story)


def test_init_containers_and_sidecars_keep_their_order(live, tmp_path):
    mark, second = tmp_path / "marks/mark", tmp_path / "marks/second"
    spec = seeing(mark.parent, container("echo main")) | {
        "initContainers": [
            container("sleep 71234.4", "beside", restartPolicy="Always"),
            container(waits_for(mark), "first"),
            container(waits_for(second), "then"),
        ],
    }

    async def story(cluster):
        await cluster.apply("p", spec)
        await cluster.until(
            "p", lambda pod: len(pod.status.init_container_statuses) == 3 and status_of(pod, "first").started
        )
        sidecar = processes_with("sleep\x0071234.4")

        async def meanwhile():
            mark.touch()
            await eventually(lambda: waiting(mark) == [])

        await away(cluster, meanwhile)
        pod = await cluster.until("p", lambda pod: status_of(pod, "then").started)
        assert status_of(pod, "first").state.terminated.exit_code == 0
        assert status_of(pod).state.waiting is not None
        assert processes_with("sleep\x0071234.4") == sidecar
        await away(cluster)
        second.touch()
        pod = await cluster.ended("p")
        assert pod.status.phase == "Succeeded"
        assert [each.restart_count for each in pod.status.init_container_statuses] == [0, 0, 0]
        assert processes_with("sleep\x0071234.4") == []

    live(story)


def test_gpus_that_a_container_holds_are_given_to_no_other(live, tmp_path):
    def holding(count):
        limits = {"nvidia.com/gpu": str(count)}
        script = "echo $CUDA_VISIBLE_DEVICES; exec sleep 71234.5"
        return seeing(tmp_path / "marks", container(script, resources={"limits": limits}))

    async def story(cluster):
        for name in ("first", "second"):
            await cluster.apply(name, holding(1))
            await cluster.running(name)
        await cluster.client.delete(Pod, "first", "default", grace_s=0)
        await cluster.gone("first")
        await away(cluster)
        await cluster.apply("third", holding(3))
        await cluster.running("third")
        async with asyncio.timeout(30):
            while not (log := await cluster.log("third")):
                await asyncio.sleep(0.01)
        assert sorted([*log.strip().split(","), (await cluster.log("second")).strip()]) == ["0", "1", "2", "3"]

    live(story)
    assert processes_with("71234.5") == []


def test_a_guests_pods_keep_the_addresses_that_nobody_is_told_of(live, tmp_path):
    """In a cluster of many machines another address is told, which leads nowhere."""
    tolerates = {"tolerations": [{"key": "hekla.dev/node", "operator": "Exists"}]}

    async def story(cluster):
        for name in ("first", "second"):
            await cluster.apply(name, seeing(tmp_path / "marks", container("sleep 71234.6"), **tolerates))
            await cluster.running(name)
        await cluster.client.delete(Pod, "first", "default", grace_s=0)
        await cluster.gone("first")
        had = cluster.agent.find("default", "second").record.pod_ip
        assert had.startswith("127.")
        await away(cluster)
        assert cluster.agent.find("default", "second").record.pod_ip == had

    live(story, is_guest=True)


def test_a_crash_loop_waits_on_where_it_waited(live, tmp_path):
    main = container("echo x >> /marks/runs; exit 3")

    async def story(cluster):
        await cluster.apply("p", seeing(tmp_path / "marks", main, restartPolicy="Always"))
        pod = await cluster.until("p", backs_off)
        told = status_of(pod).state.waiting.message
        assert told.startswith("back-off 16m40s ")
        await eventually(lambda: cluster.agent.find("default", "p").tasks == set())
        await away(cluster)
        pod = await cluster.until("p", backs_off)
        assert (status_of(pod).state.waiting.message, status_of(pod).restart_count) == (told, 1)
        assert (tmp_path / "marks/runs").read_text() == "x\nx\n"

    live(story, backoff=Backoff(first_s=1000, max_s=1000))


def test_hooks_that_ran_do_not_run_again_and_failed_probes_count_on(live, tmp_path):
    marks = tmp_path / "marks"
    ran = {"exec": {"command": ["sh", "-c", "echo x >> /marks/began"]}}
    left = {"exec": {"command": ["sh", "-c", "echo x >> /marks/left"]}}
    sick = {"exec": {"command": ["false"]}, "periodSeconds": 1000, "failureThreshold": 2}
    script = "trap '' TERM; sleep 71234.8 & sleep 71234.8; sleep 71234.8"
    main = container(script, lifecycle={"postStart": ran, "preStop": left}, livenessProbe=sick)

    async def story(cluster):
        def known():
            return cluster.agent.find("default", "p").record.container("main")

        async def settled(holds):
            await eventually(holds)
            await eventually(lambda: cluster.agent.find("default", "p").tasks == set())

        await cluster.apply("p", seeing(marks, main, restartPolicy="Always", terminationGracePeriodSeconds=1000))
        await settled(lambda: known().probes and known().probes[ProbeKind.LIVENESS].failures == 1)
        await away(cluster)
        # the second failure is the one too many
        await eventually(lambda: known().is_signalled)
        began = known().stop_began_at
        assert ((marks / "began").read_text(), (marks / "left").read_text()) == ("x\n", "x\n")
        await away(cluster)
        await eventually(lambda: known().is_signalled)
        assert known().stop_began_at == began
        assert ((marks / "began").read_text(), (marks / "left").read_text()) == ("x\n", "x\n")
        await cluster.client.delete(Pod, "p", "default", grace_s=0)
        await cluster.gone("p")

    live(story)
    assert processes_with("71234.8") == []
