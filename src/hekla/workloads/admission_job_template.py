"""What is wrong with a task's pod template, in Kubernetes' words, so that it is said when the job is created.

The API server's own rules for a PodTemplate are asked: what it would refuse in a Deployment, it refuses in a Job.
"""

from fractions import Fraction
from functools import cache

import msgspec

from hekla.api.meta import Document
from hekla.api.volcano.batch import TaskSpec
from hekla.apiserver.fielderrors import FieldError
from hekla.apiserver.status import StatusError
from hekla.apiserver.strategies import builtin_strategies
from hekla.apiserver.strategy import Strategy
from hekla.lib import quantity


def template_errors(task: TaskSpec, position: int) -> str:
    """Everything that is wrong with a template, or that its NUMA policy asks for whole CPUs and it does not."""
    try:
        errors = [f"{error.field}: {error.message}" for error in _wrong(task)]
    except StatusError as error:
        errors = [error.message]
    if errors:
        return f"spec.task[{position}]." + "".join(f"{error}. " for error in errors)
    return _wrong_numa(task, position)


@cache
def _rules() -> Strategy:
    return builtin_strategies()["podtemplates/v1"]


def _wrong(task: TaskSpec) -> list[FieldError]:
    # A copy: the rules complete what they check, and the job is to stay as its user wrote it.
    template: Document = msgspec.json.decode(msgspec.json.encode(task.template))
    metadata = {"name": task.name, "namespace": "default"}
    whole: Document = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": template}
    _rules().check_types(whole)
    return _rules().validate_create(_rules().prepare_create(whole))


def _wrong_numa(task: TaskSpec, position: int) -> str:
    if task.topology_policy in ("", "none"):
        return ""
    spec = task.template.get("spec") or {}
    for index, container in enumerate([*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]):
        resources = container.get("resources") or {}
        asked = resources.get("requests") or resources.get("limits") or {}
        cpus = _worth(asked.get("cpu", 0))
        if cpus == 0 or cpus.denominator != 1:
            return f"the cpu request isn't an integer in spec.task[{position}] container[{index}]."
    return ""


def _worth(amount: object) -> Fraction:
    return quantity.parse(amount if isinstance(amount, int) else str(amount)).value
