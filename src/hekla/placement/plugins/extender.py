"""Let a service outside have a say: it is asked by HTTP which nodes, victims, jobs and queues are right.

    extender.predicateVerb        may this pod use this node?           asked of every node that others allow
    extender.prioritizeVerb       how much are these nodes liked?       points are worth what they are in Volcano
    extender.preemptableVerb, reclaimableVerb      who of these may be evicted for this pod?
    extender.jobEnqueueableVerb, jobReadyVerb, queueOverusedVerb
    extender.onSessionOpenVerb, onSessionCloseVerb, jobEnqueuedVerb, allocateFuncVerb, deallocateFuncVerb    it is told

Placement makes no calls itself: `service` carries them out, and the scheduler's shell connects it. With
`extender.managedResources` only pods that ask for one of them are its business. Where it fails, an `ignorable` service
counts as not asked; any other says no. A service that was silent once is not asked again in the same cycle.

An answer that is on its way when a cycle has waited enough is *late*: whoever it is about waits, ignorable or not, and is
tried again when it is there. So a slow service makes its own pods slow and nobody else (`scheduler/extender_calls.py`).
"""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from hekla.placement.bookkeeping.tallies import Tallies
from hekla.placement.columns import BoolArray, FloatArray, Nodes
from hekla.placement.constraint import Refusal
from hekla.placement.framework import Opinion, Reading, Refused, Vote, plugin
from hekla.placement.model import Job, JobSpec, Task, TaskSpec
from hekla.placement.node_selection.score import NEUTRAL, Score
from hekla.placement.queue import Queue
from hekla.placement.registry import ArgumentError, as_bool, as_seconds_above_0
from hekla.placement.session import Session
from hekla.placement.shape import Shape

MOST_BYTES = 10 << 20
"""The largest answer that is read."""

_PERMIT, _REJECT = 1, -1
_SUCCESS = 0


class ServiceError(Exception):
    """The service did not answer, or not so that it can be understood; the text says what came instead."""


class SilenceError(ServiceError):
    """The service cannot be reached, or takes too long."""


class LateError(ServiceError):
    """The answer is on its way, and will be there in another cycle."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the service is, and how long it may take."""

    url: str
    timeout_s: float
    most_bytes: int = MOST_BYTES


Answers = Sequence[bytes | ServiceError]
Caller = Callable[[Address, str, Sequence[bytes]], Answers]
"""Sends each body to a verb, several at a time, and answers in the same order."""

Teller = Callable[[Address, str, bytes], None]
"""Sends a body to a verb of which no answer is wanted."""


class Service:
    """The way out: unconnected, every call fails."""

    def __init__(self) -> None:
        self._call: Caller | None = None
        self._tell: Teller | None = None

    def connect(self, caller: Caller, teller: Teller | None = None) -> None:
        """Have calls carried out by these from now on; without a teller what is told is asked, too."""
        self._call, self._tell = caller, teller

    def ask(self, address: Address, verb: str, bodies: Sequence[bytes]) -> Answers:
        """Answers in the order of the questions."""
        if self._call is None:
            return [ServiceError("nobody carries out calls here") for _ in bodies]
        return self._call(address, verb, bodies)

    def tell(self, address: Address, verb: str, body: bytes) -> None:
        """Let the service know."""
        if self._tell is not None:
            self._tell(address, verb, body)
        else:
            self.ask(address, verb, [body])


@dataclass(frozen=True, kw_only=True)
class Verbs:
    """What the service is asked, and under which name; "" is never asked."""

    predicate: str = ""
    prioritize: str = ""
    preemptable: str = ""
    reclaimable: str = ""
    queue_overused: str = ""
    job_enqueueable: str = ""
    job_enqueued: str = ""
    job_ready: str = ""
    on_session_open: str = ""
    on_session_close: str = ""
    allocate_func: str = ""
    deallocate_func: str = ""


