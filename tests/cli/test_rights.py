import asyncio
from typing import Any, cast

import pytest

from hekla.app.standalone.user_manifests import user_roles
from hekla.cli.connection import Connection
from hekla.cli.rights import rights_hint
from hekla.cli.volcano.queues import queues_with_counts
from hekla.kube.client import Page
from hekla.kube.errors import ApiError

QUEUES = 'resource "queues" in API group "scheduling.volcano.sh" at the cluster scope'
JOBS = 'resource "jobs" in API group "batch.volcano.sh"'


@pytest.mark.parametrize(
    ("refused", "hint"),
    [
        (
            f'User "dev" cannot list {QUEUES}',
            "clusterrolebinding dev-hekla-cluster-view --clusterrole=hekla-cluster-view --user=dev`",
        ),
        (
            f'User "dev" cannot patch {QUEUES}',
            "clusterrolebinding dev-hekla-cluster-edit --clusterrole=hekla-cluster-edit --user=dev`",
        ),
        (
            f'User "Jo@x.org" cannot create {JOBS} in the namespace "ml"',
            "rolebinding jo-x.org-edit --clusterrole=edit --user=Jo@x.org -n ml`",
        ),
        (
            f'User "system:serviceaccount:ci:bot" cannot list {JOBS} in the namespace "ml"',
            "rolebinding bot-view --clusterrole=view --serviceaccount=ci:bot -n ml`",
        ),
        (
            f'User "dev" cannot list {JOBS} at the cluster scope',
            "--user=dev`, or of one namespace with a rolebinding there: ask with -n",
        ),
    ],
)
def test_who_may_not_hears_which_role_gives_the_right(refused: str, hint: str) -> None:
    assert rights_hint(f"it is forbidden: {refused}").endswith(hint)


def test_a_snapshot_is_of_those_who_may_change_queues() -> None:
    refused = 'User "dev" cannot get resource "snapshots" in API group "scheduling.hekla.dev" at the cluster scope'
    assert "--clusterrole=hekla-cluster-edit " in rights_hint(refused)


def test_what_no_role_for_users_has_is_refused_without_advice() -> None:
    assert rights_hint('User "dev" cannot list resource "nodes" in API group "" at the cluster scope') == ""
    assert rights_hint("pods is forbidden: exceeded quota") == ""


def test_the_roles_that_are_named_are_installed() -> None:
    named = {one["metadata"]["name"] for one in user_roles({})}
    assert {"hekla-cluster-view", "hekla-cluster-edit"} <= named


class QueuesOnly:
    """A client of somebody who may look at queues and at nobody's gangs."""

    async def list_documents(self, kind: Any, namespace: str = "", *, label_selector: str = "") -> Page[Any]:
        if kind.plural == "podgroups":
            raise ApiError(403, "Forbidden", "podgroups is forbidden")
        return Page([{"metadata": {"name": "ml"}, "status": {"running": 3}}], "1")


def test_who_sees_queues_and_no_gangs_is_shown_the_counts_of_the_controllers() -> None:
    link = cast("Connection", type("Link", (), {"client": QueuesOnly()}))
    [queue] = asyncio.run(queues_with_counts(link))
    assert queue["status"]["running"] == 3
