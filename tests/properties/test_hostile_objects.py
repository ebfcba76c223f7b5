"""One field of one object holds the worst that its type allows: no reconciler fails over it, and the scheduler serves others.

The objects come past the API server's checks, as from a server that has none. What is found here is refused or told in
the tests of the kind that it was found in.
"""

import asyncio
import functools
import importlib
import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hekla.api.meta import KINDS, Document, Resource
from hekla.api.volcano.scheduling import PodGroup, Queue
from hekla.api.volcano.topology import HyperNode
from hekla.controlplane.controllers import CONTROLLERS
from hekla.dialects.feed import ClusterFeed
from hekla.kube.cache import Cache
from hekla.kube.commands import Create
from hekla.kube.reconcile import Reconciler
from hekla.kube.runtime import CacheWorld
from hekla.lib import quantity
from hekla.placement.cluster import Cluster
from hekla.sandbox.reconcilers import RECONCILERS as OF_SANDBOXES
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.configuration import DEFAULT_TEXT
from hekla.serving.reconcilers import RECONCILERS as OF_SERVING
from hekla.testing.cluster import check
from hekla.testing.hostile_objects import ANY, fields_of, wild_values, with_field
from hekla.workloads.reconcilers import reconcilers as of_workloads
from scheduler.schedulerkit import add_group, add_pod, is_bound, until, world

NOW = datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC)
EVERYBODY = [*CONTROLLERS, *of_workloads(every_pod=True), *OF_SERVING, *OF_SANDBOXES]
MOST_COMMANDS = 20_000
"""What a look may yield: the objects of one look are bounded, whatever number somebody wrote."""

CONTAINER = {"name": "c", "image": "any", "resources": {"requests": {"cpu": "1m"}}}
POD = {"containers": [CONTAINER]}
TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": POD}
OWN = {"selector": {"matchLabels": {"app": "a"}}, "template": TEMPLATE}
TASKS = {"minAvailable": 1, "tasks": [{"name": "t", "replicas": 1, "template": {"spec": POD}}]}
ROLE = {
    "name": "r",
    "replicas": 1,
    "entryTemplate": {"spec": POD},
    "workerReplicas": 1,
    "workerTemplate": {"spec": POD},
}
HEALTHY: dict[str, Document] = {
    "pods": {"spec": POD, "status": {"phase": "Pending"}},
    "nodes": {"status": {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}}},
    "deployments.apps": {"spec": {"replicas": 1, **OWN}},
    "replicasets.apps": {"spec": {"replicas": 1, **OWN}},
    "statefulsets.apps": {"spec": {"replicas": 1, "serviceName": "s", **OWN}},
    "daemonsets.apps": {"spec": OWN},
    "jobs.batch": {"spec": {"template": {"spec": POD}}},
    "cronjobs.batch": {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": POD}}}}},
    "services": {"spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]}},
    "poddisruptionbudgets.policy": {"spec": {"minAvailable": 1, "selector": OWN["selector"]}},
    "resourcequotas": {"spec": {"hard": {"requests.cpu": "5"}}},
    "jobs.batch.volcano.sh": {"spec": TASKS},
    "cronjobs.batch.volcano.sh": {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": TASKS}}},
    "jobtemplates.flow.volcano.sh": {"spec": TASKS},
    "jobflows.flow.volcano.sh": {"spec": {"flows": [{"name": "it"}, {"name": "b", "dependsOn": {"targets": ["it"]}}]}},
    "podgroups.scheduling.volcano.sh": {"spec": {"minMember": 1}},
    "queues.scheduling.volcano.sh": {"spec": {"weight": 1}},
    "hypernodes.topology.volcano.sh": {"spec": {"tier": 1}},
    "modelservings.workload.serving.volcano.sh": {"spec": {"replicas": 1, "template": {"roles": [ROLE]}}},
    "modelservers.networking.serving.volcano.sh": {"spec": {"workloadSelector": OWN["selector"]}},
    "modelroutes.networking.serving.volcano.sh": {
        "spec": {"modelName": "m", "rules": [{"targetModels": [{"modelServerName": "it"}]}]}
    },
    "leaderworkersets.leaderworkerset.x-k8s.io": {
        "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": POD}}}
    },
    "sandboxes.agents.x-k8s.io": {"spec": {"podTemplate": {"spec": POD}}},
    "sandboxtemplates.extensions.agents.x-k8s.io": {"spec": {"podTemplate": {"spec": POD}}},
    "sandboxwarmpools.extensions.agents.x-k8s.io": {"spec": {"replicas": 1, "sandboxTemplateRef": {"name": "it"}}},
}
"""What makes some kinds worth a look, by resource; the others are made without a word."""


