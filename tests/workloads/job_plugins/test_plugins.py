"""What each job plug-in gives a pod, by the names and values that Volcano's users' scripts read."""

import base64
import json
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hekla.api.core import ConfigMap, Secret, Service
from hekla.api.meta import Document
from hekla.api.networking import NetworkPolicy
from hekla.api.volcano import Job
from hekla.testing.job_world import JobWorld, job, task
from hekla.workloads.job_plugins.plugin import ArgumentError, with_arguments
from hekla.workloads.job_plugins.pytorch import Pytorch
from hekla.workloads.job_plugins.registry import PLUGINS, plugins_of
from hekla.workloads.job_plugins.ssh import Ssh
from hekla.workloads.job_plugins.svc import Svc

LONG = "9" * 5000
"""More digits than Python reads."""


def a_job(*tasks: Document, plugins: dict[str, list[str]]) -> Job:
    return msgspec.convert(job(task_list=list(tasks), plugins=plugins), Job)


def pod_of(made: Job, task_name: str, index: int) -> Document:
    """A pod of a task after all plug-ins of the job."""
    role = next(one for one in made.spec.tasks if one.name == task_name)
    spec = msgspec.json.decode(msgspec.json.encode(role.template["spec"]))
    pod: Document = {"metadata": {"name": f"train-{task_name}-{index}", "annotations": {}}, "spec": spec}
    plugins, problems = plugins_of(made)
    assert problems == []
    for plugin in plugins:
        plugin.decorate(pod, made, role, index)
    return pod


def env_of(pod: Document, container: int = 0) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in pod["spec"]["containers"][container].get("env", [])}


def test_env_tells_init_containers_too() -> None:
    role = task("worker", 2)
    role["template"]["spec"]["initContainers"] = [{"name": "init", "image": "busybox"}]
    pod = pod_of(a_job(role, plugins={"env": []}), "worker", 1)
    assert env_of(pod) == {"VK_TASK_INDEX": "1", "VC_TASK_INDEX": "1"}
    assert [one["name"] for one in pod["spec"]["initContainers"][0]["env"]] == ["VK_TASK_INDEX", "VC_TASK_INDEX"]


def test_pytorch_numbers_the_master_first() -> None:
    made = a_job(task("master", 1), task("worker", 3), plugins={"pytorch": ["--port=29500"]})
    master, worker = pod_of(made, "master", 0), pod_of(made, "worker", 2)
    assert env_of(master) == {
        "MASTER_ADDR": "train-master-0.train", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "RANK": "0",
    }  # fmt: skip
    assert env_of(worker)["RANK"] == "3"
    assert worker["spec"]["containers"][0]["ports"] == [{"name": "pytorchjob-port", "containerPort": 29500}]
    assert "initContainers" not in worker["spec"]


def test_pytorch_workers_wait_for_their_master_if_asked_to() -> None:
    arguments = ["--wait-master-enabled=true", "--wait-master-timeout", "30"]
    made = a_job(task("master", 1), task("worker", 1), plugins={"pytorch": arguments})
    (waiting,) = pod_of(made, "worker", 0)["spec"]["initContainers"]
    assert (waiting["name"], waiting["image"]) == ("wait-for-master", "busybox:1.36.1")
    assert "nc -z train-master-0.train 23456" in waiting["command"][2]
    assert "initContainers" not in pod_of(made, "master", 0)["spec"]


def test_pytorch_without_a_master_does_nothing() -> None:
    assert env_of(pod_of(a_job(task("worker", 2), plugins={"pytorch": []}), "worker", 0)) == {}


def test_tensorflow_names_all_roles() -> None:
    made = a_job(task("ps", 1), task("worker", 2), task("other", 1), plugins={"tensorflow": []})
    assert json.loads(env_of(pod_of(made, "worker", 1))["TF_CONFIG"]) == {
        "cluster": {
            "ps": ["train-ps-0.train:2222"],
            "worker": ["train-worker-0.train:2222", "train-worker-1.train:2222"],
        },
        "task": {"type": "worker", "index": 1},
    }
    assert json.loads(env_of(pod_of(made, "other", 0))["TF_CONFIG"])["task"] == {"type": "other", "index": 0}
    alone = a_job(task("worker", 1), plugins={"tensorflow": []})
    assert "TF_CONFIG" not in env_of(pod_of(alone, "worker", 0))


