"""The demo's model: one object becomes an engine in the training's queue, a chat is streamed while the training runs, and under load
the autoscaler adds replicas.

`demo.py` tells the rest, `demo_vllm.py` the same with a real vLLM; here the engine simulator serves (`hekla engine`).
"""

from collections.abc import Sequence
from typing import Final

from hekla.api.kthena import ModelBooster, ModelServing
from hekla.api.meta import Document
from hekla.app.data_directory import DataDirectory
from hekla.app.demo_chats import ChatClient
from hekla.app.demo_stage import NAMESPACE, Stage, read_example
from hekla.node.engines import STAND_IN_IMAGE

MODEL: Final = "chat"
SERVING: Final = "chat-demo"
EXAMPLE: Final = "serving/chat.yaml"
QUESTION: Final = "In one line: why do gangs start whole?"
WORDS: Final = 12
CROWD: Final = 24
"""Chats under way at once: the engine of the example runs four, so that twenty wait."""
LONG_ANSWER: Final = 200


class DemoModel:
    """The model of the demo, by the engine simulator."""

    def __init__(self, stage: Stage, directory: DataDirectory) -> None:
        self._stage = stage
        self._client = ChatClient(directory, MODEL)

    async def __aenter__(self) -> "DemoModel":
        """Nothing is there yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up."""
        await self._client.close()

    async def bring_up(self) -> None:
        """Create the one object, and stream a chat when the first engine is ready."""
        stage = self._stage
        await stage.client.create(ModelBooster, booster(), NAMESPACE)
        stage.say(f"meanwhile `{MODEL}`, one ModelBooster, asks for an engine with one GPU in the same queue")
        await stage.until(stage.servings, lambda all_: available(SERVING, all_) >= 1, "the model's engine is ready")
        said = await self._client.answer(QUESTION, WORDS)
        stage.say(
            f"`{MODEL}` answers through the router {stage.trains()}: {said!r} (its words are noise, its times are not)"
        )

    async def follow_the_load(self) -> None:
        """Let a crowd ask until there are more replicas."""
        stage = self._stage
        stage.say(f"act 4: {CROWD} chats at once; the engine takes four, so the autoscaler asks the queue for more")
        async with self._client.crowd(CROWD, LONG_ANSWER) as crowd:
            await stage.until(stage.servings, lambda all_: wanted(SERVING, all_) > 1, "the autoscaler asks for more")
            replicas = wanted(SERVING, stage.servings.cache.list())
            stage.say(f"it asks for {replicas} replicas; they are scheduled like every pod")
            await stage.until(stage.servings, lambda all_: available(SERVING, all_) > 1, "a second engine is ready")
            crowd.check()
            engines = available(SERVING, stage.servings.cache.list())
            stage.say(f"{engines} engines share the load; {crowd.answered} answers so far, and none was lost")


def booster() -> Document:
    """The example's ModelBooster; the simulator is asked for by name, so that no vLLM takes its place and fetches weights."""
    document = read_example(EXAMPLE)
    for worker in document["spec"]["backend"]["workers"]:
        worker["image"] = STAND_IN_IMAGE
    return document


def available(serving: str, servings: Sequence[ModelServing]) -> int:
    """How many of a model's engines are ready."""
    return next((one.status.available_replicas for one in servings if one.metadata.name == serving), 0)


def wanted(serving: str, servings: Sequence[ModelServing]) -> int:
    """How many engines a model is to have."""
    return next((one.spec.replicas or 0 for one in servings if one.metadata.name == serving), 0)
