"""What Volcano writes into a PodGroup, and refuses in it: a queue that takes no work, a tier named twice."""

from collections.abc import Iterator

import msgspec

from hekla.api.meta import Document
from hekla.api.volcano import PodGroup
from hekla.api.volcano.batch import NetworkTopology
from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.apiserver.webhook_rule import is_readable
from hekla.workloads import keys

QUEUES = "queues.scheduling.volcano.sh"
_BOTH = "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously."


def default_pod_group(request: AdmissionRequest, reader: Reader) -> None:
    """Put a group that names no queue into its namespace's, if the namespace has one."""
    if request.object is None or not is_readable(request.object, PodGroup):
        return
    spec = request.object.setdefault("spec", {})
    if spec.get("queue", "default") != "default":
        return
    namespace = reader.get("namespaces", "", request.namespace) or {}
    queue = (namespace.get("metadata", {}).get("annotations") or {}).get(keys.QUEUE_OF_POD)
    if queue:
        spec["queue"] = queue


def refuse_pod_group(request: AdmissionRequest, reader: Reader) -> str:
    """Why a group may not be created, or not be changed like this; empty if it may.

    What stood before is let stand: a group's status is written with the rest of it, and its pods go on running when its
    queue closes.
    """
    if request.object is None or (request.old is not None and request.old.get("spec") == request.object.get("spec")):
        return ""  # most writes are of a status
    group = _typed(request.object)
    old = _typed(request.old) if request.old is not None else None
    wrong_queue = "" if old is not None and old.spec.queue == group.spec.queue else _wrong_queue(group, reader)
    wrong_tiers = "" if old is not None and _tiers(old) == _tiers(group) else " ".join(_wrong_tiers(group))
    return "; ".join(said for said in (wrong_queue, wrong_tiers) if said)


def _typed(document: Document) -> PodGroup:
    return msgspec.convert(document, PodGroup)


def _wrong_queue(group: PodGroup, reader: Reader) -> str:
    name = group.spec.queue
    if not name:
        return ""
    queue = reader.get(QUEUES, "", name)
    if queue is None:
        return f'unable to find queue: queue.scheduling.volcano.sh "{name}" not found'
    state = queue.get("status", {}).get("state", "")
    # A queue that its controller has not seen yet is as good as open.
    if state in ("", "Open"):
        return ""
    return f"can only submit PodGroup to queue with state `Open`, queue `{name}` status is `{state}`."


def _wrong_tiers(group: PodGroup) -> Iterator[str]:
    if _names_both(group.spec.network_topology):
        yield _BOTH
    for policy in group.spec.sub_group_policy:
        if _names_both(policy.network_topology):
            yield f"in subGroupPolicy '{policy.name}': {_BOTH}"
            return


def _tiers(group: PodGroup) -> tuple[object, ...]:
    return group.spec.network_topology, group.spec.sub_group_policy


def _names_both(wish: NetworkTopology | None) -> bool:
    return wish is not None and wish.highest_tier_allowed is not None and bool(wish.highest_tier_name)
