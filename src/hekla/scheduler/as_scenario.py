"""A snapshot as a scenario in YAML (`tests/scenarios`): a bug report becomes a test.

First what makes no difference is left out, by trying: jobs, nodes and the rest go as long as the jobs that the story is
about fare the same. A scenario has one namespace, no volumes and no times of creation but the order of jobs; a story
that needs more than that says so in its comments.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from hekla.api.meta import Document, Resource
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.volcano.topology import HyperNode
from hekla.placement.columns import NodeSpec
from hekla.placement.framework import PLUGINS
from hekla.placement.model import Job, JobPhase, Task, TaskStatus
from hekla.placement.queue import Queue
from hekla.placement.session import Session
from hekla.scheduler.decisions import Decisions
from hekla.scheduler.replay import Replay
from hekla.scheduler.sentences import job_told
from hekla.scheduler.snapshot import Snapshot
from hekla.scheduler.trimming import trimmed

MOST_TRIES = 400
"""Replays that are spent on leaving things out."""

_UNITS = {"cpu": 1000, "memory": 1 << 30}
_NAMES = {"nvidia.com/gpu": "gpu"}
_POD_FIELDS = (
    "nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "schedulingGates", "hostNetwork",
    "preemptionPolicy",
)  # fmt: skip
_USUAL_PODS = 110
_DIGITS = re.compile(r"\d+")


class UnknownJobError(Exception):
    """A job that a scenario is to be about is not there; the sentence names one that is."""


def scenario_text(snapshot: Snapshot, about: Sequence[str] = (), *, source: str = "a snapshot") -> str:
    """The scenario; `about` are jobs (`namespace/name`) whose fate it tells, all that were decided on if there are none."""
    small = shrunk(snapshot, about)
    replay = Replay(small)
    story = _Story(small, replay)
    world = story.world()
    _, session = replay.run()
    document = {**world, **story.outcome(session)}
    lines = [
        f"# What was decided in {source}, and nothing that made no difference.",
        *(f"# {word}" for word in story.notes),
    ]
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    return "\n".join(lines) + "\n" + text


# Leaving out


def shrunk(snapshot: Snapshot, about: Sequence[str] = ()) -> Snapshot:
    """The snapshot without what makes no difference to these jobs, as far as leaving out part after part shows."""
    replay = Replay(snapshot)
    chosen = _chosen(replay, about)
    wanted = _fates(replay.cycle(), chosen)
    parts = list(_parts(snapshot, {job for job, _ in wanted}))
    tries = MOST_TRIES
    size = max(len(parts) // 2, 1)
    while parts and tries:
        start = 0
        while start < len(parts) and tries:
            rest = [*parts[:start], *parts[start + size :]]
            without = {id(obj) for part in parts[start : start + size] for obj in part}
            fewer = replace(snapshot, objects=tuple(obj for obj in snapshot.objects if id(obj) not in without))
            tries -= 1
            if _fates(Replay(fewer).cycle(), chosen) == wanted:
                snapshot, parts = fewer, rest
            else:
                start += size
        if size == 1:
            break
        size //= 2
    return replace(snapshot, decisions=None)


def _chosen(replay: Replay, about: Sequence[str]) -> frozenset[str]:
    """The jobs that are asked about, by their keys; raises UnknownJobError for one that is not in the snapshot."""
    jobs = replay.cluster.jobs.values()
    known = {job_told(job): job.key for job in jobs} | {job.key: job.key for job in jobs}
    for name in about:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1) or sorted(known)[:1]
            hint = f'; there is "{near[0]}"' if near else "; it has none"
            raise UnknownJobError(f'job "{name}" is not in the snapshot{hint}')
    return frozenset(known[name] for name in about)


def _fates(decisions: Decisions, about: frozenset[str]) -> Sequence[tuple[str, Any]]:
    """What became of the jobs, and why; numbers aside, for fewer nodes make other sentences."""
    fates = [
        *((job, ("in",)) for job in decisions.admitted),
        *((one.job, (one.pod, one.node)) for one in decisions.started),
        *((one.job, (one.action, one.pod, one.node)) for one in decisions.moved),
        *((one.job, ("waits", one.code, _DIGITS.sub("#", one.reason))) for one in decisions.waiting),
    ]
    return [fate for fate in fates if not about or fate[0] in about]


def _parts(snapshot: Snapshot, kept: set[str]) -> Iterator[list[Resource]]:
    """What may go, each part as a whole: jobs with their pods, nodes, and single objects of other kinds."""
    replay = Replay(snapshot)
    jobs: dict[str, list[Resource]] = {}
    for pod in snapshot.of_kind(Pod):
        task = replay.cluster.tasks.get(pod.metadata.uid)
        key = task.job.key if task is not None and task.job is not None else f"pod {pod.metadata.uid}"
        jobs.setdefault(key, []).append(pod)
    for group in replay.feed.groups.values():
        jobs.setdefault(f"{group.metadata.namespace}/{group.metadata.name}", []).append(group)
    queues = {job.spec.queue for job in replay.cluster.jobs.values()}
    taken = {id(obj) for part in jobs.values() for obj in part}
    yield from (part for key, part in sorted(jobs.items()) if key not in kept)
    for obj in snapshot.objects:
        if id(obj) not in taken and not (obj.kind_info.kind == "Queue" and obj.metadata.name in queues):
            yield [obj]


# Writing down


class _Story:
    """The world of a replay in the words of scenarios."""

    def __init__(self, snapshot: Snapshot, replay: Replay) -> None:
        self._snapshot, self._replay, self._cluster = snapshot, replay, replay.cluster
        self.notes: list[str] = []
        self._jobs = sorted(self._cluster.jobs.values(), key=lambda job: (job.spec.created, job.uid))
        self._names = _unique(self._jobs)
        self._tasks = {
            task.uid: f"{self._names[job.uid]}-{number}"
            for job in self._jobs
            for number, task in enumerate(_in_order(job))
        }

    def world(self) -> Document:
        """Everything but what is expected."""
        known = {
            "seed": self._snapshot.seed, "plugins": list(self._plugins()),
            "actions": list(self._replay.configuration.actions),
            "queues": {q.name: _queue(q) for q in sorted(self._cluster.queues.values(), key=lambda q: (q.created, q.name))},
            "nodes": {obj.metadata.name: self._node(obj) for obj in self._snapshot.of_kind(Node)},
            "hypernodes": {obj.metadata.name: _hyper_node(obj) for obj in self._snapshot.of_kind(HyperNode)},
            "running": dict(self._others()),
            "jobs": {self._names[job.uid]: self._job(job) for job in self._jobs},
        }  # fmt: skip
        self._take_notes()
        return {key: part for key, part in known.items() if part}

    def outcome(self, session: Session) -> Document:
        """What a run of the scenario is to find."""
        nodes = self._cluster.nodes
        tasks = [self._cluster.tasks[uid] for uid in self._tasks]
        bound = {self._tasks[t.uid]: nodes.name(t.row) for t in tasks if t.status is TaskStatus.BINDING}
        evicted = {self._tasks[t.uid]: t for t in tasks if t.evicted_at == session.now}
        told: Document = {"expect": bound}
        if evicted:
            self.notes.append(f"evicted here: {', '.join(sorted(evicted))}; say what is expected of them by --rewrite")
        why = {self._names[job.uid]: sentence for job in self._jobs if (sentence := _why(session, job))}
        return {**told, "why": why} if why else told

    def _plugins(self) -> Iterator[list[Any]]:
        for tier in yaml.safe_load(self._replay.configuration.text).get("tiers") or ():
            yield [_plugin(entry) for entry in tier.get("plugins") or () if entry["name"] in PLUGINS]

    def _node(self, obj: Node) -> Document:
        row = self._cluster.nodes.row_of[obj.metadata.name]
        spec = self._cluster.nodes.specs[row]
        assert isinstance(spec, NodeSpec)
        document = trimmed(obj).get("spec", {})
        labels = {k: v for k, v in spec.labels.items() if (k, v) != ("kubernetes.io/hostname", spec.name)}
        found = {
            **_amounts(spec.allocatable), "labels": labels, "taints": document.get("taints", []),
            "images": dict(spec.images), "unschedulable": not spec.is_schedulable,
        }  # fmt: skip
        found = {key: part for key, part in found.items() if part and (key, part) != ("pods", _USUAL_PODS)}
        if not spec.is_ready:
            found["ready"] = False
        return found if "pods" in spec.allocatable else {**found, "pods": 0}

    def _others(self) -> Iterator[tuple[str, Document]]:
        """Pods that take room and belong to nobody whom we schedule."""
        for task in self._cluster.placed():
            if task.uid not in self._tasks:
                node = self._cluster.nodes.name(task.row)
                yield task.spec.name, {"node": node, "queue": "", **self._task(task)}

    def _job(self, job: Job) -> Document:
        spec, tasks = job.spec, _in_order(job)
        # A node that makes no difference may have been left out; its pods still count for their job.
        placed = [self._cluster.nodes.name(task.row) if task.row >= 0 else task.spec.node for task in tasks]
        found: Document = {
            "minAvailable": spec.min_available, "priority": spec.priority, "queue": spec.queue,
            "minTaskMember": dict(spec.role_minimums), "phase": spec.has_group and job.phase.value,
            "tasks": [f"{count} x {{{fields}}}" for count, fields in _runs([_flow(self._task(task)) for task in tasks])],
            "at": placed if any(placed) else [],
        }  # fmt: skip
        if spec.min_resources is not None:
            found["minResources"] = _amounts(spec.min_resources)
        group = self._replay.feed.group_of(job)
        if group is not None:
            document = trimmed(group).get("spec", {})
            found |= {key: document[key] for key in ("networkTopology", "subGroupPolicy") if key in document}
        usual = {("queue", "default"), ("phase", JobPhase.INQUEUE.value)}
        return {
            key: part
            for key, part in found.items()
            if key in {"tasks", "minAvailable", "minResources"}
            or (part and not (isinstance(part, str) and (key, part) in usual))
        }

    def _task(self, task: Task) -> Document:
        pod = self._replay.feed.pods[task.uid]
        spec = trimmed(pod).get("spec", {})
        found: Document = _amounts(task.spec.request)
        found |= {key: kept for key in _POD_FIELDS if (kept := _unusual(key, spec.get(key)))}
        if task.spec.priority:
            found["priority"] = task.spec.priority
        if task.spec.labels:
            found["labels"] = dict(task.spec.labels)
        annotations = trimmed(pod)["metadata"].get("annotations", {})
        told = {key: text for key, text in annotations.items() if not key.endswith("/group-name")}
        if task.spec.role and "volcano.sh/task-spec" not in told:
            told["volcano.sh/task-spec"] = task.spec.role
        return {**found, "annotations": told} if told else found

    def _take_notes(self) -> None:
        pods = [self._replay.feed.pods[uid] for uid in self._tasks]
        if len({job.spec.namespace for job in self._jobs}) > 1:
            self.notes.append("The jobs were of several namespaces; here they share one.")
        if any(v.persistent_volume_claim or v.ephemeral for pod in pods for v in pod.spec.volumes):
            self.notes.append("Pods used volumes, which scenarios do not have.")
        if any(task.status is TaskStatus.RELEASING for task in self._cluster.tasks.values()):
            self.notes.append("Pods were on their way out; here they run.")
        if self._snapshot.state.get("assumed"):
            self.notes.append("Binds were under way; here their pods run already.")


def _unusual(field: str, value: Any) -> Any:
    """A field of a pod without what the API server puts into every pod."""
    if field == "tolerations":
        return [one for one in value or () if "tolerationSeconds" not in one or one.get("key") not in _FLEETING]
    return None if value == "PreemptLowerPriority" else value


_FLEETING = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _in_order(job: Job) -> list[Task]:
    """Its tasks that wait or hold room, in the order in which they are placed; what has ended is left out."""
    ended = (TaskStatus.SUCCEEDED, TaskStatus.FAILED)
    return sorted((task for task in job.tasks.values() if task.status not in ended), key=lambda task: task.order)


def _unique(jobs: Sequence[Job]) -> dict[str, str]:
    """By uid, names that no other job has: namespaces are left out."""
    names: dict[str, str] = {}
    for job in jobs:
        taken, name, number = set(names.values()), job.spec.name, 2
        while name in taken:
            name, number = f"{job.spec.name}-{number}", number + 1
        names[job.uid] = name
    return names


def _plugin(entry: Document) -> Any:
    arguments = dict(entry.get("arguments") or {})
    if entry.get("enableHierarchy"):
        arguments["hierarchy"] = True
    return {entry["name"]: arguments} if arguments else entry["name"]


def _queue(queue: Queue) -> Document:
    known = {
        "weight": queue.weight if queue.weight != 1 else None, "priority": queue.priority or None,
        "parent": queue.parent if queue.parent != "root" else None, "open": None if queue.is_open else False,
        "reclaimable": None if queue.is_reclaimable else False, "capability": _amounts(queue.capability) or None,
        "guarantee": _amounts(queue.guarantee) or None, "deserved": _amounts(queue.deserved) or None,
        "path": [{"name": name, "weight": weight} for name, weight in queue.path] or None,
    }  # fmt: skip
    return {key: part for key, part in known.items() if part is not None}


def _hyper_node(obj: HyperNode) -> Document:
    document = trimmed(obj)
    labels = document["metadata"].get("labels")
    return {"tier": obj.spec.tier, **document["spec"], **({"labels": labels} if labels else {})}


def _amounts(amounts: Mapping[str, int]) -> Document:
    """In whole cpus and GiB; powers of two divide without rest, so memory survives to the byte."""
    told = ((_NAMES.get(name, name), amount, _UNITS.get(name, 1)) for name, amount in amounts.items())
    return {name: amount // unit if amount % unit == 0 else amount / unit for name, amount, unit in told}


def _runs(entries: Sequence[str]) -> list[tuple[int, str]]:
    """Equal neighbours together."""
    runs: list[tuple[int, str]] = []
    for entry in entries:
        if runs and runs[-1][1] == entry:
            runs[-1] = runs[-1][0] + 1, entry
        else:
            runs.append((1, entry))
    return runs


def _flow(fields: Document) -> str:
    """`cpu: 1, gpu: 8`, as it stands between braces."""
    text: str = yaml.safe_dump(fields, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text.strip().removeprefix("{").removesuffix("}")


def _why(session: Session, job: Job) -> str:
    failure, refusal = session.failures.get(job.uid), session.refusals.get(job.uid)
    if failure is not None:
        return failure.explanation.sentence()
    return refusal.sentence if refusal is not None else ""
