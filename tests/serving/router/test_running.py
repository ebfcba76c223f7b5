"""A whole router over an API server and scripted engines: objects in, answers out, and what it tells of itself."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from hekla.api.apiextensions import CustomResourceDefinition
from hekla.api.core import Namespace, Pod
from hekla.api.crd import CUSTOM_KINDS, crd_document
from hekla.api.foreign import Gateway, GatewayClass, HttpRoute
from hekla.api.kthena import ModelRoute, ModelServer
from hekla.edge.shared_buckets import place_of
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import ApiError
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import Informers
from hekla.serving.router import beginning as beginning_module
from hekla.serving.router import running
from hekla.serving.router.authentication import ApiKeyError
from hekla.serving.router.beginning import HOLD_S, Beginning
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.plan import Refusal, Waiting
from hekla.serving.router.plugin_times import name_of
from hekla.serving.router.question import Question
from hekla.serving.router.running import Router, password_for
from hekla.serving.router.settings import RouterSettings
from hekla.testing.flaky import FlakyTransport
from hekla.testing.server import api_server
from hekla.wire.client import HttpClient
from serving.router import intolane
from serving.router import proxykit as kit

pytestmark = pytest.mark.usefixtures("lane")

METRICS = b"""# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_waiting{engine="0",model_name="m"} 2
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""


@dataclass
class Routed:
    """A router that runs, with its engines and the cluster's objects."""

    router: Router
    client: ApiClient
    engines: list[kit.ScriptedEngine]
    running: asyncio.Task[None]
    log: Path
    clients: list[kit.Client] = field(default_factory=list)

    async def connect(self) -> kit.Client:
        client = kit.Client(*await asyncio.open_connection("127.0.0.1", self.router.port))
        self.clients.append(client)
        if kit.KERNEL is not None and self.router.lane is not None:
            doorway = self.router.listener.doorway
            await intolane.put_in(self.router.lane, doorway, client.reader, client.writer, kit.chat())
        return client

    async def ask(self, data: bytes) -> kit.Answer:
        return await (await self.connect()).ask(data)

    async def get(self, path: str) -> kit.Answer:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    async def logged(self) -> list[Any]:
        """The access log, once all that is over is in it."""
        self.router.keep_books()
        assert self.router._access_log is not None
        await self.router._access_log.flushed()
        return [json.loads(line) for line in self.log.read_text().splitlines()]


async def eventually(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


def engine_script(answer: bytes) -> kit.Script:
    async def script(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        if asked.line.startswith("GET /metrics"):
            writer.write(kit.whole(METRICS))
        elif asked.line.startswith("GET"):
            writer.write(kit.whole(b'{"data":[]}'))
        else:
            writer.write(answer)

    return script


def pod(name: str, port: int) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ml", "labels": {"app": f"port-{port}"}},
        "spec": {"containers": [{"name": "engine", "image": "vllm"}]},
    }


READY = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}


@asynccontextmanager
async def routed(tmp_path: Path, *answers: bytes, also_kinds: Any = (), **settings: Any) -> AsyncIterator[Routed]:
    """A router over one ModelServer, pod and engine for each answer; one route `m` with equal weights."""
    engines = [kit.ScriptedEngine(engine_script(one), f"engine-{n}") for n, one in enumerate(answers)]
    servers = [await one.serve() for one in engines]
    log = tmp_path / "access.log"
    told = {
        "host": "127.0.0.1", "port": 0, "metrics_host": "127.0.0.1", "metrics_port": 0, "debug_port": 0,
        "configuration_file": str(tmp_path / "routerConfiguration.yaml"), "scrape_interval_s": 0.05,
        "access_log_format": "json", "access_log_output": str(log),
    }  # fmt: skip
    async with api_server(kinds=(*CUSTOM_KINDS, *also_kinds)) as server:
        client = ApiClient(InProcessTransport(server.handle))
        await client.create(Namespace, {"metadata": {"name": "ml"}})
        for number, engine in enumerate(engines):
            await add_engine(client, f"m-{number}", engine.port)
        targets = [{"modelServerName": f"m-{number}", "weight": 100} for number in range(len(engines))]
        await client.create(
            ModelRoute,
            {
                "metadata": {"name": "m", "namespace": "ml"},
                "spec": {"modelName": "m", "rules": [{"name": "all", "targetModels": targets}]},
            },
        )
        async with Informers(ApiClient(InProcessTransport(server.handle))) as informers:
            router = Router(RouterSettings(**{**told, **settings}), informers)
            await router.listen()
            running = asyncio.create_task(router.run())
            it = Routed(router, client, engines, running, log)
            await eventually(lambda: not router.trouble and len(router.fleet.by_name) == len(engines))
            if kit.KERNEL is not None:
                _open_lane(router, kit.KERNEL)
            try:
                yield it
            finally:
                for one in it.clients:
                    one.leave()
                router.stop()
                await running
                for one_server in servers:
                    one_server.close()