@plugin
@dataclass(frozen=True, kw_only=True)
class Extender:
    """Asks a service."""

    address: Address = field(default_factory=lambda: Address("", 1.0))
    """Where it is."""

    verbs: Verbs = field(default_factory=Verbs)
    """What it is asked."""

    ignorable: bool = False
    """Whether a failing service counts as not asked."""

    managed: frozenset[str] = frozenset()
    """Resources that make a pod its business; none means every pod."""

    weight: float = 1.0
    """So that a point is worth what it is in Volcano, where this plug-in has no weight."""

    service: Service = field(default_factory=Service, compare=False)
    """The way out."""

    def outlook(self, session: Session) -> Hashable:
        """Tells the service that a cycle begins; its answers are asked for anew in each."""
        if self.verbs.on_session_open:
            self._tell(self.verbs.on_session_open, _session(session))
        return None

    def read(self, task: TaskSpec, job: JobSpec, queues: Mapping[str, Queue]) -> Reading | None:
        """Pods that are its business are decided one by one, as it sees them one by one."""
        asked = self.verbs.predicate or self.verbs.prioritize
        return Reading(is_single=True) if asked and self._is_concerned(task.request) else None

    def refuse_live(self, nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
        """Nodes that the service is against, each for its own reason; all, while it has yet to say how it likes them."""
        if not self._is_concerned(task.shape.request):
            return
        late = self._points(nodes, task) if self.verbs.prioritize else None
        if isinstance(late, LateError):
            yield Refused(Refusal("extender", str(late)), np.ones(nodes.rows, np.bool_))
            return
        if not self.verbs.predicate:
            return
        rows, told = np.flatnonzero(_has_room(nodes, task)), _task(task)
        bodies = [{"task": told, "node": _node(nodes, int(row))} for row in rows]
        by_reason: dict[str, list[int]] = {}
        for row, answer in zip(rows, self._ask(nodes, self.verbs.predicate, bodies), strict=True):
            reason = self._failure(answer) if isinstance(answer, ServiceError) else _reason(answer)
            if reason:
                by_reason.setdefault(reason, []).append(int(row))
        for reason, refused in sorted(by_reason.items()):
            mask: BoolArray = np.zeros(nodes.rows, np.bool_)
            mask[refused] = True
            yield Refused(Refusal("extender", reason), mask)

    def score(self, nodes: Nodes, shape: Shape) -> Score:
        """What facts of nodes decide: nothing. It is here so that the weight counts in the mean."""
        return NEUTRAL

    def score_live(self, nodes: Nodes, tallies: Tallies, task: Task) -> FloatArray | None:
        """The service's points, a hundred of which are a weight of one; below the least of them nobody falls."""
        if not self.verbs.prioritize or not self._is_concerned(task.shape.request):
            return None
        rows, answer = np.flatnonzero(_has_room(nodes, task)), self._points(nodes, task)
        points = answer.get("nodeScore") if isinstance(answer, dict) and not answer.get("errorMessage") else None
        if not isinstance(points, dict):
            return None  # no opinion, as when it is ignored; Volcano gives up on the pod
        scores: FloatArray = np.zeros(nodes.rows, np.float32)
        for row in rows:
            value = points.get(nodes.names[row], 0)
            scores[row] = value / 100 if isinstance(value, int | float) else 0
        return scores - min(float(scores.min(initial=0)), 0.0)

    def _points(self, nodes: Nodes, task: Task) -> dict[str, Any] | ServiceError:
        """What the service says of all nodes that have room."""
        rows = np.flatnonzero(_has_room(nodes, task))
        body = {"task": _task(task), "nodes": [_node(nodes, int(row)) for row in rows]}
        (answer,) = self._ask(nodes, self.verbs.prioritize, [body])
        return answer

    def apart(self, session: Session, victim: Task) -> Hashable:
        """Victims are named one by one."""
        return victim.uid if self.verbs.preemptable or self.verbs.reclaimable else None

    def preemptable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        """Those the service lets go."""
        return self._victims(session, self.verbs.preemptable, task, victims)

    def reclaimable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        """Those the service lets go."""
        return self._victims(session, self.verbs.reclaimable, task, victims)

    def is_overused(self, session: Session, queue: Queue) -> bool:
        """Whether the service says that a queue has had its share."""
        if not self.verbs.queue_overused:
            return False
        answer = self._one(session, self.verbs.queue_overused, {"queue": _queue(session, queue)})
        if isinstance(answer, ServiceError):
            return not self._is_ignored(answer)
        return answer.get("overused") is True

    def may_enqueue(self, session: Session, job: Job) -> Opinion:
        """The service's vote."""
        if not self.verbs.job_enqueueable or not self._minds(job):
            return Opinion(Vote.ABSTAIN)
        answer = self._one(session, self.verbs.job_enqueueable, {"job": _job(job)})
        if isinstance(answer, ServiceError):
            return Opinion(Vote.PERMIT) if self._is_ignored(answer) else Opinion(Vote.REJECT, str(answer))
        status = answer.get("status", 0)
        if status == _REJECT:
            return Opinion(Vote.REJECT, "the extender is against it")
        return Opinion(Vote.PERMIT if status == _PERMIT else Vote.ABSTAIN)

    def is_ready(self, session: Session, job: Job) -> bool:
        """Whether the service lets what was placed be bound; one that fails does not, unless it is ignorable."""
        if not self.verbs.job_ready or not self._minds(job):
            return True
        answer = self._one(session, self.verbs.job_ready, {"job": _job(job)})
        if isinstance(answer, ServiceError):
            if not self._is_ignored(answer):
                session.refusals[job.uid] = Refusal("extender", str(answer))
            return self._is_ignored(answer)
        return answer.get("status") is True

    def shortfall(self, session: Session, job: Job) -> int:
        """One at a time: only the service knows how many it wants."""
        return 1 if self.verbs.job_ready and self._minds(job) else 0

    def end_session(self) -> None:
        """Tell the service that a cycle is over."""
        if self.verbs.on_session_close:
            self._tell(self.verbs.on_session_close, {})

    def entered(self, job: Job) -> None:
        """Tell the service that a job was let in."""
        if self.verbs.job_enqueued and self._minds(job):
            self._tell(self.verbs.job_enqueued, {"job": _job(job)})

    def decided(self, task: Task, node: str, *, is_placed: bool) -> None:
        """Tell the service that a pod was given a node, or taken off one."""
        verb = self.verbs.allocate_func if is_placed else self.verbs.deallocate_func
        if verb and self._is_concerned(task.shape.request):
            self._tell(verb, {"task": {**_task(task), "NodeName": node}})

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `extender.*`."""
        url = str(arguments.get("extender.urlPrefix", "")).rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise ArgumentError(f"argument extender.urlPrefix is {url!r}; a url like http://127.0.0.1:8080 is expected")
        names = {name: f"extender.{_camel(name)}Verb" for name in Verbs.__dataclass_fields__}
        verbs = {name: str(arguments.get(key) or "").strip("/") for name, key in names.items()}
        managed = arguments.get("extender.managedResources") or []
        resources = managed if isinstance(managed, list) else str(managed).split(",")
        return cls(
            address=Address(
                url, as_seconds_above_0("extender.httpTimeout", arguments.get("extender.httpTimeout", "1s"))
            ),
            verbs=Verbs(**verbs),
            ignorable=as_bool("extender.ignorable", arguments.get("extender.ignorable", False)),
            managed=frozenset(str(name).strip() for name in resources if str(name).strip()),
        )

    def _is_concerned(self, request: Mapping[str, int]) -> bool:
        return not self.managed or any(request.get(name, 0) > 0 for name in self.managed)

    def _minds(self, job: Job) -> bool:
        return not self.managed or any(self._is_concerned(task.shape.request) for task in job.tasks.values())

    def _one(self, session: Session, verb: str, body: Any) -> dict[str, Any] | ServiceError:
        (answer,) = self._ask(session.cluster.nodes, verb, [body])
        return answer

    def _tell(self, verb: str, body: Any) -> None:
        self.service.tell(self.address, verb, json.dumps(body).encode())

    def _ask(self, nodes: Nodes, verb: str, bodies: Sequence[Any]) -> list[dict[str, Any] | ServiceError]:
        """Answers as objects; once the service was silent, it is not asked again before the next cycle."""
        silence = nodes.notes.get("extender")
        if isinstance(silence, ServiceError):
            return [silence] * len(bodies)
        answers = self.service.ask(self.address, verb, [json.dumps(body).encode() for body in bodies])
        read = [answer if isinstance(answer, ServiceError) else _object(answer) for answer in answers]
        silent = next((answer for answer in answers if isinstance(answer, SilenceError)), None)
        if silent is not None:
            nodes.notes["extender"] = silent
        return read

    def _is_ignored(self, error: ServiceError) -> bool:
        """Whether it counts as not asked: not while its answer is on its way."""
        return self.ignorable and not isinstance(error, LateError)

    def _failure(self, error: ServiceError) -> str:
        return "" if self._is_ignored(error) else str(error)

    def _victims(self, session: Session, verb: str, task: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        if not verb or not self._is_concerned(task.shape.request):
            return None
        body = {"evictor": _task(task), "evictees": [_task(victim) for victim in victims]}
        answer = self._one(session, verb, body)
        if isinstance(answer, ServiceError):
            return None if self._is_ignored(answer) else []
        if answer.get("status", 0) == 0:
            return None
        named = {entry.get("UID") for entry in answer.get("victims") or [] if isinstance(entry, dict)}
        return [victim for victim in victims if victim.uid in named]


def _object(answer: bytes) -> dict[str, Any] | ServiceError:
    try:
        read = json.loads(answer or b"{}")
    except ValueError:
        return ServiceError("the extender's answer is no JSON")
    return read if isinstance(read, dict) else ServiceError("the extender's answer is no JSON object")


def _reason(answer: Mapping[str, Any]) -> str:
    """Why the service is against a node: its words (`status` in Volcano's struct, `errorMessage` in its guide)."""
    words = answer.get("status") or answer.get("errorMessage") or ""
    code = answer.get("code", _SUCCESS)
    return str(words) if words else "" if code == _SUCCESS else f"extender refused with code {code}"


def _has_room(nodes: Nodes, task: Task) -> BoolArray:
    """Nodes that have room: nobody asks a service about others.  # [node]"""
    shape = task.shape
    room: BoolArray = nodes.is_live & np.logical_and.reduce(
        nodes.idle[shape.resources] >= shape.amounts[:, None], axis=0
    )
    return room


def _task(task: Task) -> dict[str, Any]:
    """Volcano's TaskInfo, as far as we have it, in its spelling."""
    spec = task.spec
    return {
        "UID": task.uid, "Job": task.job.uid if task.job is not None else "", "Name": spec.name,
        "Namespace": spec.namespace, "TaskRole": spec.role, "Priority": spec.priority, "NodeName": spec.node,
        "Status": task.status.name.capitalize(), "Preemptable": spec.is_preemptable, "BestEffort": task.is_best_effort,
        "Resreq": _resource(task.shape.request), "Labels": dict(spec.labels),
    }  # fmt: skip


def _node(nodes: Nodes, row: int) -> dict[str, Any]:
    """Volcano's NodeInfo, as far as we have it, in its spelling."""
    spec = nodes.specs[row]
    assert spec is not None
    amounts = {
        kind: _resource({name: int(column[index, row]) for name, index in nodes.asked_resources()})
        for kind, column in (("Allocatable", nodes.allocatable), ("Used", nodes.used), ("Idle", nodes.idle))
    }
    return {"Name": spec.name, **amounts, "Labels": dict(spec.labels)}


def _job(job: Job) -> dict[str, Any]:
    """Volcano's JobInfo, as far as we have it, in its spelling."""
    spec = job.spec
    return {
        "UID": job.uid, "Name": spec.name, "Namespace": spec.namespace, "Queue": spec.queue, "Priority": spec.priority,
        "MinAvailable": spec.min_available, "ReadyTaskNum": job.ready_count, "Allocated": _resource(job.holding),
        "Tasks": {task.uid: _task(task) for task in job.tasks.values()},
    }  # fmt: skip


def _queue(session: Session, queue: Queue) -> dict[str, Any]:
    """Volcano's QueueInfo, as far as we have it, in its spelling."""
    held = session.cluster.ledger.of(queue.name).held
    return {"UID": queue.name, "Name": queue.name, "Weight": queue.weight, "Allocated": _resource(held)}


def _session(session: Session) -> dict[str, Any]:
    cluster = session.cluster
    return {
        "Jobs": {job.uid: _job(job) for job in cluster.lines.for_nodes.values()},
        "Nodes": {name: _node(cluster.nodes, row) for name, row in cluster.nodes.row_of.items()},
        "Queues": {queue.name: _queue(session, queue) for queue in cluster.queues.values()},
    }


def _resource(amounts: Mapping[str, int]) -> dict[str, Any]:
    """Volcano's Resource: thousandths of cpu, bytes of memory, thousandths of everything else."""
    others = {name: amount * 1000 for name, amount in amounts.items() if name not in {"cpu", "memory"} and amount}
    return {"MilliCPU": amounts.get("cpu", 0), "Memory": amounts.get("memory", 0), "ScalarResources": others}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)
