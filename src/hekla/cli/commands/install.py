"""Print what a Kubernetes cluster needs to run Hekla: kinds, rights, deployments, webhooks. kubectl applies it.

Examples:

  hekla install --render | kubectl apply -f -

  hekla install --render --namespace batch --image registry.example/hekla:0.1.0 --replicas 3

  hekla install --render --without webhooks --without crds

  hekla install --render --with node

  hekla install --render --scheduler-name team-a
"""

from typing import Annotated

import typer

from hekla.app.settings import docstrings_of
from hekla.app.standalone.manifests import Installation, InstallError

HELP = docstrings_of(Installation)


def run(
    render: Annotated[bool, typer.Option("--render", help="Print the manifests; nothing is sent anywhere.")] = False,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help=HELP["namespace"])] = Installation.namespace,
    image: Annotated[str, typer.Option("--image", help=HELP["image"])] = Installation.image,
    replicas: Annotated[int, typer.Option("--replicas", help=HELP["replicas"])] = Installation.replicas,
    without: Annotated[list[str], typer.Option("--without", help=HELP["without"])] = [],  # noqa: B006 - typer copies it
    also: Annotated[list[str], typer.Option("--with", help=HELP["also"])] = [],  # noqa: B006 - typer copies it
    scheduler_name: Annotated[
        list[str] | None, typer.Option("--scheduler-name", help=HELP["scheduler_names"], show_default=False)
    ] = None,
    failure_policy: Annotated[str, typer.Option("--failure-policy", help=HELP["failure_policy"])] = "Fail",
    also_ask: Annotated[list[str], typer.Option("--also-ask", help=HELP["also_ask"])] = [],  # noqa: B006 - typer copies it
) -> None:
    """Print the manifests."""
    from hekla.app.standalone.manifests import rendered
    from hekla.cli.main import EXIT_USAGE, CommandError

    if not render:
        sentence = "install only prints: run `hekla install --render | kubectl apply -f -`"
        raise CommandError(sentence, EXIT_USAGE)
    try:
        installation = Installation(
            namespace=namespace,
            image=image,
            replicas=replicas,
            without=frozenset(part for one in without for part in one.split(",") if part),
            also=frozenset(part for one in also for part in one.split(",") if part),
            scheduler_names=tuple(scheduler_name) if scheduler_name else Installation.scheduler_names,
            failure_policy=failure_policy,
            also_ask=frozenset(also_ask),
        )
    except InstallError as error:
        raise CommandError(str(error), EXIT_USAGE) from None
    typer.echo(rendered(installation), nl=False)
