"""The words that `hekla why` takes, and what it says where nobody can be asked."""

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from hekla.api.explanation import EXPLANATION, SCHEDULER
from hekla.cli.commands.why import _explained, explanation_name
from hekla.cli.connection import warnings_on_stderr
from hekla.cli.main import CommandError
from hekla.cli.why_asking import SCHEDULED, _kinds, _names, answered, of_scheduler, word_for
from hekla.cli.why_text import _why
from hekla.kube.errors import ApiError, NotFoundError, TransportError

WORDS = {
    "pod": "pod pods po Pod pods.v1",
    "podgroup": "podgroup podgroups pg PodGroup podgroup.scheduling.volcano.sh pg.v1beta1.scheduling.volcano.sh",
    "queue": "queue queues q queues.scheduling.volcano.sh",
    "vcjob": "vcjob vcjobs vj job jobs job.batch.volcano.sh jobs.v1alpha1.batch.volcano.sh vcjobs.batch.volcano.sh",
    "batchjob": "job.batch jobs.batch job.v1.batch",
    "batchcronjob": "cj cronjob.batch cronjobs.v1.batch cj.batch",
    "cronjob": "cronjob cronjobs cronvj cronjob.batch.volcano.sh",
    "deployment": "deploy deployments deployment.apps deployments.v1.apps",
    "modelroute": "modelroute modelroutes modelroute.networking.serving.volcano.sh",
    "autoscalingpolicy": "autoscalingpolicy autoscalingpolicies autoscalingpolicy.workload.serving.volcano.sh",
    "": "job.apps vcjob.batch pod.apps queue.v1 node service",
}


@pytest.mark.parametrize(("word", "kinds"), WORDS.items())
def test_kinds_are_known_by_the_names_that_kubectl_takes(word: str, kinds: str) -> None:
    assert {word_for(kind) for kind in kinds.split()} == {word}


def test_the_usual_words_are_those_of_the_kinds() -> None:
    for usual, word in SCHEDULED.items():
        assert usual in next(_names(one, info) for one, info in _kinds() if one == word)


def test_what_cannot_be_explained_is_told_what_can() -> None:
    assert explanation_name(["job.batch.volcano.sh", "train"]) == "vcjob.train"
    with pytest.raises(CommandError, match=r'a "job\.apps" cannot be explained; ask about a pod'):
        explanation_name(["job.apps", "train"])


