import copy
from typing import Any

import msgspec
import pytest

from hekla.api.pods import Pod
from hekla.dialects.kubernetes import task_spec
from hekla.dialects.surroundings import EmptySurroundings
from hekla.placement.model import TaskSpec

CONTAINER = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
PLAIN: dict[str, Any] = {"containers": [CONTAINER]}


def spec_of(spec: dict[str, Any]) -> TaskSpec:
    document = {"metadata": {"name": "p", "namespace": "default", "uid": "p"}, "spec": copy.deepcopy(spec)}
    return task_spec(msgspec.convert(document, Pod), EmptySurroundings())


def demands(spec: dict[str, Any]) -> Any:
    task = spec_of(spec)
    return task.request, task.constraints


HELPER = {"initContainers": [CONTAINER]}
SERVER = {"containers": [{**CONTAINER, "ports": [{"containerPort": 80}]}]}


@pytest.mark.parametrize(
    ("base", "change"),
    [
        (PLAIN, {"nodeSelector": {"disk": "ssd"}}),
        (PLAIN, {"tolerations": [{"operator": "Exists"}]}),
        (PLAIN, {"overhead": {"cpu": "1"}}),
        (PLAIN, {"resources": {"requests": {"cpu": "7"}}}),
        (PLAIN, {"initContainers": [{**CONTAINER, "resources": {"requests": {"cpu": "9"}}}]}),
        (HELPER, {"initContainers": [{**CONTAINER, "restartPolicy": "Always"}]}),
        (PLAIN, {"containers": [{**CONTAINER, "ports": [{"containerPort": 80, "hostPort": 80}]}]}),
        (PLAIN, {"containers": [{**CONTAINER, "image": "another"}]}),
        (PLAIN, {"containers": [CONTAINER, CONTAINER]}),
        (SERVER, {"hostNetwork": True}),
    ],
)
def test_pods_that_differ_in_one_demand_are_never_taken_for_the_same(
    base: dict[str, Any], change: dict[str, Any]
) -> None:
    plain = demands(PLAIN | base)  # remembered, so that what follows could be mistaken for it
    assert demands(PLAIN | base | change) != plain
    assert demands(PLAIN | base) == plain