def test_mpi_tells_the_master_its_workers() -> None:
    made = a_job(task("master", 1), task("worker", 2), plugins={"mpi": ["--port=2022"]})
    assert env_of(pod_of(made, "master", 0)) == {"MPI_HOST": "train-worker-0.train,train-worker-1.train"}
    worker = pod_of(made, "worker", 0)
    assert env_of(worker) == {}
    assert worker["spec"]["containers"][0]["ports"] == [{"name": "mpijob-port", "containerPort": 2022}]


def test_hcclrank_takes_pytorchs_rank_or_counts_on_from_the_masters() -> None:
    counted = a_job(task("master", 2), task("worker", 2), plugins={"hcclrank": []})
    assert pod_of(counted, "worker", 1)["metadata"]["annotations"] == {"hccl/rankIndex": "3"}
    assert pod_of(counted, "master", 1)["metadata"]["annotations"] == {"hccl/rankIndex": "1"}
    taken = a_job(task("master", 1), task("worker", 2), plugins={"hcclrank": [], "pytorch": []})
    assert pod_of(taken, "worker", 1)["metadata"]["annotations"] == {"hccl/rankIndex": "2"}


def test_ray_starts_a_head_that_workers_join() -> None:
    head, worker = task("head", 1), task("worker", 2)
    head["template"]["spec"]["containers"][0]["name"] = "head"
    worker["template"]["spec"]["containers"][0]["name"] = "worker"
    made = a_job(head, worker, plugins={"ray": ["--dashboardPort=8300"]})
    started = pod_of(made, "head", 0)["spec"]["containers"][0]
    assert started["command"] == [
        "sh",
        "-c",
        "ray start --head --block --dashboard-host=0.0.0.0 --port=6379 --dashboard-port=8300 "
        "--ray-client-server-port=10001",
    ]
    assert [one["containerPort"] for one in started["ports"]] == [6379, 8300, 10001]
    joined = pod_of(made, "worker", 1)["spec"]["containers"][0]
    assert joined["command"] == ["sh", "-c", "ray start --block --address=train-head-0.train:6379"]
    plugins, _ = plugins_of(made)
    ((kind, service, _),) = plugins[0].objects(made)
    assert (kind, service["metadata"]["name"]) == (Service, "train-head-svc")
    assert service["spec"]["selector"]["volcano.sh/task-spec"] == "head"


def test_svc_keeps_a_hostname_and_subdomain_that_the_template_names() -> None:
    role = task("worker", 3)
    role["template"]["spec"] |= {"hostname": "boss", "subdomain": "office"}
    made = a_job(role, plugins={"svc": []})
    pod = pod_of(made, "worker", 2)
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("boss", "office")
    (config,) = [one.document for one in Svc().objects(made) if one.kind is ConfigMap]
    assert config["data"] == {"worker.host": "boss.office", "VC_WORKER_HOSTS": "boss.office", "VC_WORKER_NUM": "1"}