def document_of(kind: type[Resource], name: str = "it") -> Document:
    info = kind.kind_info
    metadata = {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "a"}}
    if info.is_namespaced:
        metadata["namespace"] = "default"
    return {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, **HEALTHY.get(info.resource, {})}


def typed(kind: type[Resource], document: Document) -> Resource | None:
    """The object; None if its kind does not decode it, which is told in the log where it is read."""
    try:
        return msgspec.json.decode(msgspec.json.encode(document), type=kind)
    except msgspec.ValidationError:
        return None


def keys_that_are_read() -> list[str]:
    """Labels and annotations that stand as constants where the dialects' words are."""
    modules = [
        "workloads.keys", "api.kthena.labels", "api.agents.names", "dialects.traits", "dialects.kubernetes",
        "dialects.volcano", "dialects.eviction_terms", "scheduler.unreadable",
    ]  # fmt: skip
    said = itertools.chain.from_iterable(vars(importlib.import_module(f"hekla.{one}")).values() for one in modules)
    return sorted({one for one in said if isinstance(one, str) and re.fullmatch(r"[a-z0-9.-]+/[A-Za-z0-9._-]+", one)})


FIXED = {
    ("apiVersion",),
    ("kind",),
    *(("metadata", name) for name in ("name", "namespace", "uid", "creationTimestamp")),
}
"""Of these the last two are the server's own."""
ENUMERATED = {("status", "state", "phase"), ("status", "conditions", 0, "status")}
"""What the CRDs list, so that no server lets anything else in."""
SAID = [(("metadata", where, key), str) for where in ("annotations", "labels") for key in keys_that_are_read()]
FIELDS = {
    kind: [one for one in fields_of(kind) if one[0] not in FIXED | ENUMERATED] + SAID for kind in set(KINDS.values())
}


AMOUNTS = {
    "requests",
    "limits",
    "overhead",
    "hard",
    "used",
    "capacity",
    "allocatable",
    "allocatedResources",
    "minResources",
}


def is_refused_everywhere(path: tuple[Any, ...], value: Any) -> bool:
    """Whether any server refuses it: a quantity is one in Kubernetes' own kinds, and in what CRDs take over from them."""
    is_amount = len(path) > 1 and path[-1] == ANY and path[-2] in AMOUNTS
    return is_amount and not quantity.is_valid(value)


def hostile(kinds: list[type[Resource]]) -> st.SearchStrategy[tuple[type[Resource], tuple[Any, ...], Any]]:
    """(kind, path, value) of one field of one object."""
    ordered = sorted(kinds, key=lambda kind: kind.kind_info.resource)
    fields = st.sampled_from(ordered).flatmap(lambda kind: st.tuples(st.just(kind), st.sampled_from(FIELDS[kind])))
    return fields.flatmap(
        lambda one: st.tuples(st.just(one[0]), st.just(one[1][0]), st.sampled_from(wild_values(one[1][1])))
    ).filter(lambda one: not is_refused_everywhere(*one[1:]))


# ---- reconcilers


@functools.cache
def healthy(kind: type[Resource]) -> Resource:
    return msgspec.convert(document_of(kind), kind)


