"""Whom a node lets in when the API server, which it asks, knows the caller, does not, or does not answer."""

import asyncio
from typing import Any, cast

import pytest

from hekla.kube.errors import TransportError
from hekla.node.agent import NodeAgent
from hekla.node.callers import BELIEVED_S, Callers
from hekla.node.endpoint import NodeEndpoint
from hekla.wire.messages import Request, Response

ASKED = Request("GET", "/healthz", {"authorization": "Bearer of-a-gateway"})


class Reviewer:
    """An API server that answers reviews; `is_away` while it cannot be reached."""

    def __init__(self, *, is_away: bool = False, knows: bool = True, allowed: str = "") -> None:
        self.is_away, self.knows, self.allowed, self.asked = is_away, knows, allowed, 0

    async def request(self, method: str, path: str, document: Any) -> Any:
        self.asked += 1
        if self.is_away:
            raise TransportError("connection refused")
        if path.endswith("tokenreviews"):
            return {"status": {"authenticated": self.knows, "audiences": ["hekla-nodes"], "user": {"username": "g"}}}
        self.verb = document["spec"]["resourceAttributes"]["verb"]
        return {"status": {"allowed": self.allowed in ("", self.verb)}}


class Agent:
    sandboxes = None


def node(reviewer: Reviewer, clock: list[float]) -> NodeEndpoint:
    return NodeEndpoint(cast(NodeAgent, Agent()), callers=Callers(cast(Any, reviewer), lambda: clock[0]))


def answer(endpoint: NodeEndpoint, asked: Request = ASKED) -> Response:
    got = asyncio.run(endpoint.handle(asked))
    assert isinstance(got, Response)
    return got


def test_a_caller_that_the_api_server_vouches_for_is_let_in_and_believed_for_a_minute():
    reviewer, clock = Reviewer(), [0.0]
    endpoint = node(reviewer, clock)
    assert answer(endpoint).status == 200
    reviewer.is_away, clock[0] = True, BELIEVED_S - 1
    assert answer(endpoint).status == 200
    assert reviewer.asked == 2


def test_while_nobody_can_say_who_calls_the_node_says_try_again_and_remembers_no_refusal():
    reviewer, clock = Reviewer(is_away=True), [0.0]
    endpoint = node(reviewer, clock)
    refused = answer(endpoint)
    assert refused.status == 503
    assert b"cannot ask the API server now who calls; try again" in cast(bytes, refused.body)
    reviewer.is_away = False
    assert answer(endpoint).status == 200


def test_a_caller_whom_the_api_server_does_not_know_is_refused():
    refused = answer(node(Reviewer(knows=False), [0.0]))
    assert refused.status == 401


@pytest.mark.parametrize(
    ("target", "is_let_in"),
    [
        ("/healthz", True),
        ("/exec/default/p/main?command=id&output=1", False),
        ("//%65xec/default/p/main?command=id&output=1", False),
        ("/attach/default/p/main", False),
        ("/portForward/default/p", False),
        ("/sandboxes/default/p/ports/8080", False),
        ("/sandboxes/default/p/ports/8080/files", False),
    ],
)
def test_who_may_only_look_enters_no_pod_over_a_websocket_which_begins_with_a_get(target: str, is_let_in: bool):
    endpoint = node(Reviewer(allowed="get"), [0.0])
    asked = Request("GET", target, {"authorization": "Bearer t"})
    assert (answer(endpoint, asked).status != 401) == is_let_in


def test_a_websocket_is_more_than_a_look_wherever_it_leads():
    endpoint = node(Reviewer(allowed="get"), [0.0])
    asked = Request("GET", "/healthz", {"authorization": "Bearer t", "upgrade": "websocket"})
    assert answer(endpoint, asked).status == 401
