"""What keeps an object that was deleted and is still there: a node that does not answer, finalizers, what a namespace still holds.

`hekla delete` says it when it has waited for a while, `hekla why` of a pod at once.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection


async def what_keeps(connection: "Connection", document: "Document") -> str:
    """The sentence; empty where the object is not leaving, or nothing is known to keep it."""
    metadata = document["metadata"]
    if "deletionTimestamp" not in metadata:
        return ""
    node = (document.get("spec") or {}).get("nodeName", "")
    if document.get("kind") == "Pod" and node and (trouble := await _trouble_of_node(connection, node)):
        return (
            f"{trouble}, so nobody there ends it: bring the node back, or, if the machine is gone for good, delete the node; "
            "--grace-period=0 takes the pod away at once, whatever still runs there"
        )
    if finalizers := metadata.get("finalizers"):
        return f"its finalizers keep it until somebody has done what they stand for: {', '.join(finalizers)}"
    conditions = (document.get("status") or {}).get("conditions") or ()
    remaining = [one.get("message", "") for one in conditions if document.get("kind") == "Namespace" and _is_true(one)]
    return "; ".join(text for text in remaining if text)


def _is_true(condition: "Document") -> bool:
    return condition.get("status") == "True"


async def _trouble_of_node(connection: "Connection", name: str) -> str:
    """Why a node ends no pods; empty if it is ready, or may not be looked at."""
    from hekla.kube.errors import ApiError, NotFoundError

    try:
        node = await connection.client.request("GET", f"/api/v1/nodes/{name}")
    except NotFoundError:
        return f'its node "{name}" is not there any more'
    except ApiError:
        return ""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready: Document = next((one for one in conditions if one.get("type") == "Ready"), {})
    if ready.get("status") == "True":
        return ""
    since = f" since {ready['lastTransitionTime']}" if ready.get("lastTransitionTime") else ""
    why = f" ({ready['message']})" if ready.get("message") else ""
    return f'its node "{name}" is not ready{since}{why}'
