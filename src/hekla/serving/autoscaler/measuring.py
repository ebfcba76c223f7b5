"""From pods and what they show to what `decision.py` decides on: replicas, their metrics, what waits. Pure.

A replica is a serving group, or an instance of a role. Of its entry pods amounts are added and ratios averaged; of a
histogram the 95th percentile counts, of what came since an earlier look.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hekla.api.core import Pod
from hekla.api.kthena import ModelServing, labels
from hekla.api.kthena.autoscaling import PodSource
from hekla.api.volcano import PodGroup
from hekla.api.volcano.scheduling import PodGroupCondition
from hekla.dialects.node_terms import selects
from hekla.kube.timestamps import parse_rfc3339
from hekla.serving.autoscaler.algorithms.histogram import Histogram, HistogramError, merged, quantile, since
from hekla.serving.autoscaler.algorithms.recommendation import Metrics, is_ratio
from hekla.serving.autoscaler.decision import Measured
from hekla.serving.autoscaler.exposition import Reading
from hekla.serving.autoscaler.units import Unit

PERCENTILE = 95
PODS_COME_WITHIN = timedelta(seconds=10)
"""A gang that has no pod after this long gets none: a quota, or a webhook, refuses them."""


WAITS_LONG = timedelta(seconds=30)
"""Who has waited for room so long may be stood in for by another kind: others that are evicted for it take their time to go."""


@dataclass(frozen=True)
class Look:
    """One pod to be asked, and for what."""

    pod: str
    address: str
    port: int
    path: str
    metrics: Mapping[str, str]
    """By the policy's name for a metric, the pod's."""

    @property
    def url(self) -> str:
        """Where it is asked."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}{self.path}"


Answers = Mapping[tuple[str, str], float | Histogram]
"""By pod and the policy's name of a metric: a value, or what came since an earlier look."""


def looks(unit: Unit, pods: Sequence[Pod]) -> Sequence[Look]:
    """Whom to ask about a unit; a pod is asked once for all that it shows in one place."""
    asked: dict[tuple[str, int, str], dict[str, str]] = defaultdict(dict)
    by_name = {pod.metadata.name: pod for pod in entries(unit, pods) if is_ready(pod) and pod.status.pod_ip}
    for name in unit.targets:
        source = unit.sources[name].pod if name in unit.sources else None
        for pod in by_name.values() if source is not None else ():
            if source is not None and _shows(source, pod):
                asked[pod.metadata.name, source.port, source.uri or "/metrics"][name] = source.name or name
    return [
        Look(pod, by_name[pod].status.pod_ip, port, path, metrics) for (pod, port, path), metrics in asked.items()
    ]  # fmt: skip


_NO_SOURCE = (
    "metricSources has no {name}, so nobody knows where it is read; "
    'write metricSources: {{"{name}": {{pod: {{uri: /metrics, port: 8000}}}}}}'
)


def without_source(unit: Unit) -> Mapping[str, str]:
    """Why metrics are not asked for at all."""
    return {name: _NO_SOURCE.format(name=name) for name in unit.targets if name not in unit.sources}


def entries(unit: Unit, pods: Sequence[Pod]) -> Iterator[Pod]:
    """The entry pods of a unit that are there to stay."""
    for pod in pods:
        told = pod.metadata.labels
        if (
            labels.ENTRY in told
            and pod.metadata.deletion_timestamp is None
            and unit.role in ("", told.get(labels.ROLE))
        ):
            yield pod


def measured(
    unit: Unit,
    serving: ModelServing,
    pods: Sequence[Pod],
    groups: Sequence[PodGroup],
    answers: Answers,
    whole: Metrics,
    now: datetime,
    unread: str = "",
) -> Measured | None:
    """What is known of a unit; None if the role that it is about is not there."""
    current = current_replicas(unit, serving)
    if current is None:
        return None
    replicas: dict[str, list[Pod]] = defaultdict(list)
    for pod in entries(unit, pods):
        replicas[_replica_of(unit, pod)].append(pod)
    ready = [some for some in replicas.values() if all(map(is_ready, some))]
    waiting = list(_waiting(groups, pods, now))
    return Measured(
        current=current,
        ready=[_metrics(unit, some, answers) for some in ready],
        # those that are not made yet are as little ready as those that are starting
        unready=max(0, max(current, len(replicas)) - len(ready)),
        whole=whole,
        unread=unread if ready else _not_ready(len(replicas), current),
        waits_for=next((said for said, _ in waiting), ""),
        waiting=min(current, sum(since is None or now - since >= WAITS_LONG for _, since in waiting)),
        wanted_at=parse_rfc3339(serving.metadata.annotations.get(labels.WANTED_AT)),
    )


