"""Everything about one job on a page: the outline that `vcctl job view` prints, with the job's events.

An outline is a list of lines, each with its depth. Titles are Volcano's, so that scripts that look for them find them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hekla.cli.terminal import harmless
from hekla.cli.volcano.lookups import found

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

Line = tuple[int, str]
_COUNTS = (
    ("Succeeded", "succeeded"), ("Pending", "pending"), ("Running", "running"), ("Failed", "failed"),
    ("Terminating", "terminating"), ("Unknown", "unknown"), ("RetryCount", "retryCount"),
    ("Min Available", "minAvailable"), ("Version", "version"),
)  # fmt: skip
_EVENT_WIDTHS = (15, 40, 30, 40, 0)


async def job_view(connection: "Connection", name: str, namespace: str) -> str:
    """The text of one job."""
    from hekla.api.core import Event
    from hekla.api.volcano import Job

    job = await found(connection, Job.kind_info, name, namespace)
    events = [
        one
        for one in (await connection.client.list_documents(Event.kind_info, namespace)).items
        if one["metadata"]["name"].startswith(f"{name}.")
    ]
    outline = "\n".join("  " * depth + line for depth, line in job_outline(job))
    return harmless(f"{outline}\n{events_text(events)}")


def job_outline(job: "Document") -> Iterator[Line]:
    """The lines of a job."""
    metadata = job["metadata"]
    yield from _pairs(0, {
        "Name": metadata["name"], "Namespace": metadata["namespace"],
        "Labels": _as_json(metadata.get("labels")), "Annotations": _as_json(metadata.get("annotations")),
        "API Version": job["apiVersion"], "Kind": job["kind"],
    })  # fmt: skip
    yield 0, "Metadata:"
    yield from _pairs(1, {
        "Creation Timestamp": _moment(metadata.get("creationTimestamp")),
        "Generate Name": metadata.get("generateName", ""), "Generation": metadata.get("generation", 0),
        "Resource Version": metadata["resourceVersion"], "UID": metadata["uid"],
    })  # fmt: skip
    yield from _spec(job.get("spec") or {})
    yield from _status(job.get("status") or {})


def _spec(spec: "Document") -> Iterator[Line]:
    plugins = spec.get("plugins") or {}
    yield 0, "Spec:"
    yield 1, f"Min Available:     \t{spec.get('minAvailable', 0)}"
    yield 1, "Plugins:"
    for title, name in (("Env", "env"), ("Ssh", "ssh")):
        yield 2, f"{title}:\t[{' '.join(plugins.get(name) or ())}]"
    yield 1, f"Scheduler Name:    \t{spec.get('schedulerName', '')}"
    yield 1, "Tasks:"
    for task in spec.get("tasks") or ():
        yield from _task(task)


def _task(task: "Document") -> Iterator[Line]:
    template = task.get("template") or {}
    pod = template.get("spec") or {}
    yield 2, f"Name:\t{task.get('name', '')}"
    yield 2, f"Replicas:\t{task.get('replicas', 0)}"
    yield 2, "Template:"
    yield 3, "Metadata:"
    yield 4, f"Annotations:\t{_as_json((template.get('metadata') or {}).get('annotations'))}"
    yield 3, "Spec:"
    yield 4, "Containers:"
    for container in pod.get("containers") or ():
        yield from _container(container)
    yield 4, "Image Pull Secrets:"
    yield from ((5, f"Name:     \t{secret.get('name', '')}") for secret in pod.get("imagePullSecrets") or ())
    yield 4, f"Restart Policy:   \t{pod.get('restartPolicy', '')}"


def _container(container: "Document") -> Iterator[Line]:
    resources = container.get("resources") or {}
    yield 5, "Command:"
    yield from ((6, str(word)) for word in container.get("command") or ())
    yield 5, f"Image:\t{container.get('image', '')}"
    yield 5, f"Name: \t{container.get('name', '')}"
    yield 5, "Ports:"
    for port in container.get("ports") or ():
        yield 6, f"Container Port:\t{port.get('containerPort', 0)}"
        yield 6, f"Name:          \t{port.get('name', '')}"
    yield 5, "Resources:"
    for title in ("Limits", "Requests"):
        amounts = resources.get(title.lower()) or {}
        yield 6, f"{title}:"
        # Volcano shows these two even where nothing is asked for
        shown = {"cpu": "0", "memory": "0"} | {name: _canonical(amount) for name, amount in amounts.items()}
        yield from _pairs(7, {name.capitalize(): amount for name, amount in shown.items()})
    yield 6, f"Working Dir:\t{container.get('workingDir', '')}"


def _canonical(amount: str | int) -> str:
    from hekla.lib import quantity

    return quantity.canonical(str(amount))


def _status(status: "Document") -> Iterator[Line]:
    yield 0, "Status:"
    yield from ((1, f"{title + ':':14}\t{status[field]}") for title, field in _COUNTS if status.get(field, 0) > 0)
    yield 1, "State:"
    yield 2, f"Phase:\t{(status.get('state') or {}).get('phase', '')}"
    if controlled := status.get("controlledResources"):
        yield 1, "Controlled Resources:"
        yield from ((2, f"{name}: \t{value}") for name, value in controlled.items())
    if conditions := status.get("conditions"):
        yield 1, "Conditions:"
        yield 2, "Status\tTransitionTime"
        yield from ((2, f"{one['status']} \t{_moment(one.get('lastTransitionTime'))} ") for one in conditions)


def _pairs(depth: int, pairs: Mapping[str, Any]) -> Iterator[Line]:
    width = max(len(title) for title in pairs) + 1
    yield from ((depth, f"{(title + ':').ljust(width)}\t{value}") for title, value in pairs.items())


def _as_json(labels: Mapping[str, str] | None) -> str:
    return json.dumps(labels, sort_keys=True, separators=(",", ":")) if labels else "<none>"


def _moment(text: str | None) -> str:
    """A time as Go prints it: scripts read the date from its first word."""
    return f"{text.replace('T', ' ').removesuffix('Z')} +0000 UTC" if text else "0001-01-01 00:00:00 +0000 UTC"


def events_text(events: "Sequence[Document]") -> str:
    """The events of an object, oldest first."""
    if not events:
        return "Events: \t<none>"
    titles = ("Type", "Reason", "Age", "Form", "Message")
    rows = [titles, ("-------",) * len(titles), *(_event_cells(one) for one in events)]
    return "\n".join(["Events:", *("\t".join(map(str.ljust, row, _EVENT_WIDTHS)).rstrip() for row in rows)])


def _event_cells(event: "Document") -> tuple[str, ...]:
    from datetime import UTC, datetime

    from hekla.apiserver.tables import since

    now = datetime.now(UTC)
    first, last = event.get("firstTimestamp") or event.get("eventTime"), event.get("lastTimestamp")
    count = event.get("count") or 1
    age = f"{since(last, now)} (x{count} over {since(first, now)})" if count > 1 else since(first, now)
    source = event.get("source") or {}
    told_by = ", ".join(part for part in (source.get("component"), source.get("host")) if part)
    return (event.get("type", ""), event.get("reason", ""), age, told_by, event.get("message", "").strip())
