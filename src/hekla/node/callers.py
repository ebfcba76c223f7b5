"""Whom a node lets in that is reached over the network: bearers of tokens that the API server vouches for, as the kubelet decides it.

    TokenReview           whose token is it, for the audience `hekla-nodes`?
    SubjectAccessReview   may they POST (create), GET or DELETE `nodes/proxy`? What reaches into a pod (exec, attach, portForward, ports
                          of sandboxes) is a create by whatever method

API servers show a certificate instead, as they do to kubelets: who they are stands in it, and the second question is the same.
Answers are believed for a minute, refusals for ten seconds; nothing of a token is kept but its digest.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from hekla.api.agents.node_contract import NODE_AUDIENCE
from hekla.api.meta import Document
from hekla.kube.client import Client

BELIEVED_S: Final = 60.0
REFUSED_S: Final = 10.0
MOST_KEPT: Final = 1_000
LONGEST_TOKEN: Final = 16_384
VERBS: Final = {"GET": "get", "HEAD": "get", "DELETE": "delete"}
"""Of the kubelet's own endpoint; everything else is a create."""


class Callers:
    """Callers of one node's endpoint. `now` tells seconds by a clock that nobody sets."""

    def __init__(self, client: Client, now: Callable[[], float]) -> None:
        self._client, self._now = client, now
        self._known: OrderedDict[tuple[bytes, str], tuple[float, bool]] = OrderedDict()

    async def may(self, token: str, method: str) -> bool:
        """Whether the bearer of a token may ask that; KubeError: nobody can be asked now."""
        if not token or len(token) > LONGEST_TOKEN:
            return False
        return await self._believed(token.encode(), method, lambda verb: self._ask(token, verb))

    async def may_user(self, name: str, groups: Sequence[str], method: str) -> bool:
        """The same of somebody whose certificate was verified."""
        who = "\0".join(("certificate", name, *groups)).encode()  # no token has a NUL: it came in a header
        user: Document = {"username": name, "groups": list(groups)}
        return bool(name) and await self._believed(who, method, lambda verb: self._is_allowed(user, verb))

    async def _believed(self, who: bytes, method: str, ask: Callable[[str], Awaitable[bool]]) -> bool:
        key = hashlib.sha256(who).digest(), VERBS.get(method, "create")
        until, is_allowed = self._known.get(key, (0.0, False))
        if until > self._now():
            return is_allowed
        is_allowed = await ask(key[1])
        self._known[key] = (self._now() + (BELIEVED_S if is_allowed else REFUSED_S), is_allowed)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return is_allowed

    async def _ask(self, token: str, verb: str) -> bool:
        spec: Document = {"token": token, "audiences": [NODE_AUDIENCE]}
        status = await self._review("authentication.k8s.io/v1", "TokenReview", spec)
        # an API server that knows no audiences answers without any: then the token is for itself, not for us
        if not status.get("authenticated") or NODE_AUDIENCE not in (status.get("audiences") or ()):
            return False
        return await self._is_allowed(status.get("user") or {}, verb)

    async def _is_allowed(self, user: Document, verb: str) -> bool:
        spec: Document = {
            "user": user.get("username", ""), "groups": user.get("groups") or [], "uid": user.get("uid", ""),
            "resourceAttributes": {"verb": verb, "resource": "nodes", "subresource": "proxy"},
        }  # fmt: skip
        status = await self._review("authorization.k8s.io/v1", "SubjectAccessReview", spec)
        return status.get("allowed") is True

    async def _review(self, version: str, kind: str, spec: Document) -> Document:
        path = f"/apis/{version}/{kind.lower()}s"
        answer = await self._client.request("POST", path, {"apiVersion": version, "kind": kind, "spec": spec})
        status: Document = answer.get("status") or {}
        return status
