"""What of an object cannot be read, and what the scheduler takes it for instead: told on the object, and nobody else waits for it.

A server that checks what it stores lets little of this through; custom kinds, annotations and nodes of other servers can say
anything. Pods that cannot be read are told as pods that wait (`dialects/pod_template.py`), queues to their jobs
(`dialects/feed.py`), HyperNodes as members that are left out (`placement/topology/tree.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hekla.api.core import ResourceQuota
from hekla.api.meta import Resource
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup
from hekla.dialects.kubernetes import group_name
from hekla.dialects.pod_requests import amount
from hekla.dialects.traits import USAGE_KEY, node_usage
from hekla.dialects.volcano import RUNNING_ESTIMATE
from hekla.lib.go_duration import DurationError, cut, parse_duration
from hekla.lib.quantity import QuantityError

SLA_KEYS = ("volcano.sh/sla-waiting-time", "sla-waiting-time")


def unreadable(old: Resource | None, new: Resource | None) -> Iterator[str]:
    """Sentences about what came with this change and cannot be read; nothing about what the object said before."""
    if new is None or (check := _CHECKS.get(type(new))) is None:
        return
    said = list(check(new))
    known = set(check(old)) if said and old is not None else set()
    yield from (sentence for sentence in said if sentence not in known)


def _of_node(node: Node) -> Iterator[str]:
    allocatable = node.status.allocatable or node.status.capacity
    yield from _amounts("status.allocatable", allocatable, "the node counts as one that has none")
    if USAGE_KEY in node.metadata.annotations and node_usage(node) is None:
        example = '{"cpu": 43.5, "memory": 70, "time": "2026-11-21T12:00:00Z"}'
        yield f"annotation {USAGE_KEY} is not like {example}; the node counts as not measured"


def _of_group(group: PodGroup) -> Iterator[str]:
    yield from _amounts(
        "spec.minResources", group.spec.min_resources or {}, "the group is let in as one that names none"
    )
    yield from _durations(group.metadata.annotations, (RUNNING_ESTIMATE, *SLA_KEYS))


def _of_pod(pod: Pod) -> Iterator[str]:
    """Of one in no group: for the others their group says how long they run."""
    if pod.metadata.annotations and not group_name(pod):
        yield from _durations(pod.metadata.annotations, (RUNNING_ESTIMATE,))


def _durations(annotations: Mapping[str, str], keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        text = annotations.get(key)
        if text is not None and not _is_duration(text):
            yield f'annotation {key} is "{cut(text)}"; a duration above 0 like 1h30m is expected; it counts as none'


def _of_quota(quota: ResourceQuota) -> Iterator[str]:
    hard = {_resource(name): text for name, text in (quota.status.hard or quota.spec.hard).items()}
    yield from _amounts("hard", hard, "the scheduler heeds nothing of this quota")


def _resource(name: str) -> str:
    return name.removeprefix("requests.").removeprefix("limits.")


def _amounts(field: str, quantities: Mapping[str, Any], instead: str) -> Iterator[str]:
    for name, text in quantities.items():
        try:
            amount(name, text)
        except QuantityError as error:
            yield f'{field}.{name} is "{text}", which cannot be read ({error}); {instead}'


def _is_duration(text: str) -> bool:
    try:
        return parse_duration(text).total_seconds() > 0
    except DurationError:
        return False


_CHECKS: Mapping[type, Callable[[Any], Iterator[str]]] = {
    Node: _of_node, Pod: _of_pod, PodGroup: _of_group, ResourceQuota: _of_quota,
}  # fmt: skip
