"""What Volcano's webhooks write into a queue, and what they refuse: amounts that contradict one another, a broken tree."""

from collections.abc import Iterator

import msgspec

from hekla.api.fields import ResourceList
from hekla.api.meta import Document
from hekla.api.volcano import Queue
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.apiserver.fielderrors import shown
from hekla.apiserver.webhook_rule import aggregate, is_readable
from hekla.lib import quantity
from hekla.lib.quantity import Quantity
from hekla.workloads import keys
from hekla.workloads.admission_queue_tree import QueueTree, wrong_parent, wrong_shares
from hekla.workloads.ours import DEFAULT_QUEUE, Ours

QUEUES = "queues.scheduling.volcano.sh"
_STATES = ("", "Open", "Closed")


def default_queue(request: AdmissionRequest, reader: Reader) -> None:
    """Complete a queue that is being created."""
    if request.object is None or not is_readable(request.object, Queue):
        return
    spec = request.object.setdefault("spec", {})
    if spec.get("reclaimable") is None:
        spec["reclaimable"] = True
    spec["weight"] = spec.get("weight") or 1
    notes = request.object.get("metadata", {}).get("annotations") or {}
    path, weights = notes.get(keys.HIERARCHY), notes.get(keys.HIERARCHY_WEIGHTS)
    if path and weights and not path.startswith("root"):
        notes[keys.HIERARCHY], notes[keys.HIERARCHY_WEIGHTS] = f"root/{path}", f"1/{weights}"


def refuse_queue(request: AdmissionRequest, reader: Reader, ours: Ours) -> str:
    """Why a queue may not be created, changed or deleted; empty if it may. Amounts that stood before are let stand: a queue that
    an older Volcano let in is told its parent by the controllers, and may be closed.
    """
    tree = QueueTree.of([_typed(one) for one in reader.list(QUEUES)])
    if request.operation is Operation.DELETE:
        return _wrong_deletion(request.name, tree, ours)
    queue = _typed(request.object or {})
    tree = tree.with_queue(queue)
    old = _typed(request.old) if request.old is not None else None
    has_new_amounts = old is None or _shares(old)[1:] != _shares(queue)[1:]
    if errors := [
        *(_wrong_amounts(queue) if has_new_amounts else ()),
        *_wrong_state(queue),
        *_wrong_hierarchy(queue, tree),
    ]:
        return aggregate(errors)
    if (old is None or old.spec.parent != queue.spec.parent) and (said := wrong_parent(queue, tree)):
        return said
    if queue.metadata.name == "root":
        return _wrong_root(queue, old)
    return wrong_shares(queue, tree) if old is None or _shares(old) != _shares(queue) else ""


def _typed(document: Document) -> Queue:
    return msgspec.convert(document, Queue)


def _shares(queue: Queue) -> tuple[object, ...]:
    spec = queue.spec
    amounts = tuple(_amounts(one) for one in (spec.capability, spec.deserved, spec.guarantee.resource))
    return (spec.parent, *amounts)


def _amounts(resources: ResourceList) -> dict[str, Quantity]:
    return {name: quantity.parse(one if isinstance(one, int) else str(one)) for name, one in resources.items()}


def _wrong_root(queue: Queue, old: Queue | None) -> str:
    if old is None or _shares(old)[1:] == _shares(queue)[1:]:
        return ""
    return "root queue's resource attributes (capability, deserved, guarantee) cannot be modified"


def _wrong_amounts(queue: Queue) -> Iterator[str]:
    path, spec = "requestBody.spec", queue.spec
    capability, deserved = _amounts(spec.capability), _amounts(spec.deserved)
    guarantee = _amounts(spec.guarantee.resource)
    for field, amounts in (("capability", capability), ("deserved", deserved), ("guarantee.resource", guarantee)):
        for name, amount in amounts.items():
            yield from _wrong_amount(f"{path}.{field}.{name}", name, amount)
    for name, least in guarantee.items():
        due = deserved.get(name)
        where = f"{path}.deserved.{name}: Invalid value: "
        if due is None:
            yield f'{where}"<nil>": deserved[{name}] must be >= guarantee[{name}]={least}'
        elif due.value < least.value:
            yield f'{where}"{due}": deserved[{name}]={due} must be >= guarantee[{name}]={least}'
    for name, due in deserved.items():
        most = capability.get(name)
        if most is not None and due.value > most.value:
            said = f"deserved[{name}]={due} must be <= capability[{name}]={most}"
            yield f'{path}.deserved.{name}: Invalid value: "{due}": {said}'


def _wrong_amount(where: str, name: str, amount: Quantity) -> Iterator[str]:
    if amount.value < 0:
        yield f'{where}: Invalid value: "{amount}": must be greater than or equal to 0'
    is_counted = name == "pods" or "/" in name
    if is_counted and amount.value.denominator != 1:
        yield f'{where}: Invalid value: "{amount}": must be an integer'


def _wrong_state(queue: Queue) -> Iterator[str]:
    state = queue.status.state
    # Closing and Unknown are the controller's words; an update of the spec carries them along.
    if state not in (*_STATES, "Closing", "Unknown"):
        yield f"requestBody.spec.state: Invalid value: {shown(state)}: queue state must be in [Open Closed]"


def _wrong_hierarchy(queue: Queue, tree: QueueTree) -> Iterator[str]:
    """What is wrong with the annotations by which older set-ups name a queue's place in the tree."""
    notes = queue.metadata.annotations
    path, weights = notes.get(keys.HIERARCHY, ""), notes.get(keys.HIERARCHY_WEIGHTS, "")
    where = "requestBody.metadata.annotations: Invalid value: "
    if not path and not weights:
        return
    if len(path.split("/")) != len(weights.split("/")):
        yield f"{where}{shown(path)}: {keys.HIERARCHY} must have the same length with {keys.HIERARCHY_WEIGHTS}"
        return
    for weight in weights.split("/"):
        worth = _number(weight)
        if worth is None:
            why = f'strconv.ParseFloat: parsing "{weight}": invalid syntax'
            yield f"{where}{shown(weights)}: {weight} in the {weights} is invalid number: {why}"
            return
        if worth <= 0:
            yield f"{where}{shown(weights)}: {weight} in the {weights} must be larger than 0"
            return
    for other in tree.queues:
        theirs = other.metadata.annotations.get(keys.HIERARCHY, "")
        if other.metadata.name != queue.metadata.name and theirs.startswith(f"{path}/"):
            name = other.metadata.name
            yield f"{where}{shown(path)}: {path} is not allowed to be in the sub path of {theirs} of queue {name}"
            return


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _wrong_deletion(name: str, tree: QueueTree, ours: Ours) -> str:
    if name in (DEFAULT_QUEUE, "root", ours.queue):
        return f"`{name}` queue can not be deleted"
    children = [child.metadata.name for child in tree.children(name)]
    if not children:
        return ""
    listed = ", ".join(children)
    return f"queue {name} can not be deleted because it has {len(children)} child queues: {listed}"
