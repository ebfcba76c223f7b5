"""Whether a node gives a claimed pod its variables once for each container, keeps trying while it cannot, and says what came of it."""

from pathlib import Path
from typing import Any

import pytest

from hekla.api.agents.names import ENVIRONMENT_CONDITION, LATE_ENVIRONMENT
from hekla.api.agents.node_contract import Claim, Claimed
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.kube.api_client import ApiClient
from hekla.kube.in_process import InProcessTransport
from hekla.node.images import ImageRegistry
from hekla.node.late_environment import LateEnvironments
from hekla.node.runtimes.sandbox import SandboxError
from hekla.testing import virtual_time
from hekla.testing.server import api_server


class Desk:
    """Claims that are refused as a test says, then taken."""

    def __init__(self, *refusals: int) -> None:
        self.refusals, self.claims = list(refusals), list[Claim]()

    async def claim(self, namespace: str, pod: str, claim: Claim) -> Claimed:
        if self.refusals:
            raise SandboxError(self.refusals.pop(0), "not now")
        self.claims.append(claim)
        return Claimed(pod_uid=pod, session=claim.session)


def pod_with(note: str, container: Document) -> Document:
    owner = {
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "name": "box",
        "uid": "box-uid",
        "controller": True,
    }
    metadata = {"name": "box", "annotations": {LATE_ENVIRONMENT: note}, "ownerReferences": [owner]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "main", **container}]},
    }


def outcome(
    tmp_path: Path, desk: Desk, note: str = '{"A":"1"}', container: Document | None = None, restarts: int = 0
) -> list[tuple[str, str, str]]:
    """What the pod's condition says, each time its container began anew."""
    told: list[tuple[str, str, str]] = []

    async def scenario() -> None:
        async with api_server() as server:
            client = ApiClient(InProcessTransport(server.handle))
            await client.create(Pod, pod_with(note, container or {"image": "python"}), "default")
            late = LateEnvironments(client, desk, ImageRegistry.of_directory(tmp_path), lambda: 0.0)
            for number in range(restarts + 1):
                status: dict[str, Any] = {"phase": "Running", "containerStatuses": [state(f"c{number}")]}
                pod = await client.patch(Pod, "box", {"status": status}, "default", subresource="status")
                work = late.look(pod)
                assert work is not None
                assert late.look(pod) is None, "one at a time"
                await work
                after = await client.get(Pod, "box", "default")
                assert late.look(after) is None, "once for each container"
                told.extend(
                    (one.status, one.reason, one.message)
                    for one in after.status.conditions
                    if one.type == ENVIRONMENT_CONDITION
                )

    virtual_time.run(scenario())
    return told


def state(container: str) -> Document:
    return {
        "name": "main", "image": "", "imageID": "", "restartCount": 0, "ready": True, "containerID": container,
    }  # fmt: skip


def test_each_container_is_given_them_once_whatever_came_in_between(tmp_path: Path) -> None:
    desk = Desk(503, 503)
    assert outcome(tmp_path, desk, restarts=1) == [("True", "Given", "c0"), ("True", "Given", "c1")]
    assert [(one.session, one.env) for one in desk.claims] == [("box-uid", {"A": "1"})] * 2


@pytest.mark.parametrize(
    ("refusals", "note", "container", "reason"),
    [
        ((409,), '{"A":"1"}', {"image": "python"}, "ClaimedByAnother"),
        ((), '{"A":1}', {"image": "python"}, "Unreadable"),
        ((), "{", {"image": "python"}, "Unreadable"),
        ((), '{"A":"1"}', {"image": "python", "command": ["serve"]}, "OwnCommand"),
        ((), '{"A":"1"}', {"image": "registered"}, "OwnCommand"),
    ],
)
def test_where_it_cannot_be_given_the_reason_is_told(
    tmp_path: Path, refusals: tuple[int, ...], note: str, container: Document, reason: str
) -> None:
    root = tmp_path / "registered" / "latest"
    root.mkdir(parents=True)
    (root / ".command").write_text("serve\n")
    desk = Desk(*refusals)
    assert outcome(tmp_path, desk, note, container) == [("False", reason, "c0")]
    assert desk.claims == []