@asynccontextmanager
async def beside(settings: RouterSettings, transport: FlakyTransport) -> AsyncIterator[tuple[Router, kit.Client]]:
    """One more router, by another way to the API server, and a client of it."""
    async with Informers(ApiClient(transport)) as informers:
        router = Router(settings, informers)
        await router.listen()
        running = asyncio.create_task(router.run())
        client = kit.Client(*await asyncio.open_connection("127.0.0.1", router.port))
        try:
            yield router, client
        finally:
            client.leave()
            router.stop()
            await running


def _open_lane(router: Router, kernel: Kernel) -> None:
    router.upgrading._kernel = kernel
    for pool in router.world.pools():
        pool.use(kernel)
    router.open_lane(kernel)


async def add_engine(client: ApiClient, name: str, port: int) -> None:
    spec = {
        "inferenceEngine": "vLLM",
        "workloadSelector": {"matchLabels": {"app": f"port-{port}"}},
        "workloadPort": {"port": port},
    }
    await client.create(ModelServer, {"metadata": {"name": name, "namespace": "ml"}, "spec": spec})
    await client.create(Pod, pod(f"{name}-pod", port))
    await client.request(
        "PATCH", f"/api/v1/namespaces/ml/pods/{name}-pod/status", {"status": READY},
        content_type="application/merge-patch+json",
    )  # fmt: skip


def test_a_router_is_ready_without_the_kinds_of_the_gateway_api_and_takes_them_up_when_they_come(
    tmp_path: Path,
) -> None:
    later = [Gateway, GatewayClass, HttpRoute]

    async def story() -> None:
        async with routed(tmp_path, kit.whole(), with_gateways=True) as it:
            with capture_logs() as told:
                for _ in range(25):
                    await it.router.upkeep.look()
            assert not told  # it was told when the router began
            assert (await it.get("/readyz")).body == b"ok"
            assert (await it.ask(kit.chat())).status == 200
            for kind in later:
                await it.client.create(CustomResourceDefinition, crd_document(kind))
            it.router.upkeep._looks_to_wait = 0
            await it.router.upkeep.look()
            await eventually(lambda: "default/default" in it.router.world.gateways)

    kit.run(story())


def test_who_asks_a_router_that_has_just_begun_is_answered_once_it_knows_the_routes(tmp_path: Path) -> None:
    """Of a crew on a real cluster one process was killed: its successor told clients that their model did not exist."""

    async def story() -> None:
        async with routed(tmp_path, kit.whole()) as it:
            flaky = FlakyTransport(it.client._transport)
            flaky.is_away = True
            async with beside(it.router.settings, flaky) as (second, client):
                asking = asyncio.create_task(client.ask(kit.chat()))
                await eventually(lambda: bool(second.beginning._held))
                flaky.is_away = False
                assert (await asking).status == 200

    kit.run(story())


