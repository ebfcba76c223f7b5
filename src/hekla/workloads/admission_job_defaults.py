"""What Volcano's webhook writes into a new Job: queue, scheduler, retries, task names and minimums, plug-ins.

`admission_job.py` then checks the result.
"""

import copy
from collections.abc import Mapping

from hekla.api.meta import Document
from hekla.api.volcano import Job
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.apiserver.webhook_rule import is_readable
from hekla.workloads.ours import DEFAULT_QUEUE, Ours

QUEUES = "queues.scheduling.volcano.sh"

DEFAULT_MAX_RETRY = 3
IMPLIED_PLUGINS: Mapping[str, tuple[str, ...]] = {
    "tensorflow": ("svc",),
    "mpi": ("svc", "ssh"),
    "pytorch": ("svc",),
    "ray": ("svc",),
}
"""Plug-ins that need others to work."""


def default_job(request: AdmissionRequest, reader: Reader, ours: Ours) -> None:
    """Complete a Job that is being created, or changed: who applies a manifest again leaves out what was filled in.

    (Volcano completes new jobs only, and refuses the second `kubectl apply` of an unchanged manifest.)
    """
    if request.object is None or not is_readable(request.object, Job):
        return
    spec = request.object.setdefault("spec", {})
    given = copy.deepcopy(spec)
    stored = ((request.old or {}).get("spec") or {}).get("queue") or ""
    complete(spec, ours, reader, stored)
    if request.operation is Operation.UPDATE:
        _keep_zeroes(spec, given)
        request.is_rewritten |= spec != given  # what is as it was again is no new generation


def _keep_zeroes(spec: Document, given: Document) -> None:
    """In a change, a zero is meant."""
    pairs = [(spec, given), *zip(spec.get("tasks") or (), given.get("tasks") or (), strict=True)]
    for completed, said in pairs:
        completed.update({name: said[name] for name in ("minAvailable", "maxRetry") if said.get(name) == 0})


def complete(spec: Document, ours: Ours, reader: Reader, stored_queue: str = "") -> None:
    """Write the defaults into a job's spec; zero counts as absent, as in Go. A job that is changed has a queue stored."""
    spec["queue"] = _queue(spec.get("queue") or ours.queue, ours, reader, stored_queue)
    spec["schedulerName"] = spec.get("schedulerName") or ours.schedulers[0]
    spec["maxRetry"] = spec.get("maxRetry") or DEFAULT_MAX_RETRY
    tasks = spec.get("tasks") or []
    for position, task in enumerate(tasks):
        _complete_task(task, position)
    spec["minAvailable"] = spec.get("minAvailable") or sum(task["minAvailable"] for task in tasks)
    plugins = spec.get("plugins") or {}
    for name in tuple(plugins):
        for implied in IMPLIED_PLUGINS.get(name, ()):
            plugins.setdefault(implied, [])


def _queue(named: str, ours: Ours, reader: Reader, stored: str) -> str:
    """The queue of a job. API servers write the kind's own default before they ask: where nobody has a queue of that name,
    it stands for none. A job that is stored keeps what it once stood for, as its queue may not change.
    """
    if named != DEFAULT_QUEUE or ours.queue == DEFAULT_QUEUE:
        return named
    if stored in (DEFAULT_QUEUE, ours.queue):
        return stored
    return ours.queue if reader.get(QUEUES, "", DEFAULT_QUEUE) is None else named


def _complete_task(task: Document, position: int) -> None:
    task["name"] = task.get("name") or f"default{position}"
    pod = (task.get("template") or {}).get("spec")
    pod = pod if isinstance(pod, dict) else {}
    if pod.get("hostNetwork") and not pod.get("dnsPolicy"):
        pod["dnsPolicy"] = "ClusterFirstWithHostNet"
    if task.get("minAvailable") is None:
        task["minAvailable"] = _least(task)
    task["maxRetry"] = task.get("maxRetry") or DEFAULT_MAX_RETRY


def _least(task: Document) -> int:
    policy = task.get("partitionPolicy") or {}
    least: int = policy.get("minPartitions", 0) * policy.get("partitionSize", 0)
    return least or int(task.get("replicas", 0))
