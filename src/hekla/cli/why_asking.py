"""What `hekla why` can be asked about, by the words that kubectl takes, and asking the scheduler for it.

TYPE, TYPE.GROUP or TYPE.VERSION.GROUP; TYPE is a kind's singular, plural or short name
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection

SCHEDULED = {
    "pod": "pod", "pods": "pod", "po": "pod", "podgroup": "podgroup", "podgroups": "podgroup", "pg": "podgroup",
    "vcjob": "vcjob", "vcjobs": "vcjob", "vj": "vcjob", "job": "vcjob", "jobs": "vcjob",
    "queue": "queue", "queues": "queue", "q": "queue",
}  # fmt: skip
"""The usual words, so that a question of one of these does not wait until all kinds are read."""

_OF_ANOTHER = re.compile(r'asks? for the scheduler "([^"]+)"')

NOT_SERVED = re.compile("could not find the requested resource|404 page not found")
"""What a server says of a group, a version or a resource that it does not know."""

BATCH_JOB, BATCH_CRON_JOB = "batchjob", "batchcronjob"


def word_for(kind: str) -> str:
    """The first word of an explanation's name; empty: it cannot be explained."""
    kind = kind.lower()
    if kind in SCHEDULED:
        return SCHEDULED[kind]
    name, _, place = kind.partition(".")
    return next((word for word, info in _kinds() if name in _names(word, info) and place in _places(info)), "")


def owners() -> Mapping[str, "Kind"]:
    """The kinds that own gangs, by the first word of their explanations' names."""
    from hekla.api.apps import Deployment, ReplicaSet, StatefulSet
    from hekla.api.batch import CronJob as BatchCronJob
    from hekla.api.batch import Job as BatchJob
    from hekla.api.foreign import LeaderWorkerSet
    from hekla.api.kthena import ModelBooster, ModelServing
    from hekla.api.volcano import CronJob, JobFlow

    plain = (ModelServing, ModelBooster, LeaderWorkerSet, JobFlow, CronJob, Deployment, StatefulSet, ReplicaSet)
    words = {kind.kind_info.singular: kind.kind_info for kind in plain}
    return words | {BATCH_JOB: BatchJob.kind_info, BATCH_CRON_JOB: BatchCronJob.kind_info}


def _kinds() -> Iterator[tuple[str, "Kind"]]:
    """Volcano's before Kubernetes': a job or a cron job is Volcano's, unless its group is written out."""
    from hekla.api.foreign import Gateway, HttpRoute, InferencePool
    from hekla.api.kthena import AutoscalingPolicy, ModelRoute, ModelServer
    from hekla.api.pods import Pod
    from hekla.api.volcano import Job, PodGroup, Queue

    for word, kind in (
        ("pod", Pod), ("podgroup", PodGroup), ("queue", Queue), ("vcjob", Job),
        ("modelroute", ModelRoute), ("modelserver", ModelServer), ("autoscalingpolicy", AutoscalingPolicy),
        ("gateway", Gateway), ("httproute", HttpRoute), ("inferencepool", InferencePool),
    ):  # fmt: skip
        yield word, kind.kind_info
    yield from owners().items()


def _names(word: str, info: "Kind") -> set[str]:
    return {info.singular, info.plural, *info.short_names, *([f"{word}s"] if word == "vcjob" else ())}


def _places(info: "Kind") -> set[str]:
    return {"", info.group, f"{info.version}.{info.group}"} if info.group else {"", info.version}


async def explanation(connection: "Connection", namespace: str, name: str) -> "Document":
    """The scheduler's answer; NotFoundError where it knows of no such thing, CommandError where no scheduler can be asked at all."""
    from hekla.api.explanation import EXPLANATION
    from hekla.cli.main import CommandError
    from hekla.cli.names import hint
    from hekla.kube.errors import NotFoundError

    try:
        return await answered(connection, EXPLANATION, namespace, name)
    except NotFoundError as unknown:
        if await _is_served(connection):
            word, _, asked = name.partition(".")
            unknown.message += await hint(connection, dict(_kinds())[word].path(namespace), asked)
            raise
        raise CommandError(
            f"nobody answers here why something waits: the server does not know {EXPLANATION.plural}.{EXPLANATION.group}; "
            "install Hekla's scheduler (`hekla install`), or ask its own events with `hekla describe`"
        ) from None


async def answered(connection: "Connection", kind: "Kind", namespace: str, name: str) -> "Document":
    """An answer; of the scheduler that the first one asked names as the one whose pods these are, if that one can be asked."""
    from hekla.api.explanation import as_answered_by
    from hekla.kube.errors import NotFoundError

    try:
        return await connection.client.request("GET", kind.path(namespace, name))
    except NotFoundError as unknown:
        other = as_answered_by(kind, found.group(1)) if (found := _OF_ANOTHER.search(unknown.message)) else kind
        if other.version == kind.version:
            raise
        try:
            return await connection.client.request("GET", other.path(namespace, name))
        except NotFoundError as second:
            if not NOT_SERVED.search(second.message):
                raise  # that one's own words
        raise


async def of_scheduler(connection: "Connection", kind: "Kind", name: str) -> "Document":
    """What the scheduler of a name says of itself: at its own place, or at the usual one, where it may be the only one."""
    from hekla.api.explanation import as_answered_by
    from hekla.kube.errors import NotFoundError

    own = as_answered_by(kind, name)
    if own.version != kind.version:
        try:
            return await connection.client.request("GET", own.path(name=name))
        except NotFoundError as error:
            if not NOT_SERVED.search(error.message):
                raise
    return await connection.client.request("GET", kind.path(name=name))


async def _is_served(connection: "Connection") -> bool:
    from hekla.api.explanation import EXPLANATION
    from hekla.kube.errors import ApiError, NotFoundError

    try:
        await connection.client.request("GET", f"/apis/{EXPLANATION.group}/{EXPLANATION.version}")
    except NotFoundError:
        return False
    except ApiError:
        return True  # whoever may not look hears what was said of the thing itself
    return True