def test_a_router_that_learns_nothing_says_so_and_begins_with_what_it_knows() -> None:
    now, unknown, is_blind = 0.0, "not known yet: pods", True
    beginning = Beginning(lambda: unknown, lambda: is_blind, lambda: now)
    question = Question("m", "/v1/chat/completions", b"", 0)
    told: list[Any] = []
    held = beginning.admit(question, now)
    assert isinstance(held, Waiting)
    held.when_ready(told.append)
    now = HOLD_S
    assert not beginning.look()
    assert [(one.status, "not known yet: pods" in one.message) for one in told] == [(503, True)]
    assert isinstance(beginning.admit(question, now), Refusal)
    is_blind = False
    assert beginning.admit(question, now) is None


def test_who_leaves_a_router_that_has_just_begun_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning_module, "MOST_HELD", 2)
    beginning = Beginning(lambda: "not known yet: pods", lambda: True, lambda: 0.0)
    question = Question("m", "/v1/chat/completions", b"", 0)
    told: list[Any] = []
    for _ in range(2):
        held = beginning.admit(question, 0.0)
        assert isinstance(held, Waiting)
        held.when_ready(told.append)
    assert isinstance(beginning.admit(question, 0.0), Refusal)
    held.abandon()
    assert isinstance(beginning.admit(question, 0.0), Waiting)
    assert told == []


def test_a_stranger_takes_no_place_of_a_router_that_has_just_begun(tmp_path: Path) -> None:
    """A thousand of them had everybody else refused until the router knew its routes."""
    file = tmp_path / "keys"
    file.write_text("ann: sk-0123456789abcdef\n")

    async def story() -> None:
        async with routed(tmp_path, kit.whole()) as it:
            flaky = FlakyTransport(it.client._transport)
            flaky.is_away = True
            settings = replace(it.router.settings, api_keys_file=str(file))
            async with beside(settings, flaky) as (second, client):
                assert (await client.ask(kit.chat())).status == 401
                assert not second.beginning._held
                known = kit.chat(headers="authorization: Bearer sk-0123456789abcdef\r\n")
                asking = asyncio.create_task(client.ask(known))
                await eventually(lambda: bool(second.beginning._held))
                flaky.is_away = False
                assert (await asking).status == 200

    kit.run(story())


