"""`make demo`: the platform starts, a gang of real processes trains, another waits its turn, and all ends by itself.

    act 1   two virtual nodes with eight GPUs each
    act 2   a Volcano Job of four workers: they start together, meet, learn; one is killed, and its policy restarts the gang;
            meanwhile a model comes up in the same queue and answers a chat (`demo_serving.py`)
    act 3   a second gang that does not fit waits whole, says why, and starts when the first has ended;
            meanwhile agents open sessions, run code in them, put them to sleep, wake and fork one (`demo_agents.py`)
    act 4   a crowd asks the model, and its replicas follow the load
            (where vLLM is installed acts 2 to 4 are played side by side, as it takes half a minute to start: `demo_vllm.py`)
    act 5   what to try next

In a terminal the cluster is drawn and redrawn; elsewhere the story is printed line by line. Everything shown is read
back from the API server by watching it.
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hekla.api.core import Pod
from hekla.api.volcano import Job
from hekla.app.data_directory import DataDirectory
from hekla.app.demo_agents import DemoAgents
from hekla.app.demo_errors import DemoError
from hekla.app.demo_serving import DemoModel
from hekla.app.demo_stage import NAMESPACE, Stage, is_ready, read_example, why_of
from hekla.app.demo_vllm import DemoVllm
from hekla.app.detached import start_detached, stop
from hekla.app.engine_environment import EngineEnvironment, EngineError, found_environment
from hekla.app.settings import Settings
from hekla.kube.informer import Informers
from hekla.kube.kubeconfig import client_from_kubeconfig

NODES, GPUS_PER_NODE = 2, 8
LOSS_LINES_BEFORE_THE_KILL = 3
UNHURRIED_STEP_S = 0.2
"""For the training to go on while a real engine starts."""


def run_demo(*, is_simulated: bool = False) -> None:
    """Play every act in a platform of its own, and leave nothing behind; vLLM serves the model where it is installed."""
    engine = None if is_simulated else _real_engine()
    with tempfile.TemporaryDirectory(prefix="hekla-demo-", ignore_cleanup_errors=True) as folder:
        settings = Settings(
            data_dir=Path(folder),
            port=0,
            nodes=NODES,
            gpus_per_node=GPUS_PER_NODE,
            cpu_per_node="32",
            memory_per_node="64Gi",
            engine_python=engine.python if engine else None,
        )
        directory = DataDirectory(settings.data_dir)
        # the platform holds the reading end: should we be killed, it sees the pipe close and ends
        reading, writing = os.pipe()
        try:
            url = start_detached(settings, lives_while=reading)
            asyncio.run(_play(directory, url, engine))
        finally:
            running = directory.running()
            if running is not None and not stop(running, timeout_s=20):
                raise DemoError(f"the platform (process {running.pid}) had to be killed at the end")
            os.close(reading)
            os.close(writing)
    print(NEXT_STEPS)  # noqa: T201 - the demo's own voice


def _real_engine() -> EngineEnvironment | None:
    try:
        return found_environment()
    except EngineError as error:
        print(f"no real engine: {error}")  # noqa: T201 - the demo's own voice
        return None


async def _play(directory: DataDirectory, url: str, engine: EngineEnvironment | None) -> None:
    client = client_from_kubeconfig(directory.kubeconfig)
    failed: Exception | None = None
    try:
        async with Informers(client) as informers:
            stage = Stage(client, informers)
            await informers.synced()
            async with stage.drawn():
                stage.say(f"act 1: a platform is up at {url}, with {NODES} virtual nodes of {GPUS_PER_NODE} GPUs")
                await stage.until(stage.nodes, lambda nodes: sum(map(is_ready, nodes)) == NODES, "the nodes are ready")
                await (_with_vllm(stage, directory, engine) if engine else _with_the_simulator(stage, directory))
            await stage.finish()
    except* DemoError as errors:
        failed = errors.exceptions[0]
    finally:
        await client.close()
    if failed is not None:  # raised in there, it would be a group of errors up to Python 3.11.3
        raise failed


async def _with_the_simulator(stage: Stage, directory: DataDirectory) -> None:
    """The model comes up in a moment, so the acts follow one another."""
    async with DemoModel(stage, directory) as model:
        async with asyncio.TaskGroup() as group:
            group.create_task(model.bring_up())
            group.create_task(_train(stage))
        await _second_gang_and_agents(stage, directory)
        await model.follow_the_load()


async def _with_vllm(stage: Stage, directory: DataDirectory, engine: EngineEnvironment) -> None:
    """An engine takes half a minute to start: it begins first, and its acts are played beside the others."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_serve(stage, directory, engine))
        group.create_task(_gangs_and_agents(stage, directory))


