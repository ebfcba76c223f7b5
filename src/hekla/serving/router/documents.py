"""What a router says of itself: the models that it serves, its health, its metrics, and for debugging what it knows."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from hekla.api.core import Pod
from hekla.api.foreign import Gateway, HttpRoute, InferencePool
from hekla.api.kthena import ModelRoute, ModelServer
from hekla.api.meta import Resource
from hekla.serving.router.director import unknown_model
from hekla.serving.router.dumps import dumped
from hekla.serving.router.hints import Hints
from hekla.serving.router.house import House
from hekla.serving.router.metrics import Metrics
from hekla.serving.router.plan import Refusal
from hekla.serving.router.proxy.answers import error_document
from hekla.serving.router.reception import Document, Told
from hekla.serving.router.world import World
from hekla.wire.messages import Request, Response

_TEXT = b"text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
KINDS: Mapping[str, type[Resource]] = {
    "modelroutes": ModelRoute,
    "modelservers": ModelServer,
    "pods": Pod,
    "gateways": Gateway,
    "httproutes": HttpRoute,
    "inferencepools": InferencePool,
}
"""What can be looked at; secrets cannot."""
_PREFIX = "/debug/config_dump/"


class Documents:
    """The documents of one router."""

    def __init__(
        self,
        world: World,
        house: House,
        metrics: Metrics,
        *,
        known: Callable[[type[Resource]], list[Resource]],
        trouble: Callable[[], str],
        foretell: Callable[[Request], Awaitable[dict[str, Any] | Refusal]],
    ) -> None:
        """`known` lists the objects of a kind; `trouble` says why the router is not ready, if it is not; `foretell`, what would
        become of a request.
        """
        self._known = known
        self._world = world
        self._house = house
        self._metrics = metrics
        self._trouble = trouble
        self._foretell = foretell
        self._began = int(time.time())
        self._hints = Hints()

    def for_clients(self, *, with_metrics: bool) -> Mapping[str, Document]:
        """What is answered on the clients' port."""
        documents: dict[str, Document] = {
            "/v1/models": self._models,
            "/healthz": _healthy,
            "/health": _healthy,
            "/readyz": self._ready,
        }
        if with_metrics:
            documents["/metrics"] = lambda: (200, _METRICS.encode(), self._metrics.text(self._house))
        return documents

    def metrics_request(self, request: Request) -> Response:
        """The port of the metrics."""
        if request.path == "/metrics":
            return Response(200, self._metrics.text(self._house), _METRICS)
        return Response(404, b"only /metrics is here\n", "text/plain")

    def debug_request(self, request: Request) -> Response | Awaitable[Response]:
        """What is known, as JSON: /debug/config_dump/KINDS, or /debug/config_dump/namespaces/NAMESPACE/KINDS/NAME."""
        if (stranger := self._house.stranger(request.headers)) is not None:
            return _json({"error": {"message": stranger.message, "code": stranger.reason}}, stranger.status)
        if request.path == "/debug/engines":
            return _json(self._engines())
        if request.path == "/debug/explain":
            return self._explained(request)
        if not request.path.startswith(_PREFIX):
            return _json({"error": f"{_PREFIX}{{{','.join(KINDS)}}} is here, and /debug/engines, /debug/explain"}, 404)
        words = request.path[len(_PREFIX) :].strip("/").split("/")
        is_one = len(words) == 4 and words[0] == "namespaces"
        kind = words[2] if is_one else words[0]
        if kind not in KINDS or (len(words) != 1 and not is_one):
            return _json({"error": f'"{kind}" is not known here; there are {", ".join(KINDS)}'}, 404)
        found = self._known(KINDS[kind])
        if not is_one:
            return _json({kind: dumped(found, self._world)})
        wanted = [one for one in found if (one.metadata.namespace, one.metadata.name) == (words[1], words[3])]
        return (
            _json(dumped(wanted[:1], self._world)[0])
            if wanted
            else _json({"error": f"{kind} {words[1]}/{words[3]} is not known"}, 404)
        )

    async def _explained(self, request: Request) -> Response:
        """What would become of the request in this one's body; `path` says where it would go."""
        if request.method != "POST":
            return _json({"error": "POST the body of a request here, with ?path=/v1/chat/completions"}, 405)
        told = await self._foretell(request)
        if isinstance(told, Refusal):
            return _json(
                {"error": {"message": told.for_operators, "type": told.reason, "code": told.status}}, told.status
            )
        return _json(told)

    def _engines(self) -> list[dict[str, Any]]:
        names = (
            "host",
            "port",
            "in_flight",
            "prefill_tokens",
            "context_tokens",
            "kv_usage",
            "waiting",
            "running",
            "faults",
        )
        return [
            {"pool": pool.name, "pod": one.name} | {name: getattr(one, name) for name in names}
            for pool in self._world.pools()
            for one in pool.members
        ]

    def _models(self) -> Told:
        models = [self._model(name) for name in self._world.models()]
        return 200, b"application/json", msgspec.json.encode({"object": "list", "data": models})

    def model(self, name: str) -> Told:
        """One of the models, or that there is none of that name."""
        if name not in self._world.models():
            near = self._hints.about(name, self._world.models(), self._house.clock())
            return 404, b"application/json", error_document(unknown_model(name, near))
        return 200, b"application/json", msgspec.json.encode(self._model(name))

    def _model(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._began, "owned_by": "kthena"}

    def _ready(self) -> Told:
        trouble = self._trouble()
        return (503, _TEXT, f"not ready: {trouble}".encode()) if trouble else (200, _TEXT, b"ok")


def _healthy() -> Told:
    return 200, _TEXT, b"ok"


def _json(value: object, status: int = 200) -> Response:
    return Response(status, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n", "application/json")