@pytest.mark.parametrize(("forbidden", "status"), [(("pods",), 503), (("modelroutes",), 404)])
def test_a_router_goes_on_without_what_its_api_server_forbids(
    tmp_path: Path, forbidden: tuple[str, ...], status: int
) -> None:
    """It said for as long as it lived that it had just begun."""

    def forbid(request: Any) -> None:
        if any(f"/{one}?" in request.target for one in forbidden):
            raise ApiError(403, "Forbidden", f"{forbidden[0]} is forbidden")

    async def story() -> None:
        async with routed(tmp_path, kit.whole()) as it:
            flaky = FlakyTransport(it.client._transport)
            flaky.before = forbid
            async with beside(it.router.settings, flaky) as (second, client):
                await eventually(lambda: not second.discovery.is_blind and bool(second.trouble))
                second.beginning._until = 0.0
                answer = await client.ask(kit.chat())
                assert answer.status == status
                assert b"has just begun" not in answer.body
                assert b"is forbidden" in (await client.ask(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")).body

    kit.run(story())


@pytest.mark.parametrize(
    "error", [ApiError(403, "Forbidden", "all of it is forbidden"), ApiError(401, "Unauthorized", "Unauthorized")]
)
def test_a_router_that_may_read_nothing_says_so_at_once(tmp_path: Path, error: ApiError) -> None:
    """It took the API server for one that is away, and held every request of its first ten seconds."""

    def forbid(request: Any) -> None:
        raise error

    async def story() -> None:
        async with routed(tmp_path, kit.whole()) as it:
            flaky = FlakyTransport(it.client._transport)
            flaky.before = forbid
            async with beside(it.router.settings, flaky) as (second, client):
                second.beginning._until = float("inf")
                with capture_logs() as logged:
                    answer = await client.ask(kit.chat())
                    assert answer.status == 503
                    assert error.message.encode() in answer.body
                    assert (await client.ask(kit.chat())).status == 503
                said = [one for one in logged if one["event"] == "the router may not read the cluster"]
                assert [(one["why"], bool(one["hint"])) for one in said] == [(error.message, True)]
                assert not second.beginning._held

    kit.run(story())


def test_a_router_says_what_it_waits_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole()) as it:
            servers = next(one for one, _ in it.router.discovery._followed if one.kind is ModelServer)
            servers._synced.clear()
            servers.trouble = "the kind is not installed"
            answer = await it.get("/readyz")
            assert answer.status == 503
            assert answer.body.endswith(
                b"not known yet: modelservers.networking.serving.volcano.sh (the kind is not installed)"
            )

    kit.run(story())


def test_a_model_is_served_from_its_objects(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole()) as it:
            answer = await it.ask(kit.chat(headers="X-Request-Id: mine\r\n"))
            assert (answer.status, answer.body) == (200, kit.DOCUMENT)
            models = (await it.get("/v1/models")).json()
            assert [(one["id"], one["owned_by"]) for one in models["data"]] == [("m", "kthena")]
            assert (await it.get("/v1/models/m")).json() == models["data"][0]
            nobody = await it.get("/v1/models/n%2Fx")
            assert (nobody.status, nobody.error["param"]) == (404, "model")
            assert 'model "n/x"' in nobody.error["message"]
            wrong = await it.get("/v1/chat/completions")
            assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
            assert [(await it.get(path)).body for path in ("/readyz", "/health")] == [b"ok", b"ok"]
            missing = await it.ask(kit.chat().replace(b'"m"', b'"x"'))
            assert (missing.status, missing.error["code"]) == (404, "route_not_found")
            [first, second] = await it.logged()
            assert first["status_code"] == 200
            assert first["model_name"] == "m"
            assert first["model_route"] == "ml/m"
            assert first["model_server"] == "ml/m-0"
            assert first["selected_pod"] == "m-0-pod"
            assert first["request_id"] == "mine"
            assert (first["input_tokens"], first["output_tokens"], first["upstream_attempts"]) == (7, 3, 1)
            assert (first["upstream_status_code"], first["protocol"]) == (200, "HTTP/1.1")
            assert second["error"]["type"] == "route_not_found"
            assert second["error"]["message"].startswith('route not found: no route takes model "x" at')
            assert "model_name" in second
            assert second["model_name"] == "unknown"

    kit.run(story())


def test_an_engines_own_refusal_is_an_error_of_its_own_kind(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole(b'{"error":"no such thing"}', 404)) as it:
            assert (await it.ask(kit.chat())).status == 404
            it.router.keep_books()
            client = HttpClient()
            text = (await client.request("GET", f"http://127.0.0.1:{it.router.metrics_port}/metrics")).body.decode()
            await client.close()
            assert 'status_code="404",error_type="upstream_response"' in text

    kit.run(story())


def test_metrics_have_kthenas_names_and_labels(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.stream(kit.event("a"), kit.event("b"), kit.USAGE_EVENT, kit.DONE)) as it:
            assert (await it.ask(kit.chat(stream=True))).status == 200
            it.router.keep_books()
            client = HttpClient()
            text = (await client.request("GET", f"http://127.0.0.1:{it.router.metrics_port}/metrics")).body.decode()
            await client.close()
            where = 'model_route="ml/m",backend_type="model_server",backend_name="ml/m-0",upstream_model="m"'
            base = 'model="m",path="/v1/chat/completions"'
            assert f'kthena_router_requests_total{{{base},status_code="200",error_type="",{where}}} 1' in text
            assert f'kthena_router_tokens_total{{{base},token_type="input",{where}}} 7' in text
            assert f'kthena_router_tokens_total{{{base},token_type="output",{where}}} 3' in text
            assert f'kthena_router_request_duration_seconds_count{{{base},status_code="200",{where}}} 1' in text
            assert f'kthena_router_request_prefill_duration_seconds_count{{{base},status_code="200"}} 1' in text
            assert f'hekla_router_time_to_first_token_seconds_count{{model="m",{where}}} 1' in text
            assert f'hekla_router_inter_token_latency_seconds_count{{model="m",{where}}} 3' in text
            assert "kthena_router_active_requests 0" in text
            assert 'hekla_router_engine_in_flight{pool="ml/m-0",pod="m-0-pod"} 0' in text

    kit.run(story())


def test_engines_come_and_go_with_their_objects(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole(b'{"from":0}')) as it:
            await it.client.request("DELETE", "/api/v1/namespaces/ml/pods/m-0-pod")
            await eventually(lambda: not it.router.fleet.by_name)
            answer = await it.ask(kit.chat())
            assert (answer.status, answer.error["code"]) == (503, "pod_discovery")
            assert answer.error["message"] == "no engine of the model is ready; try again later"
            await it.client.request("DELETE", ModelRoute.kind_info.path("ml", "m"))
            await eventually(lambda: not it.router.world.models())
            assert (await it.ask(kit.chat())).status == 404

    kit.run(story())


def test_engines_are_scraped(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole()) as it:
            [endpoint] = it.router.fleet.by_name.values()
            await eventually(lambda: endpoint.running is not None)
            assert (endpoint.running, endpoint.waiting, endpoint.kv_usage) == (3, 2, 0.25)

    kit.run(story())


def test_what_is_known_is_told_on_loopback_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole()) as it:
            async with HttpClient() as client:
                base = f"http://127.0.0.1:{it.router.debug_port}/debug"
                routes = await client.request("GET", f"{base}/config_dump/modelroutes")
                assert [one["metadata"]["name"] for one in json.loads(routes.body)["modelroutes"]] == ["m"]
                one = await client.request("GET", f"{base}/config_dump/namespaces/ml/modelservers/m-0")
                server = json.loads(one.body)
                assert (server["metadata"]["name"], server["name"], server["namespace"]) == ("m-0", "m-0", "ml")
                assert server["associatedPods"] == ["ml/m-0-pod"]
                pods = json.loads((await client.request("GET", f"{base}/config_dump/pods")).body)["pods"]
                [pod] = [one for one in pods if one["name"] == "m-0-pod"]
                assert (pod["engine"], pod["modelServers"], pod["podInfo"]["podIP"]) == (
                    "vLLM",
                    ["ml/m-0"],
                    "127.0.0.1",
                )
                assert pod["metrics"].keys() >= {
                    "gpuCacheUsage",
                    "requestWaitingNum",
                    "requestRunningNum",
                    "tpot",
                    "ttft",
                }
                assert (await client.request("GET", f"{base}/config_dump/secrets")).status == 404
                engines = json.loads((await client.request("GET", f"{base}/engines")).body)
                assert [one["pod"] for one in engines] == ["m-0-pod"]
            assert (await it.get("/debug/config_dump/pods")).status == 404
            assert (await it.get("/metrics")).status == 404

    kit.run(story())


