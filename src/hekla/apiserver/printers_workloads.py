"""Columns of what runs: pods, their controllers, jobs, nodes. `printers.py` has the other kinds."""

from datetime import datetime
from typing import Any

from hekla.api.meta import Document
from hekla.apiserver.tables import AGE, NAME, WIDE, Cell, Printer, age, duration, parsed_time, since

NONE = "<none>"
_CONTAINERS = Cell("Containers", priority=WIDE, description="The names of the containers in the template.")
_IMAGES = Cell("Images", priority=WIDE, description="The images of the containers in the template.")
_SELECTOR = Cell("Selector", priority=WIDE, description=".spec.selector")

POD_COLUMNS = (
    NAME,
    Cell("Ready", description="How many of the pod's containers are ready, of how many."),
    Cell("Status", description="What the pod is doing, or why it is not."),
    Cell("Restarts", description="How often containers were restarted, and when the last one was."),
    AGE,
    Cell("IP", priority=WIDE, description="The pod's address; empty until it has one."),
    Cell("Node", priority=WIDE, description=".spec.nodeName"),
    Cell("Nominated Node", priority=WIDE, description=".status.nominatedNodeName"),
    Cell("Readiness Gates", priority=WIDE, description=".spec.readinessGates"),
)


def pod_row(pod: Document, now: datetime) -> list[Any]:
    """One pod."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    restarts, last = _restarts(status, _restartable_inits(spec))
    restarted = f"{restarts} ({since(last, now)} ago)" if restarts and last else str(restarts)
    addresses = [one.get("ip", "") for one in status.get("podIPs") or ()]
    gates = spec.get("readinessGates") or []
    return [
        pod["metadata"]["name"],
        f"{_ready(spec, status)}/{len(spec.get('containers') or ()) + len(_restartable_inits(spec))}",
        pod_status(pod),
        restarted,
        age(pod, now),
        (addresses[0] if addresses else status.get("podIP")) or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{_gates_passed(gates, status)}/{len(gates)}" if gates else NONE,
    ]


def _gates_passed(gates: list[Document], status: Document) -> int:
    true = {one.get("type") for one in status.get("conditions") or () if one.get("status") == "True"}
    return sum(gate.get("conditionType") in true for gate in gates)


def _restartable_inits(spec: Document) -> set[str]:
    return {one["name"] for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"}


def _ready(spec: Document, status: Document) -> int:
    sidecars = _restartable_inits(spec)
    started = [s for s in status.get("initContainerStatuses") or () if s.get("name") in sidecars and s.get("started")]
    ready = sum(bool(one.get("ready")) for one in status.get("containerStatuses") or ())
    return ready + sum(bool(one.get("ready")) for one in started)


def _restarts(status: Document, sidecars: set[str]) -> tuple[int, str]:
    inits = status.get("initContainerStatuses") or []
    counted = [one for one in inits if one.get("name") in sidecars] + list(status.get("containerStatuses") or ())
    if not counted and inits:
        counted = inits
    finished = [((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or "" for one in counted]
    return sum(one.get("restartCount", 0) for one in counted), max(finished, default="")


def pod_status(pod: Document) -> str:
    """The word in the Status column."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    reason: str = status.get("reason") or status.get("phase") or "Unknown"
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    waiting = _init_status(spec, status)
    if waiting:
        reason = waiting
    else:
        reason = _container_status(status, reason)
    if "deletionTimestamp" in pod["metadata"]:
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in {"Succeeded", "Failed"}:
            return "Terminating"
    return reason


def _init_status(spec: Document, status: Document) -> str:
    sidecars, inits = _restartable_inits(spec), spec.get("initContainers") or []
    for index, one in enumerate(status.get("initContainerStatuses") or ()):
        state = one.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None and terminated.get("exitCode", 0) == 0:
            continue
        if one.get("name") in sidecars and one.get("started"):
            continue
        if terminated is not None:
            return "Init:" + _ended(terminated)
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(inits)}"
    return ""


def _container_status(status: Document, reason: str) -> str:
    is_running = False
    for one in reversed(status.get("containerStatuses") or ()):
        state = one.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif terminated is not None:
            reason = _ended(terminated)
        elif one.get("ready") and "running" in state:
            is_running = True
    if reason == "Completed" and is_running:
        ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
        return "Running" if ready else "NotReady"
    return reason


