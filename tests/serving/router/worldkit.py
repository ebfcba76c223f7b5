"""A small world for the router's tests: pods, servers and routes in a line each, and a director over them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hekla.api.core import Pod
from hekla.api.kthena import ExternalModelProvider, ModelRoute, ModelServer
from hekla.serving.router.choosing import Look, Weighed
from hekla.serving.router.director import Director
from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.plan import Attempt, Plan, Refusal
from hekla.serving.router.pool import Pool
from hekla.serving.router.question import Question
from hekla.serving.router.world import World


class FewestInFlight:
    """The least loaded, then the first by name: choices that a test can foretell."""

    wants_prefix = False

    def choose(self, look: Look, candidates: Sequence[Endpoint]) -> Endpoint | None:
        return min(candidates, key=lambda one: (one.in_flight, one.name), default=None)

    def weigh(self, look: Look, candidates: Sequence[Endpoint]) -> Weighed:
        return Weighed(totals={one.name: float(one.in_flight) for one in candidates}, is_cost=True)


def world(*objects: Any, dice: Callable[[], float] = lambda: 0.0) -> World:
    fleet = Fleet()
    made = World(fleet, lambda name: Pool(name, fleet, FewestInFlight(), dice))
    for one in objects:
        made.note(None, one)
    return made


def director(*objects: Any, dice: Callable[[], float] = lambda: 0.0) -> Director:
    return Director(world(*objects, dice=dice), dice)


def pod(
    name: str,
    labels: Mapping[str, str],
    *,
    ip: str = "10.0.0.1",
    ready: bool = True,
    namespace: str = "ml",
    uid: str = "",
    restarts: int = 0,
) -> Pod:
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": namespace, "labels": dict(labels), "uid": uid or name},
            "status": {
                "phase": "Running",
                "podIP": ip,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                "containerStatuses": [{"name": "main", "restartCount": restarts}],
            },
        },
        Pod,
    )


def server(name: str, labels: Mapping[str, str] | None = None, *, annotations: Any = None, **spec: Any) -> ModelServer:
    document = {
        "inferenceEngine": "vLLM",
        "workloadSelector": {"matchLabels": dict(labels if labels is not None else {"app": name})},
        "workloadPort": {"port": 8000},
        **spec,
    }
    metadata = {"name": name, "namespace": "ml", "annotations": annotations or {}}
    return msgspec.convert({"metadata": metadata, "spec": document}, ModelServer)


def route(
    name: str,
    *targets: Mapping[str, Any],
    model: str = "",
    created: str = "2026-01-01T00:00:00Z",
    namespace: str = "ml",
    **spec: Any,
) -> ModelRoute:
    document = {"modelName": model, "rules": [{"targetModels": list(targets)}], **spec}
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": created}
    return msgspec.convert({"metadata": metadata, "spec": document}, ModelRoute)


def provider(name: str, **spec: Any) -> ExternalModelProvider:
    metadata = {"name": name, "namespace": "ml"}
    return msgspec.convert(
        {"metadata": metadata, "spec": {"baseURL": "https://api.example.com", **spec}}, ExternalModelProvider
    )


def to(name: str, **more: Any) -> dict[str, Any]:
    return {"modelServerName": name, **more}


def question(model: str, prompt: str = "hello", path: str = "/v1/chat/completions", **more: Any) -> Question:
    body = more.pop("body", {"model": model, "messages": [{"role": "user", "content": prompt}]})
    return Question(
        path=path,
        model=model,
        prompt=prompt.encode(),
        input_tokens=max(1, len(prompt) // 4),
        body=body if isinstance(body, bytes) else msgspec.json.encode(body),
        **more,
    )


def plan_of(desk: Director, asked: Question, now: float = 0.0) -> Plan:
    plan = desk.plan(asked, now)
    assert not isinstance(plan, Refusal), plan
    return plan  # type: ignore[return-value]  # nothing waits here


def refusal_of(desk: Director, asked: Question, now: float = 0.0) -> Refusal:
    plan = desk.plan(asked, now)
    refused = plan if isinstance(plan, Refusal) else plan.next(now)  # type: ignore[union-attr]  # nothing waits here
    assert isinstance(refused, Refusal), refused
    return refused


def attempt_of(plan: Plan, now: float = 0.0) -> Attempt:
    attempt = plan.next(now)
    assert isinstance(attempt, Attempt), attempt
    return attempt


def sent(attempt: Attempt) -> dict[str, Any]:
    assert attempt.body is not None, "the client's own body is sent"
    decoded: dict[str, Any] = msgspec.json.decode(attempt.body)
    return decoded