def test_a_configuration_is_taken_while_it_runs_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole()) as it:
            file = tmp_path / "routerConfiguration.yaml"
            file.write_text("scheduler: {policy: round-robin}\n")
            it.router.look_at_configuration()
            assert {name_of(pool.policy) for pool in it.router.world.pools()} == {"roundrobin"}
            file.write_text("scheduler: {policy: nonsense}\n")
            it.router.look_at_configuration()
            assert it.router.configured.refusal
            assert {name_of(pool.policy) for pool in it.router.world.pools()} == {"roundrobin"}
            assert (await it.ask(kit.chat())).status == 200

    kit.run(story())


def test_a_configuration_that_cannot_be_read_changes_nothing_and_is_told_once(tmp_path: Path) -> None:
    """It broke the router's work every few seconds, with a traceback."""

    async def story() -> None:
        file = tmp_path / "routerConfiguration.yaml"
        file.write_text("scheduler: {policy: round-robin}\n")
        async with routed(tmp_path, kit.whole()) as it:
            for wrong in (b"\xff", b"\xfe", b"a: !!bool x\n", None):
                file.unlink()
                file.write_bytes(wrong) if wrong is not None else file.mkdir()
                with capture_logs() as logged:
                    it.router.look_at_configuration()
                    it.router.look_at_configuration()
                assert [one["event"] for one in logged] == ["configuration refused"]
                assert "routerConfiguration.yaml" in logged[0]["why"]
                assert {name_of(pool.policy) for pool in it.router.world.pools()} == {"roundrobin"}
            file.rmdir()
            file.write_text("scheduler: {policy: round-robin}\n")
            it.router.look_at_configuration()
            assert not it.router.configured.refusal

    kit.run(story())


