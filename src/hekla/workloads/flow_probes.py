"""What a JobFlow's probes ask of the pods of earlier jobs, and what of it has been answered. Pure.

A reconciler may not knock at doors. `app/flow_prober.py` does, and writes the names of the jobs whose every request was
answered into an annotation of the flow; `job_flow.py` reads it there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hekla.api.core import Pod
from hekla.api.volcano import Job, JobFlow
from hekla.api.volcano.flow import Flow, HttpGet, Probe, TcpSocket
from hekla.workloads import keys
from hekla.workloads.job_view import task_of
from hekla.workloads.templates import SUCCEEDED


@dataclass(frozen=True)
class Knock:
    """One request or connection to one pod."""

    host: str
    port: int
    path: str | None = None
    """Of a GET; None only connects."""

    header: tuple[str, str] | None = None

    @property
    def url(self) -> str:
        """Where a GET goes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = self.path or ""
        return f"http://{host}:{self.port}{path if path.startswith('/') else f'/{path}'}"


def knocks_at_doors(step: Flow) -> bool:
    """Whether a job of a flow waits for pods that answer."""
    probe = step.depends_on.probe if step.depends_on is not None else None
    return probe is not None and bool(probe.http_get_list or probe.tcp_socket_list)


def answered(flow: JobFlow) -> frozenset[str]:
    """The jobs of a flow whose every request has been answered."""
    return frozenset(flow.metadata.annotations.get(keys.PROBES_ANSWERED, "").split(",")) - {""}


def with_answered(flow: JobFlow, more: Sequence[str]) -> str:
    """The annotation with more jobs in it."""
    return ",".join(sorted(answered(flow) | set(more)))


def due(
    flow: JobFlow, jobs: Mapping[str, Job], pods: Mapping[str, Sequence[Pod]]
) -> Iterator[tuple[str, Sequence[Knock]]]:
    """The jobs of a flow that wait for answers, with the doors to knock at now. `jobs` are those that were made, by template;
    `pods` are theirs, by the job's uid.
    """
    for step in flow.spec.flows:
        if step.name in jobs or not knocks_at_doors(step) or step.name in answered(flow):
            continue
        wish = step.depends_on
        assert wish is not None
        assert wish.probe is not None
        targets = [jobs[name] for name in wish.targets if name in jobs]
        if len(targets) == len(wish.targets):
            doors = _doors(wish.probe, targets, pods)
            if doors is not None:
                yield step.name, doors


def _doors(probe: Probe, targets: Sequence[Job], pods: Mapping[str, Sequence[Pod]]) -> list[Knock] | None:
    """Every door of every pod that is named; None while one of these pods does not run, or nobody has such a task."""
    doors: list[Knock] = []
    wishes: tuple[HttpGet | TcpSocket, ...] = (*probe.http_get_list, *probe.tcp_socket_list)
    for wish in wishes:
        hosts = [host for job in targets for host in _hosts(job, wish.task_name, pods.get(job.metadata.uid, ()))]
        if not hosts or "" in hosts:
            return None
        doors += (_knock(wish, host) for host in hosts)
    return doors


def _hosts(job: Job, task_name: str, pods: Sequence[Pod]) -> Iterator[str]:
    """The addresses of a task's pods; empty for each that does not run. Of a job that is over nobody answers any more."""
    replicas = next((task.replicas for task in job.spec.tasks if task.name == task_name), 0)
    if not replicas:
        return
    is_over = job.status.state.phase in SUCCEEDED
    running = [pod for pod in pods if task_of(pod) == task_name and pod.status.phase == "Running"]
    yield from (pod.status.pod_ip for pod in running)
    if is_over or len(running) < replicas:
        yield ""


def _knock(wish: HttpGet | TcpSocket, host: str) -> Knock:
    if isinstance(wish, TcpSocket):
        return Knock(host, wish.port)
    header = (wish.http_header.name, wish.http_header.value) if wish.http_header is not None else None
    return Knock(host, wish.port, wish.path or "/", header)
