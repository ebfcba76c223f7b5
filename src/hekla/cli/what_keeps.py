"""What keeps an object that was deleted and is still there: a node that does not answer, containers that may still end, finalizers,
what a namespace still holds.

`hekla delete` says it when it has waited for a while, `hekla why` of a pod at once.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from hekla.api.meta import Document
    from hekla.cli.connection import Connection


AT_ONCE = "--grace-period=0 takes the pod away at once, whatever still runs there"


def gone_by(document: "Document", now: "datetime") -> str:
    """`was to be gone by 2026-11-28T10:00:00Z`, of an object that is leaving; `is to be`, before that time."""
    return (
        f"{'is' if _may_still_end(document, now) else 'was'} to be gone by {document['metadata']['deletionTimestamp']}"
    )


async def what_keeps(connection: "Connection", document: "Document", now: "datetime") -> str:
    """The sentence; empty where the object is not leaving, or nothing is known to keep it."""
    metadata = document["metadata"]
    if "deletionTimestamp" not in metadata:
        return ""
    node = (document.get("spec") or {}).get("nodeName", "")
    if document.get("kind") == "Pod" and node:
        if trouble := await _trouble_of_node(connection, node):
            return trouble
        if _may_still_end(document, now):
            return f"its containers have until {metadata['deletionTimestamp']} to end"
    if finalizers := metadata.get("finalizers"):
        return f"its finalizers keep it until somebody has done what they stand for: {', '.join(finalizers)}"
    conditions = (document.get("status") or {}).get("conditions") or ()
    remaining = [one.get("message", "") for one in conditions if document.get("kind") == "Namespace" and _is_true(one)]
    return "; ".join(text for text in remaining if text)


def _may_still_end(document: "Document", now: "datetime") -> bool:
    from datetime import datetime

    return now < datetime.fromisoformat(document["metadata"]["deletionTimestamp"])


def _is_true(condition: "Document") -> bool:
    return condition.get("status") == "True"


async def _trouble_of_node(connection: "Connection", name: str) -> str:
    """Why a node ends no pods, and what to do; empty if it is ready, or may not be looked at."""
    from hekla.kube.errors import ApiError, NotFoundError

    try:
        node = await connection.client.request("GET", f"/api/v1/nodes/{name}")
    except NotFoundError:
        return (
            f'its node "{name}" is not there any more, so nobody there ends it: the controllers take such pods away after a while; '
            f"{AT_ONCE}"
        )
    except ApiError:
        return ""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready: Document = next((one for one in conditions if one.get("type") == "Ready"), {})
    if ready.get("status") == "True":
        return ""
    since = f" since {ready['lastTransitionTime']}" if ready.get("lastTransitionTime") else ""
    why = f" ({ready['message']})" if ready.get("message") else ""
    return (
        f'its node "{name}" is not ready{since}{why}, so nobody there ends it: bring the node back, or, if the machine is gone for '
        f"good, delete the node; {AT_ONCE}"
    )
