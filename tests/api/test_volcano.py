import msgspec
import pytest

from hekla.api.meta import KINDS, Scope
from hekla.api.volcano import VOLCANO_KINDS, Job, PodGroup, Queue
from hekla.api.volcano.batch import JobPhase

JOB = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train, namespace: ml}
spec:
  minAvailable: 2
  schedulerName: volcano
  plugins: {env: [], svc: []}
  policies: [{event: PodEvicted, action: RestartJob, timeout: 30s}]
  tasks:
  - name: worker
    replicas: 2
    policies: [{events: [TaskCompleted], action: CompleteJob}]
    template: {spec: {containers: [{name: main, image: python}], aFieldOfTomorrow: kept}}
"""


def test_a_volcano_manifest_reads_as_a_job() -> None:
    job = msgspec.yaml.decode(JOB, type=Job)
    assert job.spec.min_available == 2
    assert job.spec.tasks[0].template["spec"]["aFieldOfTomorrow"] == "kept"
    assert job.spec.policies[0].timeout == "30s"
    assert (job.spec.queue, job.spec.max_retry, job.status.state.phase) == ("default", 3, "")


def test_a_status_from_tomorrow_is_still_read() -> None:
    job = msgspec.convert({"status": {"state": {"phase": "Dreaming"}, "running": -1}}, Job)
    assert job.status.state.phase == "Dreaming"


def test_pod_group_status_is_not_a_subresource() -> None:
    assert not PodGroup.kind_info.has_status
    assert Queue.kind_info.scope is Scope.CLUSTER
    assert (
        Job.kind_info.path("ml", "train", "status") == "/apis/batch.volcano.sh/v1alpha1/namespaces/ml/jobs/train/status"
    )


@pytest.mark.parametrize("kind", VOLCANO_KINDS, ids=lambda kind: kind.kind_info.resource)
def test_every_volcano_kind_is_declared_and_documented(kind: type) -> None:
    info = kind.kind_info
    assert KINDS[f"{info.resource}/{info.version}"] is kind
    assert kind.__doc__
    assert kind() == msgspec.convert({}, kind)


def test_quantities_may_be_numbers_or_text() -> None:
    queue = msgspec.convert({"spec": {"capability": {"cpu": 4, "memory": "8Gi"}}}, Queue)
    assert queue.spec.capability == {"cpu": 4, "memory": "8Gi"}


def test_phases_are_volcanos_words() -> None:
    assert list(JobPhase)[:2] == ["Pending", "Aborting"]
