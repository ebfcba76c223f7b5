"""The shape of a job plug-in: arguments as a frozen dataclass, objects that belong to the job, a hand on each new pod.

Arguments come as Volcano's command-line flags (`--port=23456`); a field's name with dashes is the flag, unless the field
says otherwise. `registry.py` finds the plug-ins that a job names.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, fields
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from hekla.api.meta import Document, Resource
from hekla.api.volcano import Job
from hekla.api.volcano.batch import TaskSpec
from hekla.lib.digits import whole_number


class Owned(NamedTuple):
    """An object that a plug-in wants to exist."""

    kind: type[Resource]
    document: Document
    """Without owner and namespace."""

    filled_by: Callable[[Document], Document] | None = None
    """What adds to the document, once, when it is made (`Create.filled_by`)."""


class JobPlugin(Protocol):
    """Gives the pods of a job what a kind of training needs."""

    name: ClassVar[str]

    def objects(self, job: Job) -> Iterator[Owned]:
        """What must exist as long as the job runs."""

    def decorate(self, pod: Document, job: Job, task: TaskSpec, index: int) -> None:
        """Change a pod that is about to be created."""


class ArgumentError(ValueError):
    """A plug-in was given an argument that it does not understand."""


P = TypeVar("P")


def with_arguments(plugin: type[P], arguments: Sequence[str]) -> P:
    """The plug-in with its flags read as Go's `flag` package reads them; ArgumentError names the first bad one."""
    known = {_flag(field): field for field in fields(plugin)}  # type: ignore[arg-type]  # plug-ins are dataclasses
    given: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        name, has_value, text = word.lstrip("-").partition("=")
        field = known.get(name)
        if field is None or not word.startswith("-"):
            allowed = ", ".join(f"--{one}" for one in known) or "no arguments"
            raise ArgumentError(f'job plugin "{_name(plugin)}" does not know the argument "{word}"; it takes {allowed}')
        if not has_value:
            text = "true" if field.type is bool else next(words, "")
        given[field.name] = _value(plugin, field, word, text)
    return plugin(**given)


def containers(pod: Document, *, init: bool = True) -> Iterator[Document]:
    """The pod's containers, init containers last."""
    yield from pod["spec"].get("containers", ())
    if init:
        yield from pod["spec"].get("initContainers", ())


def add_env(container: Document, *variables: Document) -> None:
    """Append environment variables."""
    container.setdefault("env", []).extend(variables)


def open_port(container: Document, name: str, port: int) -> None:
    """Declare a port unless it is declared."""
    ports = container.setdefault("ports", [])
    if all(one.get("containerPort") != port for one in ports):
        ports.append({"name": name, "containerPort": port})


def host_names(job: Job, task: TaskSpec) -> Iterator[str]:
    """The names by which the pods of a task find one another; a task with a fixed hostname has one."""
    spec = task.template.get("spec", {})
    subdomain = spec.get("subdomain") or job.metadata.name
    if spec.get("hostname"):
        if task.replicas:
            yield f"{spec['hostname']}.{subdomain}"
        return
    for index in range(task.replicas):
        yield f"{job.metadata.name}-{task.name}-{index}.{subdomain}"


def task_named(job: Job, name: str) -> TaskSpec | None:
    """The job's task of this name."""
    return next((task for task in job.spec.tasks if task.name == name), None)


def _flag(field: Field[Any]) -> str:
    return str(field.metadata.get("flag") or field.name.replace("_", "-"))


def _name(plugin: type[Any]) -> str:
    return str(plugin.name)


def _value(plugin: type[Any], field: Field[Any], word: str, text: str) -> bool | int | str:
    if field.type is bool and text.lower() in ("true", "t", "1", "false", "f", "0"):
        return text.lower() in ("true", "t", "1")
    if field.type is int and (number := whole_number(text)) is not None:
        return number
    if field.type is str:
        return text
    wanted = "true or false" if field.type is bool else "a number"
    raise ArgumentError(f'job plugin "{_name(plugin)}" cannot read the argument "{word}"; give {wanted}')
