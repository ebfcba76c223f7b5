"""What a packed agent becomes on a platform: a ConfigMap with its code, and the AgentRuntime whose sessions run it.

A ConfigMap is named after what is in it and never changes, so sessions of an earlier version keep theirs. Its owner is the AgentRuntime.
"""

import base64
from dataclasses import dataclass

from hekla.api.agents import AgentRuntime, names
from hekla.api.meta import Document
from hekla.cli.agent_artefact import INSIDE, PACKAGES, Agent, digest
from hekla.cli.main import EXIT_USAGE, CommandError

MOST_IN_A_MAP = 1024 * 1024 - 16 * 1024
"""Bytes that Kubernetes lets a ConfigMap hold, less what stands around them."""

OF_AGENT = "hekla.dev/agent"
"""Label of a ConfigMap: the agent whose code it has."""

BASE_IMAGE = "hekla/code-interpreter"
_PLACE, _FILE = "/hekla-agent", "agent.tar.gz"

BEGIN = f"""\
import io, os, sys, tarfile, tempfile
with open(sys.argv[1], "rb") as file:
    data = io.BytesIO(file.read())
place = tempfile.mkdtemp(prefix="agent-")
with tarfile.open(fileobj=data, mode="r:gz") as archive:
    archive.extractall(place, **({{"filter": "data"}} if hasattr(tarfile, "data_filter") else {{}}))
place = os.path.join(place, "{INSIDE}")
os.chdir(place)
paths = [os.path.join(place, "{PACKAGES}"), place, os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
argv = sys.argv[2:]
if argv[0] in ("python", "python3"):
    argv[0] = sys.executable
os.execvp(argv[0], argv)
"""
"""What a container of an agent does first: unpack the code, and become its program."""


@dataclass(frozen=True, kw_only=True)
class Publication:
    """How an agent is published."""

    namespace: str
    image: str = ""
    """An image with the agent inside; empty: its code comes by a ConfigMap."""

    base_image: str = ""
    """What the code runs in; empty: what Hekla's nodes bring."""

    session_timeout: str = "15m"
    max_session_duration: str = "8h"
    egress: str = ""
    queue: str = ""


def code_map(agent: Agent, data: bytes, how: Publication) -> Document:
    """The ConfigMap with the code. Raises CommandError where it has no room for it."""
    if len(data) * 4 // 3 > MOST_IN_A_MAP:
        raise CommandError(
            f'agent "{agent.agent_name}" packs to {len(data) / 2**20:.1f} MiB, and a ConfigMap has room for '
            f"{MOST_IN_A_MAP * 3 // 4 / 2**20:.1f}; leave files out, or build an image of the directory and say --image-url"
        )
    labels = {OF_AGENT: agent.agent_name, names.MANAGED_BY: "hekla"}
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "immutable": True,
        "metadata": {"name": map_name(agent, data), "namespace": how.namespace, "labels": labels},
        "binaryData": {_FILE: base64.b64encode(data).decode()},
    }  # fmt: skip


def map_name(agent: Agent, data: bytes) -> str:
    """The name of the ConfigMap with an agent's code."""
    return f"agent-{agent.agent_name}-{digest(data)[:10]}"


def runtime(agent: Agent, data: bytes, how: Publication) -> Document:
    """The AgentRuntime. Raises CommandError."""
    if agent.language != "python" and not how.image and not how.base_image:
        raise CommandError(
            f'agent "{agent.agent_name}" is written in {agent.language}, which no node brings; '
            "say --base-image with an image that has it, or --image-url with one that has the agent inside",
            EXIT_USAGE,
        )
    annotations = {names.EGRESS: how.egress, names.QUEUE: how.queue, "hekla.dev/agent-version": agent.version}
    info = AgentRuntime.kind_info
    return {
        "apiVersion": info.api_version, "kind": info.kind,
        "metadata": {
            "name": agent.agent_name, "namespace": how.namespace, "labels": {OF_AGENT: agent.agent_name},
            "annotations": {key: text for key, text in annotations.items() if text},
        },
        "spec": {
            "targetPort": [{"pathPrefix": "/", "port": agent.port, "protocol": "HTTP"}],
            "podTemplate": {"labels": {OF_AGENT: agent.agent_name}, "spec": _pod(agent, data, how)},
            "sessionTimeout": how.session_timeout, "maxSessionDuration": how.max_session_duration,
        },
    }  # fmt: skip


def _pod(agent: Agent, data: bytes, how: Publication) -> Document:
    port = agent.readiness_probe_port or agent.port
    ready = (
        {"httpGet": {"path": agent.readiness_probe_path, "port": port}}
        if agent.readiness_probe_path
        else {"tcpSocket": {"port": port}}
    )
    container: Document = {
        "name": "agent", "image": how.image or how.base_image or BASE_IMAGE, "ports": [{"containerPort": agent.port}],
        "env": [{"name": name, "value": text} for name, text in sorted({"PORT": f"{agent.port}", **agent.env}.items())],
        "readinessProbe": {**ready, "periodSeconds": 1},
    }  # fmt: skip
    if how.image:
        return {"containers": [{**container, "command": list(agent.entrypoint)}]}
    container["command"] = ["python3", "-c", BEGIN, f"{_PLACE}/{_FILE}", *agent.entrypoint]
    container["volumeMounts"] = [{"name": "code", "mountPath": _PLACE, "readOnly": True}]
    return {"containers": [container], "volumes": [{"name": "code", "configMap": {"name": map_name(agent, data)}}]}
