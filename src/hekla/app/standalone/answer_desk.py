"""Answers what `hekla why`, `hekla snapshot` and `hekla scheduler config` ask, where the scheduler is a process of its own.

It is a server behind an API server, as Kubernetes' aggregation layer has them (docs/adr/0017): the paths, rights and texts
are those of the embedded platform. Only API servers are listened to; who asked them is believed by their certificate
(`front_proxy.py`), and what that user may do is asked of the API server once more.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from hekla.api.explanation import EXPLANATION
from hekla.api.meta import Document
from hekla.apiserver.admission import User
from hekla.apiserver.presentation import error_answer
from hekla.apiserver.routing import Target, target_of
from hekla.apiserver.status import StatusError
from hekla.app.explaining import ANSWERED, MOST_NAMESPACES, answer_of
from hekla.app.front_proxy import Trust, user_of
from hekla.kube.client import Client
from hekla.kube.errors import KubeError
from hekla.wire.messages import Request, Response

if TYPE_CHECKING:
    from hekla.scheduler.batch import BatchScheduler

log = structlog.get_logger(__name__)

ROOT = f"/apis/{EXPLANATION.group}"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
REVIEWS_AT_ONCE = 16


@dataclass(frozen=True)
class AnswerDesk:
    """Answers requests about one scheduler."""

    scheduler: "BatchScheduler"
    client: Client
    trust: Trust
    versions: frozenset[str] = frozenset({EXPLANATION.version})
    """Of the group, by which this scheduler is asked."""

    async def answer(self, request: Request) -> Response:
        """The answer to an API server."""
        try:
            user = user_of(request, self.trust)
            if user is None:
                raise StatusError(401, "Unauthorized", "only API servers are answered here, and they must say who asks")
            if request.method not in {"GET", "HEAD"}:
                raise StatusError(
                    405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
                )
            root, _, version = request.path.rstrip("/").rpartition("/")
            if root == ROOT and version in self.versions:
                return Response(200, msgspec.json.encode(_resources(version)))
            return Response(200, msgspec.json.encode(await self._answer(request.path, user)))
        except StatusError as error:
            return error_answer(error)
        except KubeError as error:
            return error_answer(StatusError(503, "ServiceUnavailable", f"the API server cannot be asked: {error}"))

    async def _answer(self, path: str, user: User) -> Document:
        target = target_of(path)
        known = {kind.plural for kind in ANSWERED}
        if (
            target is None or not path.startswith(f"{ROOT}/") or target.version not in self.versions
            or target.resource not in known or target.subresource
        ):  # fmt: skip
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
        if not target.name:
            raise StatusError(405, "MethodNotAllowed", f"{target.resource} can be asked for by name only")
        if not await self._may(user, "get", target.namespace, target):
            where = f' in the namespace "{target.namespace}"' if target.namespace else ""
            told = f'{target.resource}.{target.group} "{target.name}" is forbidden: User "{user.name}" cannot get it{where}'
            raise StatusError(403, "Forbidden", told)
        return await self._seen_by(user, target)

    async def _seen_by(self, user: User, target: Target) -> Document:
        """The answer with the names that the user may know. Answering waits for nothing, and asking does: so it is
        answered once to learn whose names are wanted, and once more when that is known.
        """
        sees = Sight({target.namespace})
        found = answer_of(self.scheduler, target, sees)
        wanted = sorted(sees.wanted)[:MOST_NAMESPACES]
        if not wanted:
            return found
        if await self._may(user, "list", ""):
            seen = set(wanted)
        else:
            slots = asyncio.Semaphore(REVIEWS_AT_ONCE)

            async def may_list(namespace: str) -> bool:
                async with slots:
                    return await self._may(user, "list", namespace)

            allowed = await asyncio.gather(*map(may_list, wanted))
            seen = {namespace for namespace, is_allowed in zip(wanted, allowed, strict=True) if is_allowed}
        return answer_of(self.scheduler, target, Sight(seen | {target.namespace})) if seen else found

    async def _may(self, user: User, verb: str, namespace: str, target: Target | None = None) -> bool:
        """Whether a user may do something: get what was asked for, or list pods."""
        wanted: Document = {"verb": verb, "namespace": namespace, "version": "v1", "resource": "pods"}
        if target is not None:
            wanted |= {"group": target.group, "resource": target.resource, "name": target.name}
        extra = {key: list(values) for key, values in user.extra.items()}
        spec = {"user": user.name, "groups": list(user.groups), "extra": extra, "resourceAttributes": wanted}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        found = await self.client.request("POST", REVIEWS, review)
        return bool((found.get("status") or {}).get("allowed"))


class Sight:
    """Namespaces that may be seen, and those that somebody wanted to see besides."""

    def __init__(self, seen: set[str]) -> None:
        self._seen = seen
        self.wanted: set[str] = set()

    def __call__(self, namespace: str) -> bool:
        """Whether this one may be seen."""
        if namespace in self._seen:
            return True
        self.wanted.add(namespace)
        return False


def _resources(version: str) -> Document:
    """What discovery says of the group."""
    resources = [
        {
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.is_namespaced, "kind": kind.kind,
            "verbs": ["get"], **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
        }
        for kind in ANSWERED
    ]  # fmt: skip
    return {
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{EXPLANATION.group}/{version}", "resources": resources
    }  # fmt: skip
