"""Judges evictions by what must be true of them, read from the specs of pods and nodes alone.

right       a victim is of the same queue and of a job of lower priority, and no critical pod (4.1, 4.3)
room        whoever was promised room fits on the node without the victims
no more     without any one victim of a node, those who were promised room there would not fit
"""

from collections import Counter

from bench.placement.plain import PlainNodes
from hekla.placement.model import JobSpec, Task, TaskStatus
from hekla.testing.cluster import World

CRITICAL = 2_000_000_000
"""Where the priorities of system-cluster-critical and system-node-critical begin."""


def unsound(made: World) -> tuple[list[str], int]:
    """(sentences about evictions that are not sound, evictions) after a cycle."""
    faults, cluster = list[str](), made.cluster
    nodes = PlainNodes([spec for spec in cluster.nodes.specs if spec is not None])
    victims, promised = dict[str, list[Task]](), dict[str, list[Task]]()
    for task in cluster.placed():
        node = cluster.nodes.name(task.row)
        if task.is_claim:
            promised.setdefault(node, []).append(task)
        elif task.status is TaskStatus.RELEASING:
            victims.setdefault(node, []).append(task)
        else:
            nodes.put(task.spec, nodes.row[node])
    lowest = min((_job(task).priority for tasks in promised.values() for task in tasks), default=0)
    queues = {_job(task).queue for tasks in promised.values() for task in tasks}
    for node, tasks in victims.items():
        asked = _sum(promised.get(node, []))
        free = {name: int(nodes.most[name][nodes.row[node]] - nodes.used[name][nodes.row[node]]) for name in nodes.most}
        if not _fits(asked, free):
            faults.append(f"{node}: what was promised does not fit without the victims")
        for task in tasks:
            is_critical = task.spec.priority >= CRITICAL or task.spec.namespace == "kube-system"
            if is_critical or _job(task).priority >= lowest or _job(task).queue not in queues:
                faults.append(f"{node}: {task.uid} may not be evicted for anybody here")
            held = _sum([task])
            if _fits(asked, {name: amount - held[name] for name, amount in free.items()}):
                faults.append(f"{node}: {task.uid} went for nothing")
    return faults, sum(map(len, victims.values()))


def _job(task: Task) -> JobSpec:
    assert task.job is not None
    return task.job.spec


def _sum(tasks: list[Task]) -> Counter[str]:
    total: Counter[str] = Counter(pods=len(tasks))
    for task in tasks:
        total.update(task.spec.request)
    return total


def _fits(asked: Counter[str], free: dict[str, int]) -> bool:
    return all(amount <= free.get(name, 0) for name, amount in asked.items())