def test_svc_obeys_its_arguments() -> None:
    made = a_job(task("worker", 1), plugins={"svc": []})
    assert {one.kind for one in Svc().objects(made)} == {ConfigMap, Service, NetworkPolicy}
    plain = with_arguments(
        Svc, ["--publish-not-ready-addresses", "--disable-network-policy=true", "-inject-hosts-env=false"]
    )
    objects = {one.kind: one.document for one in plain.objects(made)}
    assert NetworkPolicy not in objects
    assert objects[Service]["spec"]["publishNotReadyAddresses"] is True
    assert not plain.inject_hosts_env


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--speed=9"],
            'job plugin "pytorch" does not know the argument "--speed=9"; it takes --master, --worker, --port, '
            "--wait-master-enabled, --wait-master-timeout, --wait-master-image",
        ),
        (["--port=many"], 'job plugin "pytorch" cannot read the argument "--port=many"; give a number'),
        (["--port=²"], 'job plugin "pytorch" cannot read the argument "--port=²"; give a number'),
        ([f"--port={LONG}"], f'job plugin "pytorch" cannot read the argument "--port={LONG}"; give a number'),
        (
            ["--wait-master-enabled=maybe"],
            'job plugin "pytorch" cannot read the argument "--wait-master-enabled=maybe"; give true or false',
        ),
    ],
)
def test_an_argument_that_is_not_understood_is_named(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        with_arguments(Pytorch, arguments)
    assert str(raised.value) == sentence


def test_a_plug_in_that_cannot_work_is_told_and_the_others_do() -> None:
    made = a_job(task("worker", 1), plugins={"horovod": [], "pytorch": ["--speed=9"], "env": []})
    plugins, problems = plugins_of(made)
    assert [plugin.name for plugin in plugins] == ["env"]
    assert problems[0] == 'job plugin "horovod" does not exist; the job runs without it'
    assert len(problems) == 2


@pytest.mark.parametrize("name", PLUGINS)
def test_every_plug_in_works_without_arguments(name: str) -> None:
    pod_of(a_job(task("worker", 1), plugins={name: []}), "worker", 0)


def files_of(secret: Secret) -> dict[str, str]:
    return {name: base64.b64decode(data).decode() for name, data in secret.data.items()}


def test_ssh_makes_one_key_pair_for_the_job() -> None:
    world = JobWorld(job(tasks={"master": 1, "worker": 2}, plugins={"ssh": [], "svc": []})).admit().settle()
    secret = world.world.get(Secret, "default", "train-ssh")
    assert secret is not None
    files = files_of(secret)
    private = serialization.load_pem_private_key(files["id_rsa"].encode(), None)
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert files["id_rsa.pub"] == files["authorized_keys"] == public.decode() + "\n"
    assert files["config"].splitlines() == [
        "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null",
        "Host train-master-0", "  HostName train-master-0.train", "  Port 22",
        "Host train-worker-0", "  HostName train-worker-0.train", "  Port 22",
        "Host train-worker-1", "  HostName train-worker-1.train", "  Port 22",
    ]  # fmt: skip


def test_ssh_follows_a_job_that_is_scaled_and_keeps_its_keys() -> None:
    world = JobWorld(job(tasks={"worker": 1}, plugins={"ssh": []})).admit().settle()
    before = world.world.get(Secret, "default", "train-ssh")
    world.world.change(Job, "default", "train", {"spec": job(tasks={"worker": 3})["spec"] | {"plugins": {"ssh": []}}})
    world.settle()
    after = world.world.get(Secret, "default", "train-ssh")
    assert before is not None
    assert after is not None
    assert "Host train-worker-2" in files_of(after)["config"]
    assert files_of(after)["id_rsa"] == files_of(before)["id_rsa"]


@pytest.mark.parametrize(
    ("arguments", "path", "mode"),
    [([], "/root/.ssh", 0o600), (["--ssh-key-file-path=/home/me/.ssh"], "/home/me/.ssh", 0o644)],
)
def test_ssh_mounts_its_files_where_they_are_wanted(arguments: list[str], path: str, mode: int) -> None:
    pod = pod_of(a_job(task("worker", 1), plugins={"ssh": arguments}), "worker", 0)
    (volume,) = pod["spec"]["volumes"]
    assert (volume["secret"]["secretName"], volume["secret"]["defaultMode"]) == ("train-ssh", mode)
    assert [one["path"] for one in volume["secret"]["items"]] == [
        ".ssh/id_rsa", ".ssh/id_rsa.pub", ".ssh/authorized_keys", ".ssh/config",
    ]  # fmt: skip
    assert pod["spec"]["containers"][0]["volumeMounts"] == [{"name": "train-ssh", "mountPath": path, "subPath": ".ssh"}]


@pytest.mark.parametrize("form", [serialization.PrivateFormat.TraditionalOpenSSL, serialization.PrivateFormat.OpenSSH])
def test_ssh_makes_the_public_half_of_a_private_key_that_is_given_alone(form: serialization.PrivateFormat) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    world = JobWorld(job(plugins={"ssh": [f"--ssh-private-key={private}"]})).admit().settle()
    secret = world.world.get(Secret, "default", "train-ssh")
    assert secret is not None
    files, public = (
        files_of(secret),
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH),
    )
    assert files["id_rsa"] == private
    assert files["id_rsa.pub"] == files["authorized_keys"] == public.decode() + "\n"


def test_ssh_takes_a_private_key_that_it_cannot_read_as_it_is() -> None:
    world = JobWorld(job(plugins={"ssh": ["--ssh-private-key=mine"]})).admit().settle()
    secret = world.world.get(Secret, "default", "train-ssh")
    assert secret is not None
    assert (files_of(secret)["id_rsa"], files_of(secret)["authorized_keys"]) == ("mine", "")


def test_ssh_takes_a_key_that_is_given() -> None:
    given = with_arguments(Ssh, ["--ssh-private-key=mine", "--ssh-public-key=yours", "--ssh-port=2222"])
    (secret,) = given.objects(a_job(task("worker", 1), plugins={}))
    assert secret.filled_by is None
    assert base64.b64decode(secret.document["data"]["authorized_keys"]) == b"yours"
    assert "  Port 2222" in given.config(a_job(task("worker", 1), plugins={}))