def kinds_of(one: Reconciler) -> set[type[Resource]]:
    return {one.kind, *one.owns, *one.reads, *one.wakes, *one.finds}


def world_of(one: Reconciler, wild: Resource) -> CacheWorld:
    """Of each kind a healthy object, and one that the reconciled object owns; the wild one in its place."""
    caches: dict[type[Resource], Cache[Any]] = {}
    own = [{"kind": one.kind.kind_info.kind, "apiVersion": one.kind.kind_info.api_version, "name": "it", "uid": "it", "controller": True}]  # fmt: skip
    for kind in kinds_of(one):
        caches[kind] = Cache()
        caches[kind].put(wild if kind is type(wild) else healthy(kind))
        if kind in one.owns:
            kid = typed(kind, with_field(document_of(kind, "kid"), ("metadata", "ownerReferences"), own))
            caches[kind].put(kid)
    return CacheWorld(caches, one.name)


def look(one: Reconciler, wild: Resource) -> Iterator[int]:
    """Ask everything that a runtime asks; how many commands each decision yields."""
    around = world_of(one, wild)
    kind = type(wild)
    if kind is one.kind and one.concerns is not None:
        one.concerns(wild, around)
    for asked in (one.wakes.get(kind), one.heeds.get(kind)):
        if asked is not None:
            list(asked(wild) or ())
    if kind in one.finds:
        list(one.finds[kind](wild, around))
    for obj in around.list(one.kind):
        commands = list(itertools.islice(one.decide(obj, around, NOW), MOST_COMMANDS))
        yield len(commands)
        refused = next((command for command in commands if isinstance(command, Create)), None)
        if one.when_refused is not None and refused is not None:
            list(one.when_refused(obj, refused, "no", around, NOW))


RECONCILED = [kind for kind in FIELDS if any(kind in kinds_of(one) for one in EVERYBODY)]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(hostile(RECONCILED))
def test_no_reconciler_fails_over_a_field_whatever_it_holds(wild: tuple[type[Resource], tuple[Any, ...], Any]) -> None:
    kind, path, value = wild
    obj = typed(kind, with_field(document_of(kind), path, value))
    if obj is None:
        return
    for one in EVERYBODY:
        if kind in kinds_of(one):
            assert all(number < MOST_COMMANDS for number in look(one, obj)), one.name


# ---- the scheduler

FOLLOWED = [kind for kind in ClusterFeed(Cluster(), scheduler_names=("volcano",)).followed if kind in FIELDS]
ALL_AT_ONCE = DEFAULT_TEXT.replace("enqueue, allocate, backfill", "enqueue, allocate, backfill, preempt, reclaim")


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(hostile(FOLLOWED), min_size=5, max_size=25))
def test_the_scheduler_places_a_gang_beside_objects_of_any_content(
    wild: list[tuple[type[Resource], tuple[Any, ...], Any]],
) -> None:
    asyncio.run(starts_beside(wild))


async def starts_beside(wild: list[tuple[type[Resource], tuple[Any, ...], Any]]) -> None:
    failed: list[Exception] = []
    cycle = BatchScheduler.cycle

    def told_of(self: BatchScheduler) -> Any:
        try:
            return cycle(self)
        except Exception as error:
            failed.append(error)
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchScheduler, "cycle", told_of)
        async with world(nodes=2, configuration=ALL_AT_ONCE, kinds=(PodGroup, Queue, HyperNode)) as (client, scheduler):
            for number, (kind, path, value) in enumerate(wild):
                document = document_of(kind, f"wild-{number}")
                if kind.kind_info.resource == "pods":
                    document = with_field(document, ("spec", "schedulerName"), "volcano")
                if (obj := typed(kind, with_field(document, path, value))) is not None:
                    scheduler.feed.followed[kind](None, obj)
            await add_group(client, "fine", 1)
            await add_pod(client, "fine-0", gpus=1, group="fine")
            await until(lambda: is_bound(client, "fine-0"))
            check(scheduler.cluster)
    assert not failed
