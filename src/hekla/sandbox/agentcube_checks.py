"""What makes no sense of AgentCube's objects though their schema lets it in: no session is begun with it, and their conditions say so.

Pure. `agent_runtime.py` and `code_interpreter.py` tell of it, `sessions/kube_stock.py` refuses by it.
"""

from collections.abc import Iterator

from hekla.api.agents import AgentRuntime, CodeInterpreter, names
from hekla.api.agents.agentcube import TargetPort
from hekla.api.agents.egress import secrets_trouble, trouble_of
from hekla.api.agents.node_contract import EGRESS_SECRETS
from hekla.lib.go_duration import DurationError, parse_duration

MOST_PORT = 65_535


def interpreter_trouble(one: CodeInterpreter) -> str:
    """Of a CodeInterpreter; empty: nothing."""
    spec = one.spec
    troubles = (*_times(spec.session_timeout, spec.max_session_duration), *_ports(spec.ports, "spec.ports"))
    return next(iter((*troubles, *_egress(one.metadata.annotations))), "")


def runtime_trouble(one: AgentRuntime) -> str:
    """Of an AgentRuntime; empty: nothing."""
    spec = one.spec
    if not spec.pod_template.spec.get("containers"):
        return "spec.podTemplate.spec.containers is empty: an agent needs a container"
    if not spec.target_ports:
        return "spec.targetPort is empty: requests need a port to go to"
    troubles = (*_times(spec.session_timeout, spec.max_session_duration), *_ports(spec.target_ports, "spec.targetPort"))
    return next(iter((*troubles, *_egress(one.metadata.annotations))), "")


def _times(session_timeout: str, max_session_duration: str) -> Iterator[str]:
    for name, text in (("sessionTimeout", session_timeout), ("maxSessionDuration", max_session_duration)):
        try:
            is_negative = bool(text) and parse_duration(text).total_seconds() < 0
        except DurationError as error:
            yield f"spec.{name}: {error}"
            continue
        if is_negative:
            yield f'spec.{name} is "{text}"; write a duration from 0s on, such as "15m"'


def _ports(ports: list[TargetPort], field: str) -> Iterator[str]:
    for number, one in enumerate(ports):
        if not 0 < one.port <= MOST_PORT:
            yield f"{field}[{number}].port is {one.port}; write 1 to {MOST_PORT}"


def _egress(annotations: dict[str, str]) -> Iterator[str]:
    if wrong := trouble_of(annotations.get(names.EGRESS, "")):
        yield f"annotation {names.EGRESS}: {wrong}"
    elif wrong := secrets_trouble(annotations.get(names.EGRESS, ""), annotations.get(EGRESS_SECRETS, "")):
        yield wrong
