"""Scenarios: stories in YAML that a support engineer can write, run against the placement engine.

    # A gang that does not fit whole takes nothing; a smaller one behind it still starts.
    nodes:
      n1: {cpu: 4, memory: 8}
    jobs:
      big:   {minAvailable: 3, priority: 10, tasks: 3 x {cpu: 3}}
      small: {tasks: 2 x {cpu: 2}}
    expect:
      small-0: n1
      small-1: n1
    why:
      big: "0/1 nodes are available: 1 Insufficient cpu."

Queues may have `weight`, `priority`, `parent`, `open`, `reclaimable`, and amounts as `guarantee`, `deserved` and
`capability`.

Nodes may have been measured: `usage: {n1: {cpu: 80, memory: 20, at: 60}}`, in percent. Time is told in seconds, or by
the hour of the first day (`now: "14:30"`). Jobs and tasks may have `annotations`. `answers` are an extender's, by verb.

Pods with volumes have `storage` around them (`scenario_storage.py`).

Of evictions a story tells who runs already (`at: n1`, or a node per task), what pods lose (`startedAt`, `checkpointedAt`),
what protects them (`minRun`, `cooldown`, `budgets`), and expects `evicted` (the reason by pod) and `promised` (the node by
pod that waits for its room).

A story with several cycles has `steps`, each with what changes (`nodes`, `jobs`, `queues`, `finish`, `run`, `remove`) and
what is expected after its cycle. `pytest --rewrite` writes down what happens as what is expected.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import structs

from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.volcano.batch import NetworkTopology
from hekla.api.volcano.topology import HyperNode
from hekla.dialects.kubernetes import node_spec, task_spec
from hekla.dialects.shards import NodeShards, Sharding, ShardingMode
from hekla.dialects.topology import closeness, domain_spec
from hekla.dialects.traits import PREEMPTABLE_KEY, group_traits
from hekla.dialects.volcano import quota_amounts
from hekla.placement.bookkeeping.measured_usage import NodeUsage
from hekla.placement.budgets import DisruptionBudget, NamespaceQuota
from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import NodeTerm, Operator, PodSelector, Requirement
from hekla.placement.model import Job, JobPhase, JobSpec, SubGroupPolicy, TaskSpec, TaskStatus
from hekla.placement.plugins.extender import Address, Answers, Extender, SilenceError
from hekla.placement.queue import NodeGroups, Queue
from hekla.placement.topology.topology import DomainSpec
from hekla.placement.topology.wish import Closeness
from hekla.testing.cluster import DEFAULT_ACTIONS, DEFAULT_PLUGINS, World, amounts
from hekla.testing.scenario_storage import ScenarioStorage, pod_volumes

_TASKS = re.compile(r"(\d+)\s*x\s*(\{.*\})", re.DOTALL)
_KEYS = {
    "scenario": {"storage", "sharding", "nodes", "hypernodes", "queues", "jobs", "running", "usage", "answers", "plugins", "actions", "expect", "evicted", "why", "phases", "steps", "seed", "about", "now", "resourceQuotas", "arguments", "budgets", "promised", "granted", "run"},
    "step": {"storage", "nodes", "hypernodes", "queues", "jobs", "running", "usage", "finish", "remove", "expect", "evicted", "why", "phases", "now", "budgets", "promised", "granted", "run"},
    "job": {"at", "lineage", "minAvailable", "minTaskMember", "priority", "queue", "tasks", "minResources", "phase", "quotaAsked", "subGroupPolicy", "networkTopology", "patience", "estimate", "annotations"},
}  # fmt: skip
_OUTCOMES = ("expect", "evicted", "promised", "granted", "why", "phases")


class ScenarioError(ValueError):
    """A scenario that cannot be run; the sentence says what to change in the file."""


def run_scenario(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a scenario; per cycle what was bound, why others wait, and phases: the same form as what is expected."""
    _refuse_unknown("scenario", document)
    world = World(plugins=_plugins(document), seed=document.get("seed", 0), arguments=document.get("arguments"))
    world.storage.shards = NodeShards(Sharding(mode=ShardingMode(document.get("sharding", "none"))))
    _answer(world, document.get("answers") or {})
    outcomes = []
    for step in _steps(document):
        world.tell_time(_seconds(step.get("now", 0.0)))
        _apply(world, step)
        binds = world.schedule(document.get("actions", DEFAULT_ACTIONS))
        outcomes.append(_outcome(world, step, binds))
    return outcomes


