"""Tell what would become of a request: the rule that takes it, and how an engine is chosen behind each of its targets.

`POST /debug/explain` of a router answers it and `hekla route explain` prints it. Nothing is sent, counted, or drawn by lot. Where
requests are looked up in Kthena's cache records, so is this one (`recorded_caches.py`), and an engine says its tokens.
"""

from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from typing import Any

from hekla.serving.router.backends import Backend
from hekla.serving.router.director import Director, Way
from hekla.serving.router.explaining import explain
from hekla.serving.router.explaining_pairs import explain_pair
from hekla.serving.router.plan import Refusal
from hekla.serving.router.prefix.recorded import Recorded
from hekla.serving.router.question import Question
from hekla.serving.router.reading import read
from hekla.serving.router.routes import Target
from hekla.serving.router.stickiness import session_of

LookUp = Callable[[Backend, Question], Awaitable[Recorded | str | None]]
"""Notes in a question what is recorded of who holds its prompt, and says it, or why it is not known; None: nobody is asked."""


async def nobody(_: Backend, __: Question) -> None:
    """Nothing is recorded."""


async def foretell(
    director: Director,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    now: Callable[[], float],
    look_up: LookUp = nobody,
) -> dict[str, Any] | Refusal:
    """The decision that a request would meet now: over the target of most weight, then over each other; or a refusal."""
    question = read(path, body, headers)
    if isinstance(question, Refusal):
        return question
    way = director.way(question)
    if way is None:
        return director.no_route(question, director.models(), now())
    rule = way.found.rule
    weights = [ceiling - before for before, ceiling in pairwise((0, *rule.ceilings))]
    told = [
        {
            "target": target.key,
            "weight": weight,
            "share": round(weight / rule.ceilings[-1], 4),
            **await _behind(director, way, target, question, now, look_up),
        }
        for target, weight in zip(rule.targets, weights, strict=False)  # without any weight there are no ceilings
    ]
    if not told:
        return Refusal(503, "scheduling", f"no target of {way.found.route.key} has a weight")
    told.sort(key=lambda one: -one["weight"])
    return {"route": way.found.route.key, **told[0], "otherTargets": told[1:]}


async def _behind(
    director: Director, way: Way, target: Target, question: Question, now: Callable[[], float], look_up: LookUp
) -> dict[str, Any]:
    if target.is_provider:
        return _nothing(question, "an external provider answers it")
    backend = director.world.servers.get(target.key)
    if backend is None:
        return _nothing(
            question,
            f"there is no model server {target.key}, so these are answered 404; create it or take it out of the route",
        )
    found = await look_up(backend, question)
    if backend.traits.pd is not None:
        told = explain_pair(director.pairing(backend), question, now())
    else:
        told = _among(backend, way, question, now())
    return {**told, **_records(found)}


def _records(found: Recorded | str | None) -> dict[str, Any]:
    """What was recorded, in blocks by `pod.namespace`, or why that is not known."""
    if found is None:
        return {}
    said = {"unknown": found} if isinstance(found, str) else {"blocks": found.blocks, "held": dict(found.held)}
    return {"recorded": said}


def _among(backend: Backend, way: Way, question: Question, now: float) -> dict[str, Any]:
    adapter = question.model if way.found.is_adapter else ""
    sticky = backend.traits.sticky
    session = session_of(sticky, question) if sticky is not None else ""
    return explain(backend.decode, question, now, adapter=adapter, session=session)


def _nothing(question: Question, because: str) -> dict[str, Any]:
    """The shape of an explanation where there are no engines to choose from."""
    return {
        "pool": "", "policy": "", "model": question.model, "tokens": question.input_tokens, "prefill_rate": 0.0,
        "answer_tokens": 0, "waiting_per_endpoint": 0.0, "candidates": [], "chosen": None, "tied": [], "because": because,
    }  # fmt: skip
