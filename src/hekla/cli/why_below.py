"""`hekla why` of objects that are not scheduled themselves: which of the gangs and pods below them wait, and why.

A ModelServing, a JobFlow or a Deployment waits where a PodGroup below it does. Who owns what is followed down from the object
(`below`, pure); each gang that waits is then explained by the scheduler as if it had been asked for. Of pods that have their node and
do not serve `why_broken.py` says why. `why_route.py` answers for routes, which own nothing.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hekla.cli.why_broken import broken, failures, lines_of, told_lately, unready, when, with_last_words

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection

MOST_EXPLAINED = 5
"""Gangs that are explained; of further ones it is said that they are there."""

GROUP_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
FORBIDDEN = 403
POD_REFUSED = "FailedCreate"
"""Reason of the events about pods that the API server refuses: a quota, or a webhook."""
MOST_REFUSALS = 2
_FINE = frozenset({"AllGroupsReady", "UpdateOver"})
"""Reasons for which a ModelServing's `Progressing` and `UpdateInProgress` are false because all is well."""
REFUSED = "GroupsRefused"
"""Reason for which a ModelServing progresses and does not: the API server refuses what it needs."""
_SETTLED = frozenset({"Running", "Completed"})


@dataclass(frozen=True)
class Below:
    """What an object comes to."""

    gangs: Sequence["Document"]
    """PodGroups."""

    lone: Sequence["Document"]
    """Pods that are of none of them."""

    pods: Sequence["Document"]
    """All pods, those of the gangs too."""

    jobs: Sequence["Document"]
    """Whatever else is in between: jobs of a flow, a ModelServing of a booster."""


def below(uid: str, documents: Iterable["Document"]) -> Below:
    """What of all documents is owned by an object, or by what it owns."""
    by_owner: dict[str, list[Document]] = {}
    for one in documents:
        for owner in one["metadata"].get("ownerReferences") or ():
            by_owner.setdefault(owner.get("uid", ""), []).append(one)
    found: dict[str, Document] = {}
    to_do = [uid]
    while to_do:
        for one in by_owner.get(to_do.pop(), ()):
            own = one["metadata"]["uid"]
            if own not in found:
                found[own] = one
                to_do.append(own)
    ordered = sorted(found.values(), key=lambda one: (str(one["kind"]), str(one["metadata"]["name"])))
    gangs = [one for one in ordered if one["kind"] == "PodGroup"]
    pods = [one for one in ordered if one["kind"] == "Pod"]
    return Below(
        gangs=gangs, lone=[pod for pod in pods if not _is_of_a_gang(pod)], pods=pods,
        jobs=[one for one in ordered if one["kind"] not in {"PodGroup", "Pod", "ReplicaSet"}],
    )  # fmt: skip


def _is_of_a_gang(pod: "Document") -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    return any(annotations.get(name) for name in GROUP_ANNOTATIONS)


def to_be_asked(found: Below) -> list[str]:
    """The names of the explanations that are worth asking for: gangs and lone pods that may wait."""
    gangs = [f"podgroup.{one['metadata']['name']}" for one in found.gangs if phase_of(one) not in _SETTLED]
    pods = [f"pod.{one['metadata']['name']}" for one in found.lone if is_unplaced(one)]
    return [*gangs, *pods]


def phase_of(group: "Document") -> str:
    """Where a PodGroup is in its life."""
    return str((group.get("status") or {}).get("phase") or "Pending")


def is_unplaced(pod: "Document") -> bool:
    """Whether a pod waits for a node."""
    is_over = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
    return not is_over and not (pod.get("spec") or {}).get("nodeName")


def complaints(document: "Document") -> Iterator[str]:
    """What an object's own conditions say against it."""
    told = (document.get("status") or {}).get("conditions")
    for one in told if isinstance(told, list) else ():  # a JobFlow's are a mapping, and say how its jobs fare
        if one.get("reason") == REFUSED and one.get("status") == "True":
            yield f"{one['reason']}: {one.get('message')}"
        elif one.get("status") == "False" and one.get("message") and one.get("reason") not in _FINE:
            yield f"{one.get('type')} is false ({one.get('reason')}): {one['message']}"


