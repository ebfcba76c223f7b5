"""The demo's model by a real vLLM, where one is installed (`make engines`): a tiny model without weights, on this machine's processor.

An engine takes half a minute to start, so it begins first and everything else is played meanwhile. One that does not come up in
time is let go, and the engine simulator takes its place (`demo_serving.py`).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from hekla.api.kthena import ModelBooster, labels
from hekla.api.meta import Document
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim
from hekla.app.data_directory import DataDirectory
from hekla.app.demo_chats import ChatClient
from hekla.app.demo_serving import QUESTION, WORDS, available, wanted
from hekla.app.demo_stage import NAMESPACE, Stage
from hekla.app.demo_weights import CONTEXT, write_model
from hekla.app.engine_environment import EngineEnvironment

MODEL: Final = "tiny"
SERVING: Final = f"{MODEL}-vllm"
PLACE: Final = Path(".cache") / "hekla" / "demo"
"""Below the user's home: the model, and what vLLM remembers of it, which saves the next start seven seconds."""
FIRST_WITHIN_S: Final = 60.0
ALL_WITHIN_S: Final = 85.0
"""From the beginning to the second engine: a demo that takes longer is not watched."""
TOLD_EVERY_S: Final = 10.0
CROWD: Final = 12
LONG_ANSWER: Final = 100
REST_S: Final = 3.0


class DemoVllm:
    """A model that vLLM serves, and who asks it."""

    def __init__(self, stage: Stage, directory: DataDirectory, engine: EngineEnvironment) -> None:
        self._stage, self._engine = stage, engine
        self._client = ChatClient(directory, MODEL)
        self._began = time.monotonic()

    async def play(self) -> bool:
        """Serve, answer, and follow the load; False where the engine did not come up."""
        try:
            if not await self._come_up():
                return False
            said = await self._client.answer(QUESTION, WORDS)
            self._stage.say(
                f"`{MODEL}` answers through the router {self._stage.trains()}: {said!r} (the engine is real, its weights are not)"
            )
            await self._follow_the_load()
        finally:
            await self._client.close()
        return True

    async def _come_up(self) -> bool:
        stage, name = self._stage, f"vLLM {self._engine.version}"
        await _provide(stage)
        stage.say(
            f"`{MODEL}`, one ModelBooster, asks for an engine with one GPU in the same queue: {name}, found in "
            f"{self._engine.python.parent.parent}, which takes about half a minute to start"
        )
        async with self._told(f"{name} starts"):
            until_s = FIRST_WITHIN_S - self._passed_s()
            await stage.comes(
                stage.servings, lambda all_: available(SERVING, all_) >= 1 or bool(self._ended()), until_s
            )
        came = available(SERVING, stage.servings.cache.list()) >= 1
        if not came:
            why = self._ended() or f"is not up after {self._passed_s():.0f} s"
            stage.say(f"{name} {why}; the demo goes on without it, and the engine simulator takes its place")
            await stage.client.delete(ModelBooster, MODEL, NAMESPACE)
        return came

    async def _follow_the_load(self) -> None:
        stage = self._stage
        stage.say(f"act 4: {CROWD} chats at once; the engine takes four, so the autoscaler asks the queue for more")
        async with self._client.crowd(CROWD, LONG_ANSWER) as crowd:
            if not await stage.comes(
                stage.servings, lambda all_: wanted(SERVING, all_) > 1, ALL_WITHIN_S - self._passed_s()
            ):
                crowd.check()
                stage.say(
                    "this machine is too busy to count who waits in time; the demo does not wait for a second engine"
                )
                return
            stage.say("it asks for a second engine, which is scheduled like every pod; the crowd thins out meanwhile")
            crowd.thin_out(rest_s=REST_S)  # two processors do not start an engine and compute for a crowd at once
            async with self._told("the second engine starts"):
                until_s = ALL_WITHIN_S - self._passed_s()
                came = await stage.comes(stage.servings, lambda all_: available(SERVING, all_) > 1, until_s)
            crowd.check()
            served = f"{crowd.answered} answers so far, and none was lost"
            if came:
                stage.say(f"2 engines share the load; {served}")
            else:
                stage.say(f"the second engine is placed but still starts, and the demo does not wait for it; {served}")

    @contextlib.asynccontextmanager
    async def _told(self, what: str) -> AsyncIterator[None]:
        """Tell every ten seconds that it still goes on."""

        async def tell() -> None:
            began = time.monotonic()
            while True:
                await asyncio.sleep(TOLD_EVERY_S)
                self._stage.say(f"  {what}: {time.monotonic() - began:.0f} s so far")

        telling = asyncio.create_task(tell())
        try:
            yield
        finally:
            telling.cancel()

    def _ended(self) -> str:
        """How an engine ended that was to serve; empty: none did."""
        for pod in self._stage.pods.cache.list():
            if pod.metadata.labels.get(labels.NAME) == SERVING:
                for one in pod.status.container_statuses:
                    ended = one.last_state.terminated if one.last_state else None
                    if one.name == "engine" and ended is not None:
                        return f"ended with {ended.exit_code}"
        return ""

    def _passed_s(self) -> float:
        return time.monotonic() - self._began


async def _provide(stage: Stage) -> None:
    """The model on a volume, a claim to it, and the ModelBooster."""
    place = Path.home() / PLACE
    await asyncio.to_thread(write_model, place / MODEL)
    await stage.client.create(PersistentVolume, _volume(place), "")
    await stage.client.create(PersistentVolumeClaim, _claim(), NAMESPACE)
    await stage.client.create(ModelBooster, booster(), NAMESPACE)


def booster() -> Document:
    """As a user would write it; nothing is fetched, and one thread computes.

    Without VLLM_ENABLE_V1_MULTIPROCESSING the worker lives in the engine's process, where vLLM begins a third one on a CPU, to set
    the threads that are set here: 17 s of one processor until it answers, instead of 26.
    """
    environment = {
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CACHE_ROOT": "/models/cache", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    config = {
        "dtype": "float32", "enforce-eager": True, "load-format": "dummy", "max-model-len": CONTEXT, "max-num-seqs": 4,
    }  # fmt: skip
    worker = {
        "type": "server", "image": "vllm/vllm-openai-cpu", "replicas": 1, "pods": 1, "config": config,
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }  # fmt: skip
    replicas = {"serving.hekla.dev/min-replicas": "1", "serving.hekla.dev/max-replicas": "2"}
    backend = {
        "name": "vllm", "type": "vLLM", "modelURI": f"pvc://models/{MODEL}", "cacheURI": "pvc://models", "replicas": 1,
        "env": [{"name": name, "value": value} for name, value in environment.items()], "workers": [worker],
    }  # fmt: skip
    return {"metadata": {"name": MODEL, "annotations": replicas}, "spec": {"backend": backend}}


def _volume(place: Path) -> Document:
    claim = {"kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": "models"}
    spec = {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "hostPath": {"path": str(place)},
        "persistentVolumeReclaimPolicy": "Retain", "claimRef": claim,
    }  # fmt: skip
    return {"metadata": {"name": "models"}, "spec": spec}


def _claim() -> Document:
    spec = {
        "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "models",
        "resources": {"requests": {"storage": "1Gi"}},
    }  # fmt: skip
    return {"metadata": {"name": "models"}, "spec": spec}