def _ended(terminated: Document) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


# ---- controllers


def template_cells(template: Document | None) -> tuple[str, str]:
    """The names and images of a template's containers."""
    containers = ((template or {}).get("spec") or {}).get("containers") or []
    return ",".join(c.get("name", "") for c in containers), ",".join(c.get("image", "") for c in containers)


def selector_text(selector: Any) -> str:
    """A selector on one line."""
    if not isinstance(selector, dict) or not selector:
        return NONE
    if not {"matchLabels", "matchExpressions"} & set(selector):
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for one in selector.get("matchExpressions") or ():
        values = ",".join(sorted(one.get("values") or ()))
        words = {"In": f"{one['key']} in ({values})", "NotIn": f"{one['key']} notin ({values})", "Exists": one["key"]}
        parts.append(words.get(one["operator"], f"!{one['key']}"))
    return ",".join(parts) or NONE


def _count(part: Document, name: str, otherwise: int = 0) -> int:
    value = part.get(name)
    return otherwise if value is None else int(value)


def deployment_row(one: Document, now: datetime) -> list[Any]:
    """One Deployment."""
    spec, status = one.get("spec") or {}, one.get("status") or {}
    ready = f"{_count(status, 'readyReplicas')}/{_count(spec, 'replicas', 1)}"
    updated, available = _count(status, "updatedReplicas"), _count(status, "availableReplicas")
    where = [*template_cells(spec.get("template")), selector_text(spec.get("selector"))]
    return [one["metadata"]["name"], ready, updated, available, age(one, now), *where]


def replica_set_row(one: Document, now: datetime) -> list[Any]:
    """One ReplicaSet or ReplicationController."""
    spec, status = one.get("spec") or {}, one.get("status") or {}
    counts = [_count(spec, "replicas", 1), _count(status, "replicas"), _count(status, "readyReplicas")]
    where = [*template_cells(spec.get("template")), selector_text(spec.get("selector"))]
    return [one["metadata"]["name"], *counts, age(one, now), *where]


def stateful_set_row(one: Document, now: datetime) -> list[Any]:
    """One StatefulSet."""
    spec, status = one.get("spec") or {}, one.get("status") or {}
    ready = f"{_count(status, 'readyReplicas')}/{_count(spec, 'replicas', 1)}"
    return [one["metadata"]["name"], ready, age(one, now), *template_cells(spec.get("template"))]


def daemon_set_row(one: Document, now: datetime) -> list[Any]:
    """One DaemonSet."""
    spec, status = one.get("spec") or {}, one.get("status") or {}
    names = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    pod = (spec.get("template") or {}).get("spec") or {}
    where = [*template_cells(spec.get("template")), selector_text(spec.get("selector"))]
    counts = [_count(status, name) for name in names]
    return [one["metadata"]["name"], *counts, selector_text(pod.get("nodeSelector")), age(one, now), *where]


def job_row(one: Document, now: datetime) -> list[Any]:
    """One batch Job."""
    spec, status = one.get("spec") or {}, one.get("status") or {}
    wanted = spec.get("completions")
    parallel = _count(spec, "parallelism")
    of = str(wanted) if wanted is not None else (f"1 of {parallel}" if parallel > 1 else "1")
    where = [*template_cells(spec.get("template")), selector_text(spec.get("selector"))]
    done = f"{_count(status, 'succeeded')}/{of}"
    return [one["metadata"]["name"], _job_status(one), done, _job_duration(status, now), age(one, now), *where]


def _job_status(job: Document) -> str:
    true = {c.get("type") for c in (job.get("status") or {}).get("conditions") or () if c.get("status") == "True"}
    for word in ("Complete", "Failed"):
        if word in true:
            return word
    if "deletionTimestamp" in job["metadata"]:
        return "Terminating"
    for condition, word in (
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ):
        if condition in true:
            return word
    return "Running"


def _job_duration(status: Document, now: datetime) -> str:
    start, end = parsed_time(status.get("startTime")), parsed_time(status.get("completionTime"))
    return "" if start is None else duration(((end or now) - start).total_seconds())


