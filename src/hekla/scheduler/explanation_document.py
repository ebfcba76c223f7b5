"""Writes down why a job waits, as the document that `hekla why -o json` prints: amounts as people write them, RFC 3339.

Every field that a program may want is a field; `message` is the whole in one sentence. Pure: what was found and the
objects go in.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hekla.api.explanation import EXPLANATION
from hekla.api.meta import Document
from hekla.api.pods import Pod, PodCondition
from hekla.api.volcano.scheduling import PodGroup, PodGroupCondition
from hekla.placement.amounts import told
from hekla.placement.model import Job, TaskStatus
from hekla.placement.named_jobs import NamedJob, told_to
from hekla.placement.topology.refusals import CloseExplanation
from hekla.scheduler.cluster_remedies import Remedy
from hekla.scheduler.explain import Lack, Why

MOST_TRANSITIONS = 8


def document_of(
    name: str, job: Job, found: Why, fixes: Iterable[Remedy], group: PodGroup | None, pod: Pod | None,
    may_see: Callable[[str], bool],
) -> Document:  # fmt: skip
    """The explanation called `name` of a job; `pod` is the one that was asked about, if one was."""
    ahead = [NamedJob(key).told_to(may_see) for key in found.ahead]
    return {
        "apiVersion": EXPLANATION.api_version,
        "kind": EXPLANATION.kind,
        "metadata": {"name": name, "namespace": job.spec.namespace},
        "message": found.sentence(may_see),
        "verdict": verdict_of(found),
        "phase": group.status.phase if group is not None else _pod_phase(pod),
        "queue": {"name": found.queue, "place": found.place, "waiting": found.waiting, "ahead": ahead}
        if found.is_waiting
        else {"name": found.queue},
        "gang": _gang(job, found),
        "refusal": {"code": found.refusal.code, "message": found.refusal.told_to(may_see)} if found.refusal else None,
        "reserved": told_to(found.reserved, may_see) or None,
        "pod": found.task,
        "nodes": _nodes(found),
        "lacks": [_lack(lack) for lack in found.lacks],
        "transitions": _transitions(group, pod),
        "remedies": [{"change": one.change, "message": one.sentence, **one.details} for one in fixes],
    }


def verdict_of(found: Why) -> str:
    """`Placed`, `Starts` or `Waits`."""
    if not found.is_waiting:
        return "Placed"
    return "Starts" if found.fits else "Waits"


def _gang(job: Job, found: Why) -> Document:
    return {
        "minAvailable": job.spec.min_available,
        "pods": len(job.tasks),
        "ready": job.ready_count,
        "missing": found.wanted if found.is_waiting else 0,
        "placeable": found.placeable,
        "statuses": {TaskStatus[name].name.capitalize(): count for name, count in found.statuses.items()},
    }


def _nodes(found: Why) -> Document | None:
    if found.explanation is None:
        return None
    reasons = [
        {"code": refusal.code, "message": refusal.sentence, "nodes": count, "examples": list(found.examples.get(refusal, ()))}
        for refusal, count in found.explanation.reasons
    ]  # fmt: skip
    nodes: Document = {"count": found.explanation.nodes, "feasible": found.explanation.feasible, "reasons": reasons}
    if isinstance(found.explanation, CloseExplanation):
        nodes["message"] = found.explanation.sentence()  # of domains: its counts are those of the best one's nodes
    return nodes


def _lack(lack: Lack) -> Document:
    name = lack.resource
    return {
        "resource": name,
        "pods": lack.pods,
        "each": told(name, lack.each),
        "needed": told(name, lack.needed),
        "free": told(name, lack.free),
        "freeOn": [{"node": node, "free": told(name, amount)} for node, amount in lack.free_on],
        "largestNode": told(name, lack.largest),
        "message": lack.sentence(),
    }


def _transitions(group: PodGroup | None, pod: Pod | None) -> Sequence[Mapping[str, Any]]:
    """What the conditions of the objects say, the newest first."""
    lines = [*_lines("PodGroup", group.status.conditions if group is not None else ())]
    lines += _lines("Pod", pod.status.conditions if pod is not None else ())
    return sorted(lines, key=lambda line: str(line["time"]), reverse=True)[:MOST_TRANSITIONS]


def _lines(kind: str, conditions: Iterable[PodGroupCondition | PodCondition]) -> Iterator[Document]:
    for one in conditions:
        said = f"{one.type}={one.status}"
        yield {"time": one.last_transition_time or "", "of": kind, "condition": said, "reason": one.reason}


def _pod_phase(pod: Pod | None) -> str:
    return (pod.status.phase or "Pending") if pod is not None else ""
