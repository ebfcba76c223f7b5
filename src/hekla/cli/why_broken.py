"""What `hekla why` says of pods that have their node and do not serve: how each container ended, its last words, what to do.

`broken` decides from the objects, `last_words` asks for logs. An engine that ends is often made anew with its pod, and then its events
are all that is left of it (`failures`).
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

MOST_TOLD = 3
"""Containers that are told of with their last words; the others are counted."""

LOG_LINES, LOG_BYTES = 8, 16_384
FRESH = timedelta(minutes=10)
"""A failure that is older, of a pod that was made anew since, is past."""

BAD_WAITS = frozenset({
    "CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
})  # fmt: skip

REMEDIES: Mapping[object, str] = {
    "OOMKilled": "it took more memory than its limit: raise resources.limits.memory, or let the engine keep less",
    "image": "is the image's name right, may this node pull it (imagePullSecrets), and can it reach the registry?",
    "CreateContainerConfigError": "what the container refers to (a Secret, a ConfigMap, a key of one) must exist: the message says which",
    0: "it ended as if all were done, and a server must not end: is its command a server's?",
    1: "its last words say what it could not do",
    2: "programs say 2 of arguments that they do not take: compare `args` with what the engine's `--help` lists",
    126: "the command is there and is no program: is it executable, and for this processor?",
    127: "the image has no such command: compare `command` with what the image holds",
    137: "it was killed from outside: by a probe that failed, or by the machine where memory ran out; the pod's events say which",
    139: "it crashed in its own code (SIGSEGV): a driver or a library that does not fit the image is the usual cause",
    143: "it was asked to end (SIGTERM): by a probe that failed, most likely; the pod's events say which",
}
"""What to do about a reason or an exit code."""

WORDS = {
    "out of memory": "the accelerator's memory is full: lower gpu-memory-utilization, max-model-len or max-num-seqs, or take more GPUs",
    "unrecognized arguments": "the engine does not know this flag: take it out of `config` or `args`, or take an image that knows it",
    "address already in use": "another process holds the port: give the engine another one",
    "401 client error": "the model's host refuses: give the engine the token that may read the model",
    "no space left": "the volume of the model or of the container is full",
}
"""What to do about what a log says; the first that it has, in lower case."""


def broken(documents: Iterable["Document"]) -> list["Document"]:
    """The containers of placed pods that have ended and do not serve, or cannot begin."""
    import msgspec

    from hekla.api.kthena import labels
    from hekla.api.pods import Pod

    found: list[Document] = []
    for pod in sorted((msgspec.convert(one, Pod) for one in documents), key=lambda pod: pod.metadata.name):
        is_engine = labels.NAME in pod.metadata.labels  # other owners count what failed for good themselves
        is_over = pod.status.phase == "Succeeded" or (pod.status.phase == "Failed" and not is_engine)
        if pod.metadata.deletion_timestamp is None and not is_over:
            found += _broken_containers(pod)
    return found


def _broken_containers(pod: Any) -> Iterator["Document"]:
    for one in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = one.state.waiting if one.state is not None else None
        ends = (state.terminated for state in (one.state, one.last_state) if state is not None)
        ended = next((end for end in ends if end is not None), None)
        is_stuck = waiting is not None and waiting.reason in BAD_WAITS
        if one.ready or not (ended is not None or is_stuck):
            continue
        told: Document = {"pod": pod.metadata.name, "container": one.name, "restarts": one.restart_count}
        if waiting is not None:
            told["waits"] = {"reason": waiting.reason, "message": waiting.message}
        if ended is not None:
            told["ended"] = {
                key: value
                for key, value in (
                    ("exitCode", ended.exit_code), ("reason", ended.reason), ("signal", ended.signal),
                    ("at", ended.finished_at), ("message", ended.message),
                )
                if value not in (None, "")
            }  # fmt: skip
        told["log"] = []
        yield told


def unready(documents: Iterable["Document"]) -> list[str]:
    """The pods that have a node, are not over, and are not ready."""
    return sorted(one["metadata"]["name"] for one in documents if _is_unready(one))


def _is_unready(pod: "Document") -> bool:
    status = pod.get("status") or {}
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
    is_placed = bool((pod.get("spec") or {}).get("nodeName"))
    return is_placed and not is_ready and status.get("phase") not in {"Succeeded", "Failed"}


def failures(uids: Iterable[str], events: Iterable["Document"], now: datetime) -> list["Document"]:
    """What the events of objects tell of pods that ended lately and were made anew, the latest first."""
    from hekla.serving.serving_troubles import POD_FAILED

    return told_lately(POD_FAILED, uids, events, now)


def told_lately(reason: str, uids: Iterable[str], events: Iterable["Document"], now: datetime) -> list["Document"]:
    """What the events of objects tell for one reason, the latest first."""
    from hekla.kube.timestamps import parse_rfc3339

    asked, found = set(uids), []
    for one in events:
        of, last = one.get("involvedObject") or {}, one.get("lastTimestamp") or one.get("eventTime") or ""
        at = parse_rfc3339(last) if last else None
        if of.get("uid") in asked and one.get("reason") == reason and at is not None and now - at < FRESH:
            found.append({
                "object": f"{of['kind'].lower()}/{of['name']}", "message": one["message"], "times": one.get("count") or 1,
                "since": one.get("firstTimestamp") or last, "last": last,
            })  # fmt: skip
    return sorted(found, key=lambda one: (one["last"], one["message"]), reverse=True)


def remedies(one: Mapping[str, Any], namespace: str) -> list[str]:
    """What to do about a container, the likeliest first."""
    ended, waits = one.get("ended") or {}, one.get("waits") or {}
    said = "\n".join([*one["log"], str(ended.get("message", ""))]).lower()
    of_log = next((hint for words, hint in WORDS.items() if words in said), "")
    of_image = REMEDIES["image"] if "Image" in str(waits.get("reason", "")) else ""
    of_code = REMEDIES.get(ended.get("reason")) or REMEDIES.get(ended.get("exitCode"), "") if ended else ""
    found = [of_log or of_image or REMEDIES.get(waits.get("reason"), "") or of_code]
    if ended:
        found.append(f"all of its log: hekla logs --previous -c {one['container']} -n {namespace} {one['pod']}")
    found.append(f"the pod's events: hekla describe pod/{one['pod']} -n {namespace}")
    return [hint for hint in found if hint]


async def last_words(connection: "Connection", namespace: str, one: "Document") -> "Document":
    """The container with the last lines of its log, where somebody has them, and what to do."""
    lines: list[str] = []
    for previous in (True, False) if one["restarts"] else (False, True):
        if one.get("ended") and (lines := await _tail(connection, namespace, one, is_previous=previous)):
            break
    told = {**one, "log": lines}
    return {**told, "remedies": remedies(told, namespace)}


async def _tail(connection: "Connection", namespace: str, one: "Document", *, is_previous: bool) -> list[str]:
    from urllib.parse import urlencode

    from hekla.kube.errors import KubeError

    query = {"container": one["container"], "tailLines": LOG_LINES, "limitBytes": LOG_BYTES}
    asked = urlencode(query | ({"previous": "true"} if is_previous else {}))
    try:
        pieces = [
            piece
            async for piece in connection.client.stream(f"/api/v1/namespaces/{namespace}/pods/{one['pod']}/log?{asked}")
        ]
    except KubeError:
        return []  # no log, or none that the asker may see: what the status says stands without
    return b"".join(pieces).decode(errors="replace").splitlines()[-LOG_LINES:]


async def with_last_words(connection: "Connection", namespace: str, found: Sequence["Document"]) -> list["Document"]:
    """The first of them with their last words and what to do; the others as they are."""
    told = await asyncio.gather(*(last_words(connection, namespace, one) for one in found[:MOST_TOLD]))
    return [*told, *found[MOST_TOLD:]]


# The telling


def lines_of(found: Mapping[str, Any]) -> Iterator[str]:
    """As people read it."""
    for one in found["broken"][:MOST_TOLD]:
        yield from ("", *_container_lines(one))
    if more := found["broken"][MOST_TOLD:]:
        yield from (
            "",
            f"{len(more)} more containers do not serve: "
            + ", ".join(f"{one['pod']}/{one['container']}" for one in more),
        )
    if found["failures"]:
        yield from (
            "",
            "Made anew since they ended, the latest first (Kthena's recoveryPolicy; their logs went with their pods)",
        )
        for one in found["failures"][:MOST_TOLD]:
            yield f"  {one['message']} ({when(one)})"
        yield "  to keep a pod, and its log, while it is restarted in place: restartGracePeriodSeconds of the ModelServing's template"


def when(one: Mapping[str, Any]) -> str:
    """How often something was told, and when."""
    times = f"{one['times']} times since {one['since']}, " if one["times"] > 1 else ""
    return f"{times}last at {one['last']}"


def _container_lines(one: Mapping[str, Any]) -> Iterator[str]:
    ended, waits = one.get("ended"), one.get("waits")
    yield f"pod {one['pod']}, container {one['container']}, {_counted(one['restarts'])}"
    if ended is not None:
        signal = f", signal {ended['signal']}" if ended.get("signal") else ""
        yield f"  ended   with exit code {ended.get('exitCode', 0)} ({ended.get('reason') or 'Error'}{signal}) at {ended.get('at', '?')}"
        if ended.get("message"):
            yield f"  said    {ended['message'].strip()}"
    if waits is not None:
        yield f"  waits   {waits['reason']}" + (f": {waits['message']}" if waits["message"] else "")
    if one["log"]:
        yield "  the end of its log"
        yield from (f"    {line}" for line in one["log"])
    if one.get("remedies"):
        yield "  what to do"
        yield from (f"  - {hint}" for hint in one["remedies"])


def _counted(restarts: int) -> str:
    return {0: "not restarted yet", 1: "restarted once"}.get(restarts, f"restarted {restarts} times")
