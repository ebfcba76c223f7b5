"""Run Hekla's features as a process of their own against any Kubernetes: controllers, scheduler, webhooks, serving, or all.

In a pod the service account's credentials are used, elsewhere a kubeconfig. Replicas wait for a Lease and take over
when the one that leads is gone. A kind that is not installed, a right that is missing or an API server that is away is
told in the log and by /readyz, and tried again.

Examples:

  hekla run all --kubeconfig ~/.kube/config

  hekla run scheduler --scheduler-conf volcano-scheduler.conf

  hekla run controllers --namespace hekla-system --metrics-address 0.0.0.0:8080
"""

from pathlib import Path
from typing import Annotated

import typer

from hekla.app.settings import docstrings_of
from hekla.app.standalone.settings import COMPONENTS, StandaloneSettings, StandaloneSettingsError

HELP = docstrings_of(StandaloneSettings)
WORDS = (*COMPONENTS, "all")


def run(
    what: Annotated[str, typer.Argument(metavar="|".join(WORDS), show_default=False)],
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", help=HELP["kubeconfig"], show_default=False)] = "",
    namespace: Annotated[str, typer.Option("-n", "--namespace", help=HELP["namespace"])] = StandaloneSettings.namespace,
    leader_elect: Annotated[bool, typer.Option("--leader-elect/--no-leader-elect", help=HELP["leader_elect"])] = True,
    metrics_address: Annotated[
        str, typer.Option("--metrics-address", help=HELP["metrics_address"])
    ] = StandaloneSettings.metrics_address,
    webhook_address: Annotated[
        str, typer.Option("--webhook-address", help=HELP["webhook_address"])
    ] = StandaloneSettings.webhook_address,
    scheduler_conf: Annotated[
        Path | None, typer.Option("--scheduler-conf", help=HELP["scheduler_conf"], show_default=False)
    ] = None,
    scheduler_name: Annotated[
        list[str] | None, typer.Option("--scheduler-name", help=HELP["scheduler_names"], show_default=False)
    ] = None,
    every_pod_has_a_group: Annotated[
        bool, typer.Option("--groups-for-every-pod/--groups-for-gangs-only", help=HELP["every_pod_has_a_group"])
    ] = StandaloneSettings.every_pod_has_a_group,
    log_level: Annotated[str, typer.Option("--log-level", help=HELP["log_level"])] = StandaloneSettings.log_level,
) -> None:
    """Run components."""
    from hekla.cli.commands.up import checked_configuration
    from hekla.cli.main import EXIT_USAGE, CommandError

    if what not in WORDS:
        raise CommandError(f'"{what}" cannot be run; choose from {", ".join(WORDS)}', EXIT_USAGE)
    try:
        settings = StandaloneSettings(
            components=COMPONENTS if what == "all" else (what,),
            kubeconfig=kubeconfig,
            namespace=namespace,
            leader_elect=leader_elect,
            metrics_address=metrics_address,
            webhook_address=webhook_address,
            scheduler_conf=checked_configuration(scheduler_conf) if scheduler_conf else None,
            scheduler_names=tuple(scheduler_name or StandaloneSettings.scheduler_names),
            every_pod_has_a_group=every_pod_has_a_group,
            log_level=log_level,
        )
    except StandaloneSettingsError as error:
        raise CommandError(str(error), EXIT_USAGE) from None
    serve(settings)


def serve(settings: StandaloneSettings) -> None:
    """Run until a signal comes; the first one ends in good order, a second at once."""
    from hekla.app.standalone.process import StandaloneError, run_standalone
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.kube.kubeconfig import KubeconfigError

    def ready(address: str) -> None:
        typer.echo(f"hekla {', '.join(settings.components)}: health and metrics at {address}")

    try:
        run_standalone(settings, ready)
    except KubeconfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from None
    except StandaloneError as error:
        raise CommandError(str(error)) from None