def expectations(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a scenario expects, cycle by cycle."""
    return [{key: step[key] or {} for key in _OUTCOMES if key in step} for step in _steps(document)]


def load_scenario(path: Path) -> dict[str, Any]:
    """Read a scenario file."""
    document = yaml.safe_load(path.read_text())
    if not isinstance(document, dict):
        raise ScenarioError(f"{path.name} is no mapping; a scenario has nodes, jobs and what to expect")
    return document


def rewritten(text: str, outcomes: Sequence[Mapping[str, Any]]) -> str:
    """The text of a scenario file with what happened in place of what was expected; comments elsewhere stay."""
    document = yaml.safe_load(text)
    if "steps" in document:
        for step, outcome in zip(document["steps"], outcomes, strict=True):
            step.update(outcome)
        head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    kept = _without_blocks(text, _OUTCOMES)
    return kept.rstrip("\n") + "\n" + yaml.safe_dump(dict(outcomes[0]), sort_keys=False, allow_unicode=True, width=120)


def _without_blocks(text: str, keys: Sequence[str]) -> str:
    lines, is_inside = [], False
    for line in text.splitlines(keepends=True):
        if line[:1].strip() and not line.startswith("#"):
            is_inside = line.partition(":")[0] in keys
        if not is_inside:
            lines.append(line)
    return "".join(lines)


def _steps(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The first step is the document itself; with `steps`, its world comes before the first of them."""
    if "steps" not in document:
        return [document]
    first, *others = document["steps"]
    world = {
        key: value
        for key, value in document.items()
        if key in {"storage", "nodes", "hypernodes", "queues", "jobs", "running", "usage", "budgets"}
    }
    merged = {key: {**(world.get(key) or {}), **(first.get(key) or {})} for key in world.keys() | first.keys()
              if isinstance(world.get(key, first.get(key)), dict)}  # fmt: skip
    return [{**first, **merged}, *others]


def _apply(world: World, step: Mapping[str, Any]) -> None:
    for name in step.get("remove") or ():
        _remove(world, name)
    for name in step.get("finish") or ():
        world.finish(name)
    for name in step.get("run") or ():
        world.start(name)
    for name, fields in (step.get("budgets") or {}).items():
        labels = tuple(Requirement(key, Operator.IN, (value,)) for key, value in fields["selector"].items())
        selector = PodSelector(labels=labels, namespaces=frozenset({"default"}))
        world.cluster.put_budget(
            DisruptionBudget(name=name, namespace="default", selector=selector, allowed=fields["allowed"])
        )
    for name, fields in (step.get("queues") or {}).items():
        world.cluster.put_queue(_queue(name, fields or {}))
    for name, fields in (step.get("hypernodes") or {}).items():
        world.cluster.put_domain(_hyper_node(name, fields))
    for name, fields in (step.get("resourceQuotas") or {}).items():
        quota = {key: quota_amounts(fields.get(key) or {}) for key in ("hard", "used")}
        world.cluster.put_namespace_quota("default", NamespaceQuota(name=name, **quota))
    _apply_storage(world, step.get("storage") or {})
    for name, fields in (step.get("nodes") or {}).items():
        world.cluster.put_node(replace(_node(name, fields or {}), **world.storage.of_node(name)))
    for name, fields in (step.get("usage") or {}).items():
        measured = NodeUsage(cpu=fields["cpu"], memory=fields["memory"], at_s=_seconds(fields.get("at", 0.0)))
        world.cluster.put_usage(name, measured)
    for name, fields in (step.get("running") or {}).items():
        _run(world, name, fields)
    for name, fields in (step.get("jobs") or {}).items():
        _job(world, name, fields or {})


def _apply_storage(world: World, told: Mapping[str, Mapping[str, Any]]) -> None:
    """What the story says of storage, and what follows from it for nodes and for pods that wait."""
    world.storage.put_all(told)
    for spec in [spec for spec in world.cluster.nodes.specs if spec is not None]:
        world.cluster.put_node(replace(spec, **world.storage.of_node(spec.name)))
    for name in world.storage.told_attachments:
        said = world.storage.attached(name)
        if said is None:
            world.cluster.remove_attachment(name)
        else:
            world.cluster.put_attachment(name, *said)
    for uid, read in world.storage.pods.items() if told else ():
        task = world.cluster.tasks.get(uid)
        if task is not None and task.job is not None and task.status is TaskStatus.PENDING:
            world.cluster.put_task(read(), task.job)


def _outcome(world: World, step: Mapping[str, Any], binds: Mapping[str, str]) -> dict[str, Any]:
    outcome: dict[str, Any] = {"expect": dict(binds)}
    if world.evicted or "evicted" in step:
        outcome["evicted"] = dict(world.evicted)
    if world.promised or "promised" in step:
        outcome["promised"] = dict(world.promised)
    waiting = {job.spec.name: why for job in world.cluster.jobs.values() if (why := world.why(job.uid))}
    if waiting or "why" in step:
        outcome["why"] = waiting
    if "granted" in step:
        given = ((task.spec.name, grants) for task in world.cluster.placed() for grants in task.granted.values())
        outcome["granted"] = {}
        for name, grants in given:
            outcome["granted"].setdefault(name, []).extend(grant.device.name for grant in grants)
    if "phases" in step:
        outcome["phases"] = {name: str(world.cluster.jobs[name].phase) for name in step["phases"] or {}}
    return outcome


def _plugins(document: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Tiers of plug-ins: names, or one name with arguments as a mapping."""
    if "plugins" not in document:
        return DEFAULT_PLUGINS
    tiers = document["plugins"]
    if tiers and not isinstance(tiers[0], list):
        tiers = [tiers]
    return [[p if isinstance(p, str) else next(iter(p.items())) for p in tier] for tier in tiers]


def _queue(name: str, fields: Mapping[str, Any]) -> Queue:
    known = {
        "weight": "weight",
        "priority": "priority",
        "parent": "parent",
        "open": "is_open",
        "reclaimable": "is_reclaimable",
    }
    quotas: dict[str, Any] = {
        key: amounts(**value) for key, value in fields.items() if key in {"capability", "guarantee", "deserved"}
    }
    path = tuple((part["name"], part["weight"]) for part in fields.get("path", []))
    plain = {known[key]: value for key, value in fields.items() if key in known}
    plain["is_strict"] = fields.get("dequeueStrategy") == "fifo"
    unknown = sorted(
        fields.keys() - known.keys() - quotas.keys() - {"dequeueStrategy", "path", "nodeGroups", "groupLimits"}
    )
    if unknown:
        raise ScenarioError(f"queue {name}: there is no field {unknown[0]!r}")
    groups = {key: tuple(named) for key, named in fields["nodeGroups"].items()} if "nodeGroups" in fields else None
    limits = fields.get("groupLimits", {})
    return Queue(
        name=name, path=path, node_groups=NodeGroups(**groups) if groups is not None else None,
        group_limits={group: amounts(**most) for group, most in limits.items()} if limits is not None else None,
        **plain, **quotas,
    )  # fmt: skip


def _hyper_node(name: str, fields: Mapping[str, Any]) -> DomainSpec:
    """`{tier: 1, nodes: [n1, n2]}` or `{tier: 2, hypernodes: [s0, s1]}`; `members` and `tierName` as in Volcano."""
    exactly = [("Node", member) for member in fields.get("nodes", [])]
    exactly += [("HyperNode", member) for member in fields.get("hypernodes", [])]
    members = [{"type": kind, "selector": {"exactMatch": {"name": member}}} for kind, member in exactly]
    members += fields.get("members", [])
    spec = {"tier": fields["tier"], "tierName": fields.get("tierName", ""), "members": members}
    metadata = {"name": name, "labels": fields.get("labels", {})}
    return domain_spec(msgspec.convert({"metadata": metadata, "spec": spec}, HyperNode))


def _wish(fields: Mapping[str, Any]) -> Closeness | None:
    wish = fields.get("networkTopology")
    return closeness(msgspec.convert(wish, NetworkTopology)) if wish is not None else None


def _node(name: str, fields: Mapping[str, Any]) -> NodeSpec:
    """Amounts by name; `labels`, `taints`, `unschedulable`, `ready`, `images` as in Kubernetes."""
    amounts_only = {key: value for key, value in fields.items() if key not in _NODE_FIELDS}
    spec = {"taints": fields.get("taints", []), "unschedulable": fields.get("unschedulable", False)}
    images = [{"names": [image], "sizeBytes": size} for image, size in (fields.get("images") or {}).items()]
    status = {
        "images": images,
        "conditions": [{"type": "Ready", "status": "True" if fields.get("ready", True) else "False"}],
    }
    labels = {"kubernetes.io/hostname": name, **(fields.get("labels") or {})}
    node = msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}, Node)
    facts = node_spec(node)
    return replace(facts, allocatable={"pods": 110, **amounts(**amounts_only)})


_NODE_FIELDS = {"labels", "taints", "unschedulable", "ready", "images"}


def _job(world: World, name: str, fields: Mapping[str, Any]) -> None:
    _refuse_unknown("job", fields)
    known = world.cluster.jobs.get(name)
    tasks = list(_tasks(name, fields.get("tasks", []), world.storage))
    minimum = fields.get("minAvailable", len(tasks))
    spec = JobSpec(
        uid=name, name=name, namespace="default", queue=fields.get("queue", "default"),
        patience_s=fields.get("patience"), estimate_s=fields.get("estimate"), quota_asked=quota_amounts(fields.get("quotaAsked", {})), priority=fields.get("priority", 0), created=float(len(world.cluster.jobs)) if known is None else known.spec.created,
        min_available=minimum, role_minimums=fields.get("minTaskMember", {}),
        min_resources=amounts(**fields["minResources"]) if "minResources" in fields else None,
        phase=JobPhase(fields.get("phase", "Inqueue")),
        subgroups=tuple(_subgroup(policy) for policy in fields.get("subGroupPolicy", [])),
        closeness=_wish(fields), traits=group_traits(fields.get("annotations", {})),
        lineage=fields.get("lineage", ""), is_preemptable=_truth(fields.get("annotations", {}).get(PREEMPTABLE_KEY)),
    )  # fmt: skip
    job = world.cluster.put_job(spec)
    on = fields.get("at", [])
    for number, task in enumerate(tasks):
        node = on if isinstance(on, str) else on[number] if number < len(on) else ""
        world.cluster.put_task(structs.replace(task, node=node, status=TaskStatus.RUNNING) if node else task, job)


def _subgroup(policy: Mapping[str, Any]) -> SubGroupPolicy:
    return SubGroupPolicy(
        name=policy["name"], selector=PodSelector(namespaces=None), match_label_keys=tuple(policy["matchLabelKeys"]),
        size=policy.get("subGroupSize", 1), min_groups=policy.get("minSubGroups", 0), closeness=_wish(policy),
    )  # fmt: skip


def _tasks(job: str, tasks: Any, around: ScenarioStorage) -> Iterator[TaskSpec]:
    """`3 x {cpu: 1}`, or a list of such, or a mapping of roles to such."""
    groups = (
        tasks.items()
        if isinstance(tasks, dict)
        else [("", entry) for entry in ([tasks] if isinstance(tasks, str) else tasks)]
    )
    number = 0
    for role, entry in groups:
        number = 0 if role else number
        count, fields = _parsed(job, entry)
        for _ in range(count):
            name = f"{job}-{role}-{number}" if role else f"{job}-{number}"
            yield _task(name, role, fields, around)
            number += 1


def _parsed(job: str, entry: Any) -> tuple[int, Mapping[str, Any]]:
    match = _TASKS.fullmatch(str(entry).strip()) if isinstance(entry, str) else None
    if match is not None:
        return int(match[1]), yaml.safe_load(match[2])
    if isinstance(entry, dict):
        return 1, entry
    raise ScenarioError(f'job {job}: tasks are written like "3 x {{cpu: 1}}", not {entry!r}')


_POD_FIELDS = {
    "nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "schedulingGates", "priority", "containers",
    "initContainers", "overhead", "hostNetwork", "preemptionPolicy", "resourceClaims",
}  # fmt: skip


def _task(name: str, role: str, fields: Mapping[str, Any], around: ScenarioStorage) -> TaskSpec:
    """Amounts by name; `labels`, `namespace`, `ports` (host ports) and the fields of a pod's spec as in Kubernetes; `claims`
    (`namespace/name`) are those of access mode ReadWriteOncePod.
    """  # fmt: skip
    around.pods[name] = partial(_task_now, name, role, fields, around)
    return _task_now(name, role, fields, around)


def _task_now(name: str, role: str, fields: Mapping[str, Any], around: ScenarioStorage) -> TaskSpec:
    spec: dict[str, Any] = {key: value for key, value in fields.items() if key in _POD_FIELDS}
    not_amounts = _POD_FIELDS | _TASK_FIELDS | _EVICTION_FIELDS.keys()
    asked = amounts(**{k: v for k, v in fields.items() if k not in not_amounts})
    requests = {key: f"{value}m" if key == "cpu" else str(value) for key, value in asked.items()}
    container = {
        "name": "main", "image": fields.get("image", ""), "resources": {"requests": requests},
        "ports": [{"hostPort": port, "containerPort": port} for port in fields.get("ports", [])],
    }  # fmt: skip
    spec.setdefault("containers", [container])
    entries = [
        {key: text.replace("{n}", name.rpartition("-")[2]) for key, text in entry.items()}
        for entry in spec.get("resourceClaims", ())
    ]
    spec["resourceClaims"], status = entries, {"resourceClaimStatuses": around.own_claims(name, entries)}
    spec["volumes"] = pod_volumes({"volumes": fields.get("volumes"), **_claim_of(name, fields)})
    metadata = {
        "name": name, "namespace": fields.get("namespace", "default"), "uid": name, "labels": fields.get("labels") or {},
        "annotations": {**({"volcano.sh/task-spec": role} if role else {}), **(fields.get("annotations") or {})},
    }  # fmt: skip
    known = task_spec(msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod), around)
    constraints = known.constraints
    if "volumesOn" in fields or "claims" in fields:
        constraints = replace(
            constraints, volume_terms=_volumes(fields), exclusive_claims=tuple(fields.get("claims", ()))
        )
    told = {field: fields[key] for key, field in _EVICTION_FIELDS.items() if key in fields}
    return structs.replace(known, constraints=constraints, **told)


def _claim_of(name: str, fields: Mapping[str, Any]) -> dict[str, str]:
    """`claim: data`, or for pods with one each `claim: data-{n}`, with the number at the end of the pod's name."""
    claim = fields.get("claim")
    return {"claim": str(claim).replace("{n}", name.rpartition("-")[2])} if claim is not None else {}


def _volumes(fields: Mapping[str, Any]) -> tuple[tuple[NodeTerm, ...], ...]:
    """`volumesOn: {zone: a}`: each volume is reached from nodes with that label alone."""
    reached = (fields.get("volumesOn") or {}).items()
    return tuple((NodeTerm(labels=(Requirement(key, Operator.IN, (value,)),)),) for key, value in reached)


_TASK_FIELDS = {"claim", "volumes", "labels", "ports", "image", "annotations", "namespace", "volumesOn", "claims"}
_EVICTION_FIELDS = {
    "startedAt": "started", "checkpointedAt": "checkpointed", "scheduledAt": "scheduled_at", "cooldown": "cooldown_s",
    "minRun": "min_run_s", "grace": "grace_s", "nominated": "nominated",
}  # fmt: skip


def _run(world: World, name: str, fields: Mapping[str, Any]) -> None:
    """A pod that runs already: `{node: n1, cpu: 1}`, in the default queue unless it says `queue`."""
    asks = {key: value for key, value in fields.items() if key not in {"node", "queue", "started", "estimate"}}
    queue = fields.get("queue", "default")
    spec = JobSpec(
        uid=f"running-{name}",
        name=name,
        namespace="default",
        queue=queue,
        has_group=False,
        estimate_s=fields.get("estimate"),
    )
    job: Job = world.cluster.put_job(spec)
    task = _task(name, "", asks, world.storage)
    world.cluster.put_task(
        structs.replace(task, node=fields["node"], status=TaskStatus.RUNNING, started=fields.get("started")), job
    )


def _answer(world: World, answers: Mapping[str, Any]) -> None:
    """What the extender's service says, by verb; to `predicate` by node, where nothing is said a node is right."""

    def caller(address: Address, verb: str, bodies: Sequence[bytes]) -> Answers:
        told, questions = answers.get(verb), [json.loads(body) for body in bodies]
        if told is None:
            return [SilenceError("the extender is silent") for _ in questions]
        if verb == "predicate":
            told_each = [told.get(question["node"]["Name"], {}) for question in questions]
        else:
            told_each = [told for _ in questions]
        return [json.dumps(answer).encode() for answer in told_each]

    for plugin in world.policy.plugins:
        if isinstance(plugin, Extender):
            plugin.service.connect(caller)


def _seconds(time: float | str) -> float:
    """A time as seconds; `14:30` is that hour of the first day."""
    hours, _, minutes = str(time).partition(":")
    return int(hours) * 3600.0 + int(minutes) * 60.0 if minutes else float(time)


def _truth(text: object) -> bool | None:
    return str(text).lower() == "true" if text is not None else None


def _remove(world: World, name: str) -> None:
    cluster = world.cluster
    if name in cluster.nodes.row_of:
        cluster.remove_node(name)
    elif name in cluster.topology.specs:
        cluster.remove_domain(name)
    elif name in cluster.jobs:
        cluster.remove_job(name)
    elif name in cluster.tasks:
        cluster.remove_task(name)
    elif name in cluster.queues:
        cluster.remove_queue(name)
    else:
        raise ScenarioError(f"there is no node, job, task or queue {name} to remove")


def _refuse_unknown(what: str, fields: Mapping[str, Any]) -> None:
    unknown = sorted(fields.keys() - _KEYS[what])
    if unknown:
        raise ScenarioError(f"a {what} has no field {unknown[0]!r}; it may have {', '.join(sorted(_KEYS[what]))}")