def test_keys_are_taken_while_it_runs_and_one_that_is_taken_away_opens_no_more(tmp_path: Path) -> None:
    async def story() -> None:
        file = tmp_path / "keys"
        file.write_text("ann: sk-0123456789abcdef\n")
        async with routed(tmp_path, kit.whole(), api_keys_file=str(file)) as it:

            async def statuses() -> list[int]:
                it.router.look_at_keys()
                return [
                    (await it.ask(kit.chat(headers=f"authorization: Bearer {key}\r\n"))).status
                    for key in ("sk-0123456789abcdef", "sk-fedcba9876543210")
                ]

            assert await statuses() == [200, 401]
            file.write_text("ann: sk-0123456789abcdef\nbob: sk-fedcba9876543210\n")
            assert await statuses() == [200, 200]
            file.write_text("ann: short\n")
            assert await statuses() == [200, 200]
            file.unlink()
            assert await statuses() == [200, 200]
            file.write_bytes(b"ann: \xff\n")
            assert await statuses() == [200, 200]
            file.write_text("bob: sk-fedcba9876543210\n")
            assert await statuses() == [401, 200]
            file.write_text("")
            assert await statuses() == [401, 401]

    kit.run(story())


def test_a_configuration_that_breaks_keeps_no_key_from_being_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "CONFIGURATION_S", 0.0)

    async def story() -> None:
        def broken() -> None:
            raise RuntimeError("a mistake of ours")

        file = tmp_path / "keys"
        file.write_text("ann: sk-0123456789abcdef\n")
        async with routed(tmp_path, kit.whole(), api_keys_file=str(file)) as it:
            monkeypatch.setattr(it.router, "look_at_configuration", broken)
            file.write_text("")
            with pytest.raises(RuntimeError):
                await it.router._follow_configuration()
            assert (await it.ask(kit.chat(headers="authorization: Bearer sk-0123456789abcdef\r\n"))).status == 401

    kit.run(story())


def test_a_file_without_any_key_opens_to_nobody(tmp_path: Path) -> None:
    """It opened to everybody."""

    async def story() -> None:
        (tmp_path / "keys").write_text("# none yet\n")
        async with routed(tmp_path, kit.whole(), api_keys_file=str(tmp_path / "keys")) as it:
            assert (await it.ask(kit.chat())).status == 401

    kit.run(story())


def test_a_file_of_keys_that_is_no_text_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """It was a UnicodeDecodeError."""

    async def story() -> None:
        (tmp_path / "keys").write_bytes(b"ann: \xff\n")
        with pytest.raises(ApiKeyError, match="cannot be read: it is not UTF-8"):
            async with routed(tmp_path, kit.whole(), api_keys_file=str(tmp_path / "keys")):
                pass

    kit.run(story())