class Server:
    """A server with one running Volcano job, which may know of explanations."""

    def __init__(self, of_explanations: ApiError | None) -> None:
        self._of_explanations = of_explanations

    async def request(self, method: str, path: str) -> dict[str, Any]:
        if path != f"/apis/{EXPLANATION.group}/{EXPLANATION.version}":
            raise NotFoundError(404, "NotFound", "the server could not find the requested resource")
        if self._of_explanations is not None:
            raise self._of_explanations
        return {}

    async def get_document(self, kind: object, name: str, namespace: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": namespace}, "status": {"state": {"phase": "Completed"}}}


class Closed:
    """What lists no names for a misspelt one."""

    async def send(self, request: object) -> None:
        raise TransportError("closed")


def told(of_explanations: ApiError | None, name: str) -> str:
    connection = SimpleNamespace(client=Server(of_explanations), transport=Closed(), default_namespace="default")
    with pytest.raises((CommandError, ApiError)) as refusal:
        asyncio.run(_explained(cast(Any, connection), name, ""))
    return str(refusal.value)


@pytest.mark.parametrize("name", ["vcjob.train", "pod.train-0", "queue.default"])
def test_where_no_scheduler_answers_that_is_said_instead_of_a_404(name: str) -> None:
    said = told(NotFoundError(404, "NotFound", "the server could not find the requested resource"), name)
    assert said.startswith("nobody answers here why something waits")


def test_where_one_does_its_own_words_count() -> None:
    assert "is over (Completed)" in told(None, "vcjob.train")
    assert told(None, "pod.train-0") == "the server could not find the requested resource"
    assert "is over (Completed)" in told(ApiError(403, "Forbidden", "may not look"), "vcjob.train")


def test_a_job_whose_pods_ask_for_another_scheduler_is_not_said_to_have_no_group() -> None:
    class Elsewhere(Server):
        async def request(self, method: str, path: str) -> dict[str, Any]:
            if path.endswith("vcjob.train"):
                raise NotFoundError(
                    404, "NotFound", 'the pods of vcjob "train" ask for the scheduler "team-a", which is not this one'
                )
            return {}

    connection = SimpleNamespace(client=Elsewhere(None), transport=Closed(), default_namespace="default")
    with pytest.raises(NotFoundError, match='ask for the scheduler "team-a"'):
        asyncio.run(_explained(cast(Any, connection), "vcjob.train", ""))


class TwoSchedulers:
    """A server behind which `volcano` answers as v1, and `team-a` as its own version, if at all."""

    def __init__(self, of_team_a: dict[str, Any] | ApiError) -> None:
        self._of_team_a = of_team_a

    async def request(self, method: str, path: str) -> dict[str, Any]:
        if "/team-a/" not in path:
            raise NotFoundError(404, "NotFound", 'pod "p" asks for the scheduler "team-a", which is not this one')
        if isinstance(self._of_team_a, ApiError):
            raise self._of_team_a
        return self._of_team_a


@pytest.mark.parametrize(
    ("of_team_a", "said"),
    [
        (NotFoundError(404, "NotFound", "the server could not find the requested resource"), "asks for the scheduler"),
        (NotFoundError(404, "NotFound", 'pod "p" waits for its PodGroup'), "waits for its PodGroup"),
        (ApiError(503, "ServiceUnavailable", "no endpoints"), "no endpoints"),
    ],
)
def test_of_a_pod_of_another_scheduler_that_one_is_asked(of_team_a: ApiError, said: str) -> None:
    def asked(client: TwoSchedulers) -> dict[str, Any]:
        return asyncio.run(answered(cast(Any, SimpleNamespace(client=client)), EXPLANATION, "default", "pod.p"))

    assert asked(TwoSchedulers({"verdict": "Waits"})) == {"verdict": "Waits"}
    with pytest.raises(ApiError, match=said):
        asked(TwoSchedulers(of_team_a))


@pytest.mark.parametrize("has_its_own_place", [False, True])
def test_a_scheduler_is_asked_of_itself_at_its_own_place_or_at_the_usual_one(has_its_own_place: bool) -> None:
    asked = []

    class Server:
        async def request(self, method: str, path: str) -> dict[str, Any]:
            asked.append(path)
            if "/team-a/" in path and not has_its_own_place:
                raise NotFoundError(404, "NotFound", "the server could not find the requested resource")
            return {}

    asyncio.run(of_scheduler(cast(Any, SimpleNamespace(client=Server())), SCHEDULER, "team-a"))
    own = "/apis/scheduling.hekla.dev/team-a/schedulers/team-a"
    assert asked == ([own] if has_its_own_place else [own, "/apis/scheduling.hekla.dev/v1/schedulers/team-a"])


class Refuses:
    """A server whose scheduler misses pods of a job, and whose events say why there are none."""

    EVENT: ClassVar = {
        "reason": "FailedCreate", "message": 'Error creating: pods "t-0" is forbidden: exceeded quota: q', "count": 3,
        "firstTimestamp": "2026-11-28T15:00:00Z", "lastTimestamp": "2999-01-01T00:00:00Z",
    }  # fmt: skip

    async def request(self, method: str, path: str) -> dict[str, Any]:
        return {
            "verdict": "Waits", "message": "", "refusal": {"code": "NotEnoughPodsOfTask", "message": "job has 0 pods"},
        }  # fmt: skip

    async def get_document(self, kind: object, name: str, namespace: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": namespace, "uid": "of-now"}}

    async def list_documents(self, kind: object, namespace: str, *, field_selector: str) -> SimpleNamespace:
        assert field_selector == "reason=FailedCreate,involvedObject.name=train"
        about = [{"kind": "Job", "name": "train", "uid": uid} for uid in ("of-yesterday", "of-now")]
        return SimpleNamespace(items=[{**self.EVENT, "involvedObject": one} for one in about])


def test_of_a_job_whose_pods_are_refused_the_servers_reason_is_told() -> None:
    connection = SimpleNamespace(client=Refuses(), default_namespace="default")
    found = asyncio.run(_explained(cast(Any, connection), "vcjob.train", ""))
    [one] = found["refusals"]
    assert (one["object"], one["times"]) == ("job/train", 3)
    lines = list(_why({**found, "nodes": None, "lacks": []}))
    assert lines[-1].startswith('  refused Error creating: pods "t-0" is forbidden: exceeded quota: q (3 times since ')
    lines = list(_why({**found, "gang": {"pods": 2}, "nodes": None, "lacks": []}))
    assert "plug-in resourcequota" in lines[-1], "those that hold a part may wait for those that hold the rest"


class RefusesAndFails(Refuses):
    """The same, and its events cannot be had."""

    async def list_documents(self, kind: object, namespace: str, *, field_selector: str) -> SimpleNamespace:
        raise ApiError(503, "ServiceUnavailable", "the store is away")


def test_an_answer_stands_without_the_events_that_cannot_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    connection = SimpleNamespace(client=RefusesAndFails(), default_namespace="default")
    with warnings_on_stderr():
        found = asyncio.run(_explained(cast(Any, connection), "vcjob.train", ""))
    assert (found["verdict"], found["refusals"]) == ("Waits", [])
    assert capsys.readouterr().err == "Warning: what events say is missing here: the store is away\n"