def cron_job_row(one: Document, now: datetime) -> list[Any]:
    """One CronJob."""
    spec, status = one.get("spec") or {}, one.get("status") or {}
    last = since(status["lastScheduleTime"], now) if status.get("lastScheduleTime") else NONE
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    where = [*template_cells(job.get("template")), selector_text(job.get("selector"))]
    suspended = "True" if spec.get("suspend") else "False"
    active = len(status.get("active") or ())
    zone = spec.get("timeZone") or NONE
    return [one["metadata"]["name"], spec.get("schedule", ""), zone, suspended, active, last, age(one, now), *where]


# ---- nodes

ROLE = "node-role.kubernetes.io/"


def node_row(node: Document, now: datetime) -> list[Any]:
    """One Node."""
    status = node.get("status") or {}
    info, labels = status.get("nodeInfo") or {}, node["metadata"].get("labels") or {}
    addresses = {one.get("type"): one.get("address") for one in reversed(status.get("addresses") or ())}
    roles = sorted(
        {key[len(ROLE) :] for key in labels if key.startswith(ROLE)} | {labels.get("kubernetes.io/role", "")} - {""}
    )
    return [
        node["metadata"]["name"],
        _node_status(node),
        ",".join(role for role in roles if role) or NONE,
        age(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP") or NONE,
        addresses.get("ExternalIP") or NONE,
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _node_status(node: Document) -> str:
    ready = next((c for c in (node.get("status") or {}).get("conditions") or () if c.get("type") == "Ready"), None)
    word = "Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"
    return f"{word},SchedulingDisabled" if (node.get("spec") or {}).get("unschedulable") else word


_INTEGERS = {
    "desired": "How many pods there should be.",
    "current": "How many pods there are.",
    "ready": "How many pods are ready.",
    "up-to-date": "How many pods follow the current template.",
    "available": "How many pods have been ready long enough.",
}


def _integer(name: str, kind: str = "integer") -> Cell:
    return Cell(name, kind, description=_INTEGERS[name.lower()])


_READY = Cell("Ready", description="How many pods are ready, of how many.")
_SETS = Printer(
    (NAME, _integer("Desired"), _integer("Current"), _integer("Ready"), AGE, _CONTAINERS, _IMAGES, _SELECTOR),
    replica_set_row,
)

WORKLOADS = {
    "pods": Printer(POD_COLUMNS, pod_row),
    "deployments.apps": Printer(
        (NAME, _READY, _integer("Up-to-date", "string"), _integer("Available", "string"), AGE, _CONTAINERS, _IMAGES, _SELECTOR),
        deployment_row,
    ),
    "replicasets.apps": _SETS,
    "replicationcontrollers": _SETS,
    "statefulsets.apps": Printer((NAME, _READY, AGE, _CONTAINERS, _IMAGES), stateful_set_row),
    "daemonsets.apps": Printer(
        (
            NAME, *(_integer(name) for name in ("Desired", "Current", "Ready", "Up-to-date", "Available")),
            Cell("Node Selector", description="The labels that a node must have."), AGE, _CONTAINERS, _IMAGES, _SELECTOR,
        ),
        daemon_set_row,
    ),
    "jobs.batch": Printer(
        (
            NAME, Cell("Status", description="What the job is doing."),
            Cell("Completions", description="How many pods have succeeded, of how many."),
            Cell("Duration", description="How long the job has run, or ran."), AGE, _CONTAINERS, _IMAGES, _SELECTOR,
        ),
        job_row,
    ),
    "cronjobs.batch": Printer(
        (
            NAME, Cell("Schedule", description=".spec.schedule"), Cell("Timezone", description=".spec.timeZone"),
            Cell("Suspend", "boolean", description=".spec.suspend"),
            Cell("Active", "integer", description=".status.active"),
            Cell("Last Schedule", description=".status.lastScheduleTime"), AGE, _CONTAINERS, _IMAGES, _SELECTOR,
        ),
        cron_job_row,
    ),
    "nodes": Printer(
        (
            NAME, Cell("Status", description="Whether the node is ready and takes pods."),
            Cell("Roles", description="The roles that its labels name."), AGE,
            Cell("Version", description="The version of its agent."),
            *(
                Cell(name, priority=WIDE, description="As the node reports it.")
                for name in ("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")
            ),
        ),
        node_row,
    ),
}  # fmt: skip