def current_replicas(unit: Unit, serving: ModelServing) -> int | None:
    """How many replicas the spec asks for."""
    if not unit.role:
        return 1 if serving.spec.replicas is None else serving.spec.replicas
    role = next((one for one in serving.spec.template.roles if one.name == unit.role), None)
    return None if role is None else 1 if role.replicas is None else role.replicas


def is_ready(pod: Pod) -> bool:
    """Whether a pod serves."""
    return pod.status.phase == "Running" and any(
        one.type == "Ready" and one.status == "True" for one in pod.status.conditions
    )


def last_change(before: Reading | None, now: Reading, name: str) -> float | Histogram | None:
    """A metric of one pod: its value, or what its histogram counted since `before`; None if that cannot be said."""
    if name not in now.histograms:
        return now.values.get(name)
    if before is None or name not in before.histograms:
        return None  # what it counted in all its life says nothing of now
    try:
        return since(now.histograms[name], before.histograms[name])
    except HistogramError:
        return None


def _shows(source: PodSource, pod: Pod) -> bool:
    return source.label_selector is None or selects(source.label_selector, pod.metadata.labels)


def _replica_of(unit: Unit, pod: Pod) -> str:
    told = pod.metadata.labels
    group = told.get(labels.GROUP_NAME, "")
    # roles are scaled within each group, so the first instances of all groups are one replica
    return told.get(labels.ROLE_ID, "") if unit.role else group


def _metrics(unit: Unit, pods: Sequence[Pod], answers: Answers) -> Metrics:
    found: dict[str, float] = {}
    for name in unit.targets:
        told = [answers[key] for pod in pods if (key := (pod.metadata.name, name)) in answers]
        histograms = [one for one in told if isinstance(one, Histogram)]
        values = [one for one in told if not isinstance(one, Histogram)]
        if histograms:
            found[name] = quantile(merged(histograms), PERCENTILE)
        elif values:
            # a role's instance stands for its like in every group, so there too the mean counts
            found[name] = sum(values) / len(values) if unit.role or is_ratio(name) else sum(values)
    return found


def _not_ready(replicas: int, wanted: int) -> str:
    if replicas == wanted == 0:
        return ""  # there is nothing to be read
    return "no replica is ready yet" if replicas else "no replica has pods yet"


def _waiting(groups: Sequence[PodGroup], pods: Sequence[Pod], now: datetime) -> Iterator[tuple[str, datetime | None]]:
    """What the scheduler says of each group that has no room, and since when it waits; or that its pods are refused."""
    with_pods: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        with_pods[pod.metadata.labels.get(labels.GROUP_NAME, "")].append(pod)
    for group in groups:
        name, made_at = group.metadata.name, parse_rfc3339(group.metadata.creation_timestamp)
        told = [one for one in group.status.conditions if one.type == "Unschedulable" and one.status == "True"]
        if group.status.phase not in ("", "Pending", "Inqueue"):
            continue
        if told:
            yield f"{name}: {told[-1].message}", _waits_since(with_pods.get(name, ()), told[-1], made_at)
        elif name not in with_pods and made_at is not None and now - made_at > PODS_COME_WITHIN:
            yield f"{name}: none of its pods is there; the events of its ModelServing say what refuses them", None


def _waits_since(pods: Sequence[Pod], told: PodGroupCondition, made_at: datetime | None) -> datetime | None:
    """Since its oldest pod without a node is there: a group that was evicted is older. Where it has none, since the scheduler
    says so, which it writes anew with each new reason; where nobody knows, since the group was made.
    """
    made = [
        parse_rfc3339(pod.metadata.creation_timestamp)
        for pod in pods
        if not pod.spec.node_name and pod.metadata.deletion_timestamp is None
    ]
    told_at = parse_rfc3339(told.last_transition_time)
    return min((one for one in made if one is not None), default=told_at or made_at)
