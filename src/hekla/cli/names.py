"""The names of objects that a server has, and what somebody meant who misspelt one.

The Tab key asks for them (`completion.py`), and so does every command that is told of an object that is not there.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hekla.api.meta import segment

if TYPE_CHECKING:
    from hekla.cli.connection import Connection
    from hekla.kube.errors import NotFoundError

MOST_NAMES = 500
"""More are of no help to somebody who presses Tab, and a misspelt one is looked for among so many."""

PATIENCE_S = 2.0
"""How long a refusal may be held back to look for what was meant."""

NAMES_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
NAMESPACES = "/api/v1/namespaces"
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"
_NO_QUEUE = re.compile(r'queue\.scheduling\.volcano\.sh "([^"]+)" not found')
"""How the webhooks, and Volcano's, refuse a job whose queue is not there."""


async def names_at(connection: "Connection", collection: str, query: str = "") -> list[str]:
    """The names at a collection's URL; ApiError or TransportError as the server has it."""
    return [one["name"] for one in await _metadata_at(connection, collection, query)]


def nearest(word: str, names: Iterable[str]) -> str:
    """The name most like a word; empty if none is."""
    import difflib

    return next(iter(difflib.get_close_matches(word, sorted(names), n=1)), "")


async def did_you_mean(connection: "Connection", missing: "NotFoundError") -> str:
    """`; did you mean "train"?`, for a server's refusal of a name: empty where nothing is near, or nobody may look."""
    name, kind = str(missing.details.get("name") or ""), str(missing.details.get("kind") or "")
    before, found, _ = missing.path.partition("?")[0].partition(f"/{kind}/{name}")
    return await hint(connection, f"{before}/{kind}", name) if found and name and kind else ""


async def queue_meant(connection: "Connection", refusal: str) -> str:
    """A refusal, with the same at its end where a webhook refused a job for the queue that it names."""
    found = _NO_QUEUE.search(refusal)
    meant = await hint(connection, QUEUES, found[1]) if found else ""
    return refusal.rstrip("; ") + meant if meant else refusal


async def queue_hint(connection: "Connection", name: str) -> str:
    """`there is no queue "ml"; did you mean "mll"?`; empty where there is, or where nobody may look."""
    from hekla.kube.errors import KubeError

    try:
        known = await names_at(connection, QUEUES)
    except KubeError:
        return ""
    if name in known or len(known) >= MOST_NAMES:
        return ""
    near = nearest(name, known)
    return f'there is no queue "{name}"; ' + (f'did you mean "{near}"?' if near else "`hekla queue list` shows them")


async def hint(connection: "Connection", collection: str, name: str) -> str:
    """The same for a name that is not at a collection's URL."""
    import asyncio

    from hekla.kube.errors import KubeError

    try:
        async with asyncio.timeout(PATIENCE_S):
            return await _hint(connection, collection, name)
    except (KubeError, TimeoutError):
        return ""


async def _hint(connection: "Connection", collection: str, name: str) -> str:
    known = await names_at(connection, collection)
    if name in known:
        return ""  # it is there, and was refused for another reason
    if near := nearest(name, known):
        return f'; did you mean "{near}"?'
    above, _, resource = collection.rpartition("/")
    group, inside, namespace = above.partition("/namespaces/")
    if not inside:
        return ""
    if unknown := await _namespace_hint(connection, namespace):
        return f"; {unknown}"
    same = await _metadata_at(connection, f"{group}/{resource}", f"&fieldSelector=metadata.name%3D{segment(name)}")
    others = sorted({one["namespace"] for one in same if one["name"] == name})
    return f'; there is one in namespace "{others[0]}": add -n {others[0]}' if others else ""


async def namespace_hint(connection: "Connection", namespace: str) -> str:
    """What to say where nothing is found in a namespace that is not there; empty if it is, or if nobody may look."""
    import asyncio

    from hekla.kube.errors import KubeError

    try:
        async with asyncio.timeout(PATIENCE_S):
            return await _namespace_hint(connection, namespace)
    except (KubeError, TimeoutError):
        return ""


async def _namespace_hint(connection: "Connection", namespace: str) -> str:
    known = await names_at(connection, NAMESPACES)
    if namespace in known or len(known) >= MOST_NAMES:
        return ""
    near = nearest(namespace, known)
    return f'there is no namespace "{namespace}"' + (f'; did you mean "{near}"?' if near else "")


async def _metadata_at(connection: "Connection", collection: str, query: str = "") -> list[dict[str, str]]:
    import json

    from hekla.kube.answers import error_from_response
    from hekla.wire.messages import Request

    path = f"{collection}?limit={MOST_NAMES}{query}"
    answer = await connection.transport.send(Request("GET", path, {"accept": NAMES_ONLY}))
    assert isinstance(answer.body, bytes)
    if answer.status >= 400:
        raise error_from_response(answer.status, answer.body, answer.headers)
    return [one["metadata"] for one in json.loads(answer.body).get("items") or ()]
