"""Text prompts whose tokens are asked of an engine: what `hekla engine` tells of its cache decides for them, and nobody waits long."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from hekla.api.core import Namespace, Pod
from hekla.api.crd import CUSTOM_KINDS
from hekla.api.kthena import ModelRoute, ModelServer
from hekla.app.engine.process import serving
from hekla.app.engine.settings import EngineSettings, KvEvents
from hekla.kube.api_client import ApiClient
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import Informers
from hekla.serving.router.annotations import KV_EVENTS_PORT, KV_REPLAY_PORT, TOKENIZER
from hekla.serving.router.running import Router
from hekla.serving.router.settings import RouterSettings
from hekla.serving.router.tokenizing import Tokenizing
from hekla.testing.server import api_server
from hekla.wire.client import HttpClient
from serving.router import proxykit as kit
from serving.router.test_running import READY, eventually
from serving.router.worldkit import director, pod, question, route, server, to

pytestmark = pytest.mark.usefixtures("lane")

TALK = [{"role": "user", "content": "tell me of the lava fields of the north, and of the sheep that cross them " * 30}]
BLOCK_SIZE = EngineSettings(model="m").block_size
MERGE = "application/merge-patch+json"


@asynccontextmanager
async def routed(tmp_path, engines=2, tokenizer="engine", *, publishes=True):
    """A router over simulated engines that tell what they cache, if they do; its `ModelServer` says who tokenizes."""
    events = (
        KvEvents()
        if not publishes
        else KvEvents(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint="tcp://127.0.0.1:*",
            replay_endpoint="tcp://127.0.0.1:*",
        )
    )
    async with AsyncExitStack() as stack:
        told = EngineSettings(model="m", host="127.0.0.1", port=0, time_scale=0.05, grace_s=0.0, kv_events=events)
        at = [await stack.enter_async_context(serving(told)) for _ in range(engines)]
        api = await stack.enter_async_context(
            api_server(kinds=[kind for kind in CUSTOM_KINDS if "kthena" in kind.__module__])
        )
        client = ApiClient(InProcessTransport(api.handle))
        await client.create(Namespace, {"metadata": {"name": "ml"}})
        rules = [{"name": "all", "targetModels": [{"modelServerName": "m"}]}]
        await client.create(
            ModelRoute, {"metadata": {"name": "m", "namespace": "ml"}, "spec": {"modelName": "m", "rules": rules}}
        )
        spec = {
            "inferenceEngine": "vLLM", "workloadSelector": {"matchLabels": {"app": "m"}}, "workloadPort": {"port": 1},
        }  # fmt: skip
        about = {"name": "m", "namespace": "ml", "annotations": {TOKENIZER: tokenizer} if tokenizer else {}}
        await client.create(ModelServer, {"metadata": about, "spec": spec})
        informers = await stack.enter_async_context(Informers(ApiClient(InProcessTransport(api.handle))))
        settings = RouterSettings(
            host="127.0.0.1", port=0, metrics_port=-1, debug_port=-1, access_log_enabled=False,
            configuration_file=str(tmp_path / "none"), scrape_interval_s=0.05,
        )  # fmt: skip
        router = Router(settings, informers)
        router.tokenizing._wait_s = kit.PATIENCE_S  # a busy machine takes its time
        await router.listen()
        running = asyncio.create_task(router.run())
        try:
            for number, one in enumerate(at):
                await _add_pod(client, f"e{number}", one)
            await eventually(lambda: len(router.fleet.by_name) == engines)
            for number, one in enumerate(
                at
            ):  # every pod has one port by its ModelServer; these engines have what they got
                router.fleet.by_name[f"ml/e{number}"].port = one.port
            http = HttpClient()
            stack.push_async_callback(http.close)
            yield router, [f"http://127.0.0.1:{one.port}" for one in at], http
        finally:
            router.stop()
            await running


async def _add_pod(client, name, engine):
    ports = {
        key: at.rpartition(":")[2]
        for key, at in ((KV_EVENTS_PORT, engine.kv_events), (KV_REPLAY_PORT, engine.kv_replays))
        if at
    }
    metadata = {"name": name, "namespace": "ml", "labels": {"app": "m"}, "annotations": ports}
    spec = {"containers": [{"name": "engine", "image": "vllm"}]}
    await client.create(Pod, {"metadata": metadata, "spec": spec})
    path = f"/api/v1/namespaces/ml/pods/{name}/status"
    await client.request("PATCH", path, {"status": READY}, content_type=MERGE)


async def cached(http, url, messages, **more):
    body = msgspec.json.encode({"model": "m", "messages": messages, "max_tokens": 4, **more})
    answer = await http.request("POST", f"{url}/v1/chat/completions", (("content-type", "application/json"),), body)
    assert answer.status == 200, answer.body
    told = msgspec.json.decode(answer.body)
    details = told["usage"]["prompt_tokens_details"]
    return told["choices"][0]["message"]["content"], (details or {}).get("cached_tokens", 0)


def test_a_chat_goes_where_its_cache_is_though_it_came_there_past_the_router(tmp_path):
    async def story():
        async with routed(tmp_path) as (router, engines, http):
            for number, url in enumerate(engines):  # each engine holds a conversation that the router never saw
                said = [{"role": "user", "content": f"{number} {TALK[0]['content']}"}]
                first, _ = await cached(http, url, said)
                _, found = await cached(http, url, said)
                await eventually(lambda number=number, found=found: _held(router, number) * BLOCK_SIZE >= found > 0)
                _, found = await cached(http, f"http://127.0.0.1:{router.port}", said)
                assert found > 0, "the tokens were asked for, and the events decided"
                again = [*said, {"role": "assistant", "content": first}, {"role": "user", "content": "and then?"}]
                _, found = await cached(http, f"http://127.0.0.1:{router.port}", again)
                assert found > 0
            assert router.tokenizing.outcomes["asked"] >= 2
            assert router.tokenizing.outcomes["known"] >= 2, "the next turn needs no question"

    kit.run(story())


def _held(router, number):
    """How many blocks the router knows an engine to hold, by what it told; what was missed it tells again when it is asked."""
    slot = router.fleet.by_name[f"ml/e{number}"].slot
    return sum(holders >> slot & 1 for holders in router.fleet.precise.holders.values())


def test_without_a_tokenizer_nobody_is_asked(tmp_path):
    async def story():
        async with routed(tmp_path, engines=1, tokenizer="") as (router, _, http):
            await cached(http, f"http://127.0.0.1:{router.port}", TALK)
            assert not router.tokenizing.outcomes

    kit.run(story())


class Clients:
    """Engines that answer /tokenize as told."""

    def __init__(self, status=200, body=b'{"tokens":[1,2,3]}', hangs=False):
        self.status, self.body, self.hangs = status, body, hangs
        self.asked = []

    def __call__(self, is_tls):
        return self

    async def request(self, method, url, headers=(), body=b"", timeout_s=0.0):
        self.asked.append((url, msgspec.json.decode(body)))
        if self.hangs:
            await asyncio.Event().wait()
        return type("Answer", (), {"status": self.status, "body": self.body})()

    async def close(self):
        pass


def backend():
    desk = director(
        route("r", to("s"), model="m"), server("s", annotations={TOKENIZER: "engine"}), pod("a", {"app": "s"})
    )
    (one,) = desk.world.fleet.by_name.values()
    one.has_events = True
    return desk.world.servers["ml/s"]


LONG = "lava " * 400


def asked(text=LONG, **more):
    return question("m", text, **more)


@pytest.mark.parametrize(
    ("clients", "outcome"),
    [
        (Clients(), "asked"),
        (Clients(status=404), "failed"),
        (Clients(body=b"{}"), "failed"),
        (Clients(hangs=True), ""),
    ],
)
def test_a_request_waits_a_moment_and_goes_on_whatever_becomes_of_its_tokens(clients, outcome):
    async def story():
        tokenizing = Tokenizing(clients, wait_s=0.01 if clients.hangs else kit.PATIENCE_S)
        one, told = asked(), []
        held = tokenizing.of_text(backend(), one)
        held.when_ready(told.append)
        await eventually(lambda: bool(told))
        assert told == [None]
        assert one.was_tokenized
        assert (one.token_ids is not None) == (outcome == "asked")
        assert dict(tokenizing.outcomes) == ({outcome: 1} if outcome else {})
        await tokenizing.close()

    kit.run(story())


def test_an_engine_is_told_all_that_decides_how_a_chat_is_rendered_and_nothing_else():
    async def story():
        clients = Clients()
        tokenizing = Tokenizing(clients)
        body = {"model": "m", "messages": [], "tools": [{"x": 1}], "temperature": 1, "chat_template_kwargs": {"a": 1}}
        assert tokenizing.of_text(backend(), asked(body=body)) is not None
        await eventually(lambda: bool(clients.asked))
        url, sent = clients.asked[0]
        assert url == "http://10.0.0.1:8000/tokenize"
        assert sent == {"model": "m", "messages": [], "tools": [{"x": 1}], "chat_template_kwargs": {"a": 1}}
        await tokenizing.close()

    kit.run(story())


@pytest.mark.parametrize(
    "one",
    [
        asked(path="/v1/embeddings"),
        asked("short"),
        asked(path="/v1/completions", body={"model": "m", "prompt": ["a", "b"]}),
        asked(path="/v1/completions", body={"model": "m", "prompt": [1, 2]}, is_tokens=True),
        asked(body=b'{"model": "m", "messages": "' + b"x" * (5 << 20) + b'"}'),
    ],
)
def test_what_no_engine_could_tokenize_is_not_held(one):
    async def story():
        clients = Clients()
        assert Tokenizing(clients).of_text(backend(), one) is None
        assert not clients.asked

    kit.run(story())


def test_questions_are_bounded(monkeypatch):
    async def story():
        monkeypatch.setattr("hekla.serving.router.tokenizing.MOST_ASKED", 2)
        tokenizing, at = Tokenizing(Clients(hangs=True)), backend()
        held = [tokenizing.of_text(at, asked(f"{number} {LONG}")) for number in range(3)]
        assert [one is not None for one in held] == [True, True, False]
        assert tokenizing.outcomes["busy"] == 1
        await tokenizing.close()

    kit.run(story())