async def _serve(stage: Stage, directory: DataDirectory, engine: EngineEnvironment) -> None:
    if await DemoVllm(stage, directory, engine).play():
        return
    async with DemoModel(stage, directory) as model:
        await model.bring_up()
        await model.follow_the_load()


async def _gangs_and_agents(stage: Stage, directory: DataDirectory) -> None:
    await _train(stage, step_s=UNHURRIED_STEP_S)
    await _second_gang_and_agents(stage, directory)


async def _second_gang_and_agents(stage: Stage, directory: DataDirectory) -> None:
    agents = DemoAgents(stage, directory)
    async with asyncio.TaskGroup() as group:
        group.create_task(_wait_in_line(stage))
        group.create_task(agents.visit())
    await agents.close()


async def _train(stage: Stage, *, step_s: float = 0.0) -> None:
    job = read_example("training/job.yaml")
    if step_s:
        container = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
        container["env"].append({"name": "STEP_SECONDS", "value": str(step_s)})
    await stage.submit(job)
    stage.say("act 2: `train` asks for four workers with three GPUs each; they start together or not at all")
    await stage.until_phase("train", "Running")
    where = ", ".join(f"{pod.metadata.name} on {pod.spec.node_name}" for pod in stage.pods_of("train"))
    stage.say(f"all four run as real processes: {where}")
    stage.follow("train")
    await stage.until_lines("loss", LOSS_LINES_BEFORE_THE_KILL)
    await _kill_one(stage)


async def _wait_in_line(stage: Stage) -> None:
    await stage.submit(read_example("training/second.yaml"))
    stage.say("act 3: `second` asks for two workers with four GPUs each; three are left in all")
    await stage.until(stage.groups, lambda groups: bool(why_of("second", groups)), "the second gang says why it waits")
    stage.say(f"it waits whole: {why_of('second', stage.groups.cache.list())}")
    await stage.until_phase("train", "Completed")
    stage.say(f"`train` is done: {stage.last_line('loss')}")
    await stage.until_phase("second", "Running", "Completed")
    stage.say("its GPUs are free, so `second` starts, whole")
    await stage.until_phase("second", "Completed")
    stage.say("`second` is done")


async def _kill_one(stage: Stage) -> None:
    victim = stage.pods_of("train")[-1]
    stage.say(f"now {victim.metadata.name} is killed; the job's policy for that is RestartJob")
    await stage.client.delete(Pod, victim.metadata.name, NAMESPACE, grace_s=0)
    await stage.until(stage.jobs, lambda jobs: _retries("train", jobs) > 0, "the job restarts")
    await stage.until_phase("train", "Running", "Completed")
    stage.say("the whole gang has started anew, and meets again")
    stage.follow("train")


def _retries(name: str, jobs: Sequence[Job]) -> int:
    return next((job.status.retry_count for job in jobs if job.metadata.name == name), 0)


NEXT_STEPS = """
act 5: yours. The platform of the demo is gone; `make up` (or `hekla up --detach`) starts one that stays:

    export PATH="$PWD/.venv/bin:$PATH"
    hekla up --detach --nodes 2 --gpus-per-node 8
    hekla apply -f examples/training/job.yaml
    hekla get vcjob,podgroups,pods        # -w to watch, -o wide to see where
    hekla logs -f vcjob/train
    hekla apply -f examples/serving/chat.yaml; hekla status       # where the model is asked, and the keys to it
    hekla describe podgroup
    hekla down

Every Kubernetes client works too: export KUBECONFIG=$(hekla kubeconfig); kubectl get queues"""