def summary(
    name: str,
    root: "Document",
    found: Below,
    explained: Sequence["Document"],
    left: int,
    failing: Sequence["Document"] = (),
    failed: Sequence["Document"] = (),
    refused: Sequence["Document"] = (),
    asleep: str = "",
) -> "Document":
    """The whole answer, as `-o json` prints it; with the containers that do not serve, what failed and was made anew, what was refused."""
    waits = [one for one in explained if one["verdict"] != "Placed"]
    phases: dict[str, int] = {}
    for group in found.gangs:
        phases[phase_of(group)] = phases.get(phase_of(group), 0) + 1
    return {
        "kind": "Explanations",
        "metadata": {"name": name, "namespace": root["metadata"].get("namespace", "")},
        "message": _message(name, found, waits, left, failing, failed, asleep),
        "gangs": phases,
        "pods": len(found.lone),
        "complaints": [
            f"{one['kind'].lower()}/{one['metadata']['name']}: {said}" if one is not root else said
            for one in (root, *found.jobs)
            for said in complaints(one)
        ],
        "broken": list(failing),
        "failures": list(failed),
        "refusals": list(refused),
        "items": waits,
        "notShown": left,
    }


def _message(
    name: str,
    found: Below,
    waits: Sequence["Document"],
    left: int,
    failing: Sequence["Document"],
    failed: Sequence["Document"],
    asleep: str,
) -> str:
    told = name.replace(".", "/", 1)
    if not found.gangs and not found.lone and asleep:
        return f"{told} sleeps: {asleep}"
    if not found.gangs and not found.lone:
        return f"{told} has no pods and no PodGroup yet; what stands below, and its events, say why if none come"
    total = len(found.gangs) + len(found.lone)
    many = len(waits) + left
    fails = _failing(found, failing, failed)
    if many:
        waiting = f"{told} waits for {many} of its {_counted(total)}" if total > 1 else f"{told} waits for its gang"
        return f"{waiting}, and fails: {fails}" if fails else waiting
    if fails:
        return f"{told} has its nodes and fails: {fails}"
    if starting := unready(found.pods):
        return f"{told} does not wait: it starts, {_of(len(starting), found)} not ready yet"
    return (
        f"{told} does not wait: all of its {_counted(total)} have their nodes" if total > 1 else f"{told} does not wait"
    )


def _failing(found: Below, failing: Sequence["Document"], failed: Sequence["Document"]) -> str:
    """What is wrong with pods that have their nodes; empty: nothing."""
    names = {one["pod"] for one in failing}
    if names:
        return f"{_of(len(names), found)} {'does' if len(names) == 1 else 'do'} not serve"
    times = sum(one["times"] for one in failed)
    return f"its pods ended and were made anew, {times} times lately" if times > 1 else ""


def _of(some: int, found: Below) -> str:
    return f"{some} of its {len(found.pods)} pods" if len(found.pods) > 1 else "its pod"


def _counted(total: int) -> str:
    return f"{total} gangs and pods"


def text(found: Mapping[str, Any]) -> str:
    """As people read it."""
    from hekla.cli.why_text import why_text

    lines = [f"{found['message']} (namespace {found['metadata']['namespace']})"]
    if found["gangs"]:
        lines.append("  gangs   " + ", ".join(f"{count} {phase}" for phase, count in sorted(found["gangs"].items())))
    lines += [f"  {said}" for said in found["complaints"]]
    lines += [f"  refused {one['message']} ({when(one)})" for one in found["refusals"][:MOST_REFUSALS]]
    lines += lines_of(found)
    for one in found["items"]:
        lines += ["", why_text(one)]
    if found["notShown"]:
        lines += ["", f"{found['notShown']} more that may wait are not explained; ask about them by name"]
    return "\n".join(lines)


# The asking


