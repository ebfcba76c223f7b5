import asyncio
from typing import Any, cast

import pytest

from hekla.api.storage import PersistentVolumeClaim
from hekla.controlplane.views import StatefulSet
from hekla.kube.api_client import ApiClient
from hekla.kube.commands import Create, Event, Target
from hekla.kube.errors import ApiError
from hekla.kube.execute import CommandError, Executor

OWNER = Target(kind=StatefulSet, name="db", namespace="default", uid="u")
CLAIM = {"metadata": {"name": "data-db-0", "namespace": "default"}}


class OneAnswer:
    def __init__(self, refusal: ApiError | None = None) -> None:
        self.refusal = refusal

    async def create_document(self, kind: Any, document: dict[str, Any], namespace: str) -> dict[str, Any]:
        if self.refusal is not None:
            raise self.refusal
        return document


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, event: Event, component: str = "") -> None:
        self.events.append(event)


def told(refusal: ApiError | None = None) -> list[Event]:
    heard = Heard()
    create = Create(
        PersistentVolumeClaim, CLAIM, is_announced=True, announced_as=("made", "failed error"), announced_to=OWNER
    )
    executor = Executor(cast(ApiClient, OneAnswer(refusal)), heard)
    if refusal is None:
        asyncio.run(executor.run([create]))
    else:
        with pytest.raises(CommandError):
            asyncio.run(executor.run([create]))
    return heard.events


def test_what_has_no_controller_is_announced_to_whom_the_command_names() -> None:
    assert told() == [Event(OWNER, "SuccessfulCreate", "made", "Normal")]
    refused = ApiError(403, "Forbidden", "exceeded quota: q")
    assert told(refused) == [Event(OWNER, "FailedCreate", "failed error: exceeded quota: q", "Warning")]
