"""Say how many replicas there are to be.

Examples:

  hekla scale deployment/web --replicas 3

  hekla scale statefulset db --replicas 0 --current-replicas 1
"""

from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli import completion
from hekla.cli.options import Kubeconfig, Namespace, Selector

if TYPE_CHECKING:
    from hekla.cli.connection import Connection
    from hekla.cli.targets import Target


def run(
    words: Annotated[
        list[str],
        typer.Argument(metavar="TYPE[/NAME] [NAME...]", show_default=False, autocompletion=completion.types_and_names),
    ],
    replicas: Annotated[int, typer.Option("--replicas", min=0, help="How many there are to be.", show_default=False)],
    current: Annotated[int, typer.Option("--current-replicas", help="Only if there are so many now; -1: always.")] = -1,
    namespace: Namespace = "",
    selector: Selector = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Change numbers of replicas."""
    from hekla.cli.connection import run_connected
    from hekla.cli.targets import targets_of

    async def work(connection: "Connection") -> None:
        for target in await targets_of(connection, words, namespace, selector=selector):
            await _scale(connection, target, replicas, current)

    run_connected(kubeconfig, work)


async def _scale(connection: "Connection", target: "Target", replicas: int, current: int) -> None:
    from hekla.cli.main import CommandError
    from hekla.cli.metadata_edits import MERGE_PATCH

    if "scale" not in target.served.subresources:
        raise CommandError(f"{target.label} cannot be scaled: its kind has no scale subresource; use `hekla patch`")
    patch: dict[str, object] = {"spec": {"replicas": replicas}}
    if current >= 0:
        found = await connection.client.request("GET", f"{target.path}/scale")
        if found["spec"].get("replicas", 0) != current:
            raise CommandError(f"{target.label} has {found['spec'].get('replicas', 0)} replicas, not {current}")
        patch["metadata"] = {"resourceVersion": found["metadata"]["resourceVersion"]}
    await connection.client.request("PATCH", f"{target.path}/scale", patch, content_type=MERGE_PATCH)
    typer.echo(f"{target.label} scaled")
    for said in await _scaled_by(connection, target, replicas):
        typer.echo(f"Warning: {said}", err=True)


async def _scaled_by(connection: "Connection", target: "Target", replicas: int) -> list[str]:
    """Who will change the number again, and what to change instead; whoever may not read policies is told nothing."""
    from hekla.api.kthena import AutoscalingPolicy
    from hekla.kube.errors import KubeError
    from hekla.serving.autoscaler.units import readable_units_of

    if target.served.kind.kind != "ModelServing":
        return []
    namespace = target.path.partition("/namespaces/")[2].partition("/")[0]
    try:
        policies = (await connection.client.list(AutoscalingPolicy, namespace)).items
    except KubeError:
        return []
    return [
        f'autoscalingpolicy "{policy.metadata.name}" scales {target.label} between {unit.least} and {unit.most} and will change '
        f"the number again; to keep {replicas}, set minReplicas and maxReplicas of the policy to {replicas}, or delete it"
        for policy in policies
        for unit in readable_units_of(policy)
        if unit.serving == target.name and not unit.role
    ]