async def why_below(connection: "Connection", name: str, kind: "Kind", namespace: str) -> "Document":
    """The answer about an object called `word.name`; raises NotFoundError."""
    from datetime import UTC, datetime

    from hekla.api.apps import ReplicaSet, StatefulSet
    from hekla.api.batch import Job as BatchJob
    from hekla.api.core import Event
    from hekla.api.kthena import AutoscalingPolicy, ModelServing
    from hekla.api.pods import Pod
    from hekla.api.volcano import Job, PodGroup
    from hekla.serving.serving_troubles import POD_FAILED

    root = {**await connection.client.get_document(kind, name.partition(".")[2], namespace), "kind": kind.kind}
    between = (ModelServing, Job, ReplicaSet, StatefulSet, BatchJob)
    documents = await listed(connection, [one.kind_info for one in (*between, PodGroup, Pod)], namespace)
    found = below(root["metadata"]["uid"], documents)
    asked = to_be_asked(found)
    explained = [one for one in await explanations(connection, namespace, asked[:MOST_EXPLAINED]) if one is not None]
    failing = await with_last_words(connection, namespace, broken(found.pods))
    owners, now = [one["metadata"]["uid"] for one in (root, *found.jobs)], datetime.now(UTC)
    events = await remarks(connection, Event.kind_info, namespace, field_selector=f"reason={POD_FAILED}")
    failed = failures(owners, events, now)
    events = await remarks(connection, Event.kind_info, namespace, field_selector=f"reason={POD_REFUSED}")
    refused = told_lately(POD_REFUSED, owners, events, now)
    policies = await remarks(connection, AutoscalingPolicy.kind_info, namespace)
    asleep = next(filter(None, (sleep_of(one, policies) for one in (root, *found.jobs))), "")
    return summary(name, root, found, explained, len(asked[MOST_EXPLAINED:]), failing, failed, refused, asleep)


async def refusals(connection: "Connection", job: str, namespace: str) -> list["Document"]:
    """Why the API server lately refused the pods of a Volcano job, by its events; none for who may not see these."""
    from datetime import UTC, datetime

    from hekla.api.core import Event
    from hekla.api.volcano import Job
    from hekla.kube.errors import KubeError

    try:
        found = await connection.client.get_document(Job.kind_info, job, namespace)
    except KubeError:
        return []
    about = f"reason={POD_REFUSED},involvedObject.name={job}"
    events = await remarks(connection, Event.kind_info, namespace, field_selector=about)
    return told_lately(POD_REFUSED, [found["metadata"]["uid"]], events, datetime.now(UTC))


def sleep_of(serving: "Document", policies: Iterable["Document"]) -> str:
    """Why a ModelServing has no replicas, and what wakes it; empty for what is not asleep. Pure."""
    import msgspec

    from hekla.api.kthena import AutoscalingPolicy
    from hekla.serving.autoscaler.units import readable_units_of

    spec = serving.get("spec") or {}
    roles = (spec.get("template") or {}).get("roles") or [{}]
    is_asleep = spec.get("replicas") == 0 or all(role.get("replicas") == 0 for role in roles)
    if serving["kind"] != "ModelServing" or not is_asleep:
        return ""
    name = serving["metadata"]["name"]
    for one in policies:
        units = readable_units_of(msgspec.convert(one, AutoscalingPolicy))
        if any(unit.serving == name and unit.least == 0 for unit in units):
            policy = one["metadata"]["name"]
            return f"ModelServing {name} has no replicas, and AutoscalingPolicy {policy} wakes it when a request comes"
    return f"ModelServing {name} has no replicas (`replicas` is 0), and no AutoscalingPolicy wakes it"


async def listed(
    connection: "Connection", kinds: Sequence["Kind"], namespace: str, *, field_selector: str = ""
) -> list["Document"]:
    """The objects of a namespace; none of kinds that the server lacks, or that the asker may not see."""
    from hekla.kube.errors import ApiError, NotFoundError

    async def of(kind: "Kind") -> list["Document"]:
        try:
            page = await connection.client.list_documents(kind, namespace, field_selector=field_selector)
        except NotFoundError:
            return []
        except ApiError as error:
            if error.code != FORBIDDEN:
                raise
            return []
        return [{**one, "kind": kind.kind} for one in page.items]

    pages = await asyncio.gather(*map(of, kinds))
    return [one for page in pages for one in page]


async def remarks(
    connection: "Connection", kind: "Kind", namespace: str, *, field_selector: str = ""
) -> list["Document"]:
    """Objects that only add to an answer: it stands without them where the server fails, and that is said."""
    from hekla.kube.errors import KubeError

    try:
        return await listed(connection, [kind], namespace, field_selector=field_selector)
    except KubeError as error:
        import structlog

        what = f"what {kind.plural} say is missing here: {error}"
        structlog.get_logger().warning("answer without remarks", warning=what)
        return []


async def explanations(connection: "Connection", namespace: str, names: Sequence[str]) -> list["Document | None"]:
    """The scheduler's words about gangs and pods; None for what is gone, or another scheduler's."""
    from hekla.cli.why_asking import explanation
    from hekla.kube.errors import NotFoundError

    async def of(name: str) -> "Document | None":
        try:
            return await explanation(connection, namespace, name)
        except NotFoundError:
            return None

    return list(await asyncio.gather(*map(of, names)))
