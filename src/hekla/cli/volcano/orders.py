"""Orders to jobs and queues: Commands of bus.volcano.sh, which the controllers take and carry out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.api.volcano.bus import Action
    from hekla.cli.connection import Connection


async def send_order(connection: "Connection", target: "Document", action: "Action", namespace: str) -> None:
    """Ask that something is done to an object; it is done when the object's controller sees the order."""
    from hekla.api.volcano.bus import Command

    document = order_document(target, action)
    await connection.client.create_document(Command.kind_info, document, namespace)


def order_document(target: "Document", action: "Action") -> "Document":
    """The Command, owned by its target so that it goes with it."""
    from hekla.api.volcano.bus import Command

    metadata = target["metadata"]
    reference = {
        "apiVersion": target["apiVersion"],
        "kind": target["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": Command.kind_info.api_version,
        "kind": Command.kind_info.kind,
        "metadata": {"generateName": f"{metadata['name']}-{action.lower()}-", "ownerReferences": [reference]},
        "target": reference,
        "action": str(action),
    }