def test_a_broken_part_is_begun_anew_and_requests_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole()) as it:
            broken = asyncio.Event()

            def breaks(*batch: object) -> list[int]:
                broken.set()
                raise ZeroDivisionError

            it.router.metrics.fold = breaks  # type: ignore[method-assign]
            it.router.metrics.fold_lot = breaks  # type: ignore[method-assign]
            assert (await it.ask(kit.chat())).status == 200
            await broken.wait()
            assert (await it.ask(kit.chat())).status == 200
            assert not it.running.done()
            del it.router.metrics.fold, it.router.metrics.fold_lot
            assert (await it.ask(kit.chat())).status == 200
            await it.logged()

    kit.run(story())


@pytest.mark.parametrize("is_wished", [True, False])
def test_an_operator_says_whether_engines_are_chosen_in_machine_code(tmp_path: Path, is_wished: bool) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole(), compiled_choosing=is_wished):
            assert ("router compiled choosing" in {one.get_name() for one in asyncio.all_tasks()}) == is_wished

    kit.run(story())


def test_a_drain_finishes_what_is_under_way_and_takes_nothing_new(tmp_path: Path) -> None:
    async def story() -> None:
        release = asyncio.Event()
        async with routed(tmp_path, kit.whole()) as it:

            async def slow(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
                if asked.line.startswith("GET"):
                    writer.write(kit.whole(b""))
                    return
                writer.write(kit.STREAM_HEAD + kit.chunk(kit.event("a")))
                await release.wait()
                writer.write(kit.chunk(kit.DONE) + kit.LAST)

            it.engines[0].script = slow
            idle, busy = await it.connect(), await it.connect()
            await busy.send(kit.chat(stream=True))
            assert (await busy.head()).status == 200
            it.router.stop()
            assert await idle.closed() == b""
            assert it.router.trouble == "draining"
            refused = False
            try:
                late = kit.Client(*await asyncio.open_connection("127.0.0.1", it.router.port))
                it.clients.append(late)
            except ConnectionRefusedError:
                refused = True
            assert refused
            release.set()
            assert await busy.chunk() == kit.event("a")
            assert await busy.chunk() == kit.DONE
            await it.running

    kit.run(story())


def test_a_router_that_drains_leaves_its_ports_to_the_next_one_and_tells_its_metrics_to_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        release = asyncio.Event()
        async with routed(tmp_path, kit.whole(), metrics_port=0, debug_port=0) as it:

            async def slow(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
                if not asked.line.startswith("GET"):
                    writer.write(kit.STREAM_HEAD + kit.chunk(kit.event("a")))
                    await release.wait()
                    writer.write(kit.chunk(kit.DONE) + kit.LAST)
                else:
                    writer.write(kit.whole(b""))

            it.engines[0].script = slow
            scraper = kit.Client(*await asyncio.open_connection("127.0.0.1", it.router.metrics_port))
            it.clients.append(scraper)
            get = b"GET /metrics HTTP/1.1\r\nHost: r\r\n\r\n"
            assert (await scraper.ask(get)).status == 200
            busy = await it.connect()
            await busy.send(kit.chat(stream=True))
            assert (await busy.head()).status == 200
            it.router.stop()
            await eventually(lambda: it.router.trouble == "draining")
            for port in (it.router.metrics_port, it.router.debug_port):
                successor = await asyncio.start_server(lambda r, w: None, "127.0.0.1", port)
                successor.close()
            assert b"kthena_router_active_requests 1" in (await scraper.ask(get)).body
            release.set()
            assert await busy.chunk() == kit.event("a")
            assert await busy.chunk() == kit.DONE
            await it.running

    kit.run(story())


def test_streams_outlive_their_route_and_their_server_and_leave_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        release = asyncio.Event()
        async with routed(tmp_path, kit.whole()) as it:

            async def slow(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
                writer.write(kit.STREAM_HEAD + kit.chunk(kit.event("a")))
                await release.wait()
                writer.write(kit.chunk(kit.DONE) + kit.LAST)

            it.engines[0].script = slow
            clients = [await it.connect() for _ in range(20)]
            for one in clients:
                await one.send(kit.chat(stream=True))
                assert (await one.head()).status == 200
                assert await one.chunk() == kit.event("a")
            [endpoint] = it.router.fleet.by_name.values()
            assert endpoint.in_flight == 20
            rules = {"spec": {"rules": [{"targetModels": [{"modelServerName": "elsewhere"}]}]}}
            await it.client.request(
                "PATCH", ModelRoute.kind_info.path("ml", "m"), rules, content_type="application/merge-patch+json"
            )
            await it.client.request("DELETE", ModelServer.kind_info.path("ml", "m-0"))
            await eventually(lambda: not it.router.fleet.by_name)
            await it.client.request("DELETE", ModelRoute.kind_info.path("ml", "m"))
            await eventually(lambda: not it.router.world.models())
            release.set()
            for one in clients:
                assert await one.chunk() == kit.DONE
                assert await one.chunk() is None
            await eventually(lambda: not it.router.house.under_way)
            assert (endpoint.in_flight, endpoint.prefill_tokens, endpoint.context_tokens) == (0, 0, 0)

    kit.run(story())


def test_routers_of_one_host_know_what_each_other_sent_where(tmp_path: Path) -> None:
    async def story() -> None:
        release = asyncio.Event()
        shared = str(tmp_path / "replicas")
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        async with (
            routed(tmp_path / "a", kit.whole(), replicas_directory=shared) as one,
            routed(tmp_path / "b", kit.whole(), replicas_directory=shared) as other,
        ):

            async def slow(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
                if not asked.line.startswith("GET"):
                    await release.wait()
                writer.write(kit.whole())

            one.engines[0].script = slow
            [there] = other.router.fleet.by_name.values()
            client = await one.connect()
            await client.send(kit.chat(text="x" * 4000))
            await eventually(lambda: there.elsewhere_in_flight == 1)
            assert there.elsewhere_prefill_tokens > 0
            release.set()
            assert (await client.answer()).status == 200
            await eventually(lambda: there.elsewhere_in_flight == 0)

    kit.run(story())


@pytest.mark.parametrize(
    ("address", "is_shown"),
    [("redis.cache", True), ("redis.cache:6379", True), ("redis.cache:6380", False), ("redis.evil:6379", False)],
)
def test_a_redis_that_a_route_names_is_shown_the_password_of_the_operators_own_alone(
    address: str, is_shown: bool
) -> None:
    settings = RouterSettings(redis="redis.cache:6379", redis_password="secret")
    place = place_of(address)
    assert place is not None
    assert password_for(place, settings) == ("secret" if is_shown else "")
    assert password_for(place, RouterSettings(redis_password="secret")) == ""
    assert password_for(("::1", 6379), RouterSettings(redis="::1:6379", redis_password="secret")) == "secret"


def test_a_password_that_is_shown_to_no_redis_is_told_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole(), redis_password="secret") as it:
            with capture_logs() as logged:
                for address in ("redis.cache:6379", "redis.cache:6380"):
                    await it.router._connect_buckets(address).close()
            assert [one["event"] for one in logged] == ["password of Redis not sent"]
            assert "set it to the host" in logged[0]["why"]

    kit.run(story())


@pytest.mark.parametrize("which", ["port", "metrics_port", "debug_port"])
def test_a_port_that_is_taken_is_named_with_the_flag_for_another(which: str) -> None:
    """It said `Address already in use` and not which of three; two have a default, which a second router meets."""

    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            number = taken.getsockname()[1]
            told: dict[str, Any] = {"port": 0, "metrics_port": 0, "debug_port": 0, which: number}
            settings = RouterSettings(host="127.0.0.1", metrics_host="127.0.0.1", **told)
            flag = which.replace("_", "-")
            async with (
                api_server(kinds=CUSTOM_KINDS) as server,
                Informers(ApiClient(InProcessTransport(server.handle))) as informers,
            ):
                router = Router(settings, informers)
                with pytest.raises(
                    OSError, match=f"127.0.0.1:{number}: Address already in use; another port by --{flag}"
                ):
                    await router.listen()
                router.stop()
                await router.run()

    kit.run(story())
