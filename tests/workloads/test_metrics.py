"""What the controllers count, by stories of jobs and flows."""

import asyncio
import random
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hekla.api.core import Pod
from hekla.api.volcano import Job, JobFlow, PodGroup
from hekla.kube.measured import metric_rows
from hekla.kube.queue_metrics import FAMILIES as OF_WORK_QUEUES
from hekla.kube.queue_metrics import QueueMetrics
from hekla.kube.work_queue import WorkQueue
from hekla.workloads.metrics import FAMILIES, ControllerTally, gangs_by_queue

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
SINCE = datetime(2026, 1, 1, tzinfo=UTC)
Labelled = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def told(metrics: Iterable[Metric]) -> Labelled:
    """As Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(type("All", (), {"collect": lambda _: metrics})())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def job(phase: str, name: str = "train", **status: Any) -> Job:
    metadata = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:10Z"}
    whole = {"metadata": metadata, "spec": {"queue": "research"}, "status": {"state": {"phase": phase}, **status}}
    return msgspec.convert(whole, Job)


def flow(phase: str) -> JobFlow:
    return msgspec.convert(
        {"metadata": {"name": "etl", "namespace": "ml"}, "status": {"state": {"phase": phase}}}, JobFlow
    )


def pod_of(name: str, *, made: str, kind: str = "Job") -> Pod:
    owner = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": kind,
        "name": name,
        "uid": f"uid-{name}",
        "controller": True,
    }
    metadata = {"name": f"{name}-0", "namespace": "ml", "creationTimestamp": made, "ownerReferences": [owner]}
    return msgspec.convert({"metadata": metadata}, Pod)


def tally_of(*jobs: Job) -> ControllerTally:
    known = {(one.metadata.namespace, one.metadata.name): one for one in jobs}
    return ControllerTally(lambda namespace, name: known.get((namespace, name)), since=SINCE)


TRAIN = (("job_name", "ml/train"), ("queue_name", "research"))


def lives(tally: ControllerTally, *phases: str) -> None:
    for before, after in pairwise(phases):
        tally.on_job(job(before), job(after))


def test_each_end_of_a_job_counts_once_and_goes_with_the_job() -> None:
    tally = tally_of()
    tally.on_job(None, job("Pending"))
    lives(tally, "Pending", "Running", "Failed", "Failed", "Restarting", "Running", "Completed")
    values = told(tally.collect([]))
    assert values["volcano_job_failed_phase_count", TRAIN] == 1
    assert values["volcano_job_completed_phase_count", TRAIN] == 1
    tally.on_job(job("Completed"), None)
    assert not [name for name, labels in told(tally.collect([])) if labels == TRAIN]


def test_what_had_ended_before_we_began_is_not_counted() -> None:
    tally = tally_of()
    tally.on_job(None, job("Completed"))
    assert not [name for name, labels in told(tally.collect([])) if labels == TRAIN]


def test_retries_are_those_that_jobs_tell() -> None:
    values = told(tally_of().collect([job("Running", retryCount=2), job("Running", "calm")]))
    assert {key: value for key, value in values.items() if key[0] == "volcano_job_retry_counts"} == {
        ("volcano_job_retry_counts", (("job_id", "ml/train"),)): 2
    }


def test_flows_are_counted_by_namespace() -> None:
    tally = tally_of()
    tally.on_flow(flow("Running"), flow("Succeed"))
    tally.on_flow(flow("Succeed"), flow("Succeed"))
    tally.on_flow(flow(""), flow("Failed"))
    values, ml = told(tally.collect([])), (("jobflow_namespace", "ml"),)
    assert values["volcano_jobflow_succeed_phase_count", ml] == 1
    assert values["volcano_jobflow_failed_phase_count", ml] == 1


def test_how_long_pods_take_to_be_made_is_measured_in_a_jobs_first_life_only() -> None:
    tally = tally_of(job("Pending"), job("Running", "again", version=1))
    made = pod_of("train", made="2026-01-01T00:00:12Z")
    tally.on_pod(None, made)
    tally.on_pod(made, made)
    tally.on_pod(None, pod_of("train", made="2025-12-31T23:59:59Z"))
    tally.on_pod(None, pod_of("again", made="2026-01-01T00:00:12Z"))
    tally.on_pod(None, pod_of("train", made="2026-01-01T00:00:12Z", kind="ReplicaSet"))
    tally.on_pod(None, pod_of("gone", made="2026-01-01T00:00:12Z"))
    values = told(tally.collect([]))
    assert values["volcano_controller_job_to_pod_creation_latency_milliseconds_count", ()] == 1
    assert values["volcano_controller_job_to_pod_creation_latency_milliseconds_sum", ()] == 2000


def test_gangs_are_counted_by_queue_and_phase() -> None:
    def group(queue: str, phase: str) -> PodGroup:
        return msgspec.convert({"spec": {"queue": queue}, "status": {"phase": phase}}, PodGroup)

    values = told(gangs_by_queue([group("a", "Running"), group("a", "Inqueue"), group("a", "Running"), group("", "")]))
    a, default = (("queue_name", "a"),), (("queue_name", "default"),)
    assert values["volcano_queue_pod_group_running_count", a] == 2
    assert values["volcano_queue_pod_group_inqueue_count", a] == 1
    assert values["volcano_queue_pod_group_completed_count", a] == 0
    assert values["volcano_queue_pod_group_pending_count", default] == 1


def test_a_work_queue_tells_what_waits_what_is_worked_on_and_what_was_put_back() -> None:
    async def story() -> Labelled:
        queue, metrics = WorkQueue(dice=random.Random(1)), QueueMetrics()
        metrics.tell_of("job", queue)
        for name in "abc":
            queue.add(("ns", name))
        queue.add(("ns", "a"))
        first = await queue.get()
        second = await queue.get()
        assert first is not None
        assert second is not None
        queue.add_failed(first)
        queue.done(first)
        values = told(metrics.collect())
        queue.close()
        return values

    values, name = asyncio.run(story()), (("name", "job"),)
    assert values["workqueue_adds_total", name] == 3
    assert values["workqueue_depth", name] == 1
    assert values["workqueue_queue_duration_seconds_count", name] == 2
    assert values["workqueue_work_duration_seconds_count", name] == 1
    assert values["workqueue_retries_total", name] == 1
    assert (
        values["workqueue_unfinished_work_seconds", name] == values["workqueue_longest_running_processor_seconds", name]
    )
    assert ("workqueue_queue_duration_seconds_bucket", (("le", "1e-08"), *name)) in values


def test_a_queue_that_is_gone_is_told_of_no_more() -> None:
    metrics = QueueMetrics()
    metrics.tell_of("job", WorkQueue())
    assert not [key for key in told(metrics.collect()) if key[1]]


def test_every_metric_has_its_row_on_the_reference_page() -> None:
    rows = re.findall(r"^\|.*\|$", PAGE.read_text(), re.MULTILINE)
    wanted = metric_rows((*FAMILIES, *OF_WORK_QUEUES)).splitlines()
    assert set(wanted) <= set(rows), "run `make gen`, or python tools/gen.py --docs"


def test_the_registry_tells_of_work_queues() -> None:
    assert "workqueue_adds_total" in generate_latest(REGISTRY).decode()
