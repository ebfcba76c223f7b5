"""Run Hekla's features as a process of their own against any Kubernetes: controllers, scheduler, webhooks, serving, all of
these, a router, agents (the reconcilers of sandboxes and their gateway), or a node (the agent of a virtual node, which runs
its pods as processes and sandboxes of this machine, or only pretends to).

In a pod the service account's credentials are used, elsewhere a kubeconfig. Replicas wait for a Lease and take over
when the one that leads is gone. A kind that is not installed, a right that is missing or an API server that is away is
told in the log and by /readyz, and tried again. Routers route side by side, without a Lease; they take Kthena's
environment, too (DRAIN_TIMEOUT, ACCESS_LOG_FORMAT, REDIS_HOST, FAIRNESS_* and the others).

Examples:

  hekla run all --kubeconfig ~/.kube/config

  hekla run scheduler --scheduler-conf volcano-scheduler.conf

  hekla run router --port 8080 --router-configuration routerConfiguration.yaml

  hekla run router --processes 4

  hekla run agents --agents-address 0.0.0.0:8090 --agents-keys keys.txt --node-token /run/hekla/token

  hekla run node --node-name sandboxes-1 --node-directory /var/lib/hekla

  hekla run node --runtime simulated --nodes 1000 --gpus-per-node 8

  hekla run controllers --namespace hekla-system --metrics-address 0.0.0.0:8080
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hekla.app.settings import docstrings_of
from hekla.app.standalone.agents_settings import AgentsSettings
from hekla.app.standalone.node_settings import NodeSettings
from hekla.app.standalone.settings import AGENTS, COMPONENTS, NODE, StandaloneSettings, StandaloneSettingsError
from hekla.serving.router.settings import RouterSettings

HELP = docstrings_of(StandaloneSettings)
OF_ROUTERS = docstrings_of(RouterSettings)
OF_AGENTS = docstrings_of(AgentsSettings)
OF_NODES = docstrings_of(NodeSettings)
ROUTER = "router"
WORDS = (*COMPONENTS, "all", ROUTER, AGENTS, NODE)
PANEL, AGENTS_PANEL, NODE_PANEL = "Options of a router", "Options of agents", "Options of a node"


def _of_router(flag: str, field: str) -> Any:
    return typer.Option(flag, help=OF_ROUTERS[field], rich_help_panel=PANEL, show_default=False)


def _of_agents(flag: str, field: str) -> Any:
    return typer.Option(flag, help=OF_AGENTS[field], rich_help_panel=AGENTS_PANEL, show_default=False)


def _of_nodes(flag: str, field: str) -> Any:
    return typer.Option(flag, help=OF_NODES[field], rich_help_panel=NODE_PANEL, show_default=False)


SAME_FLAGS = (
    "kubeconfig", "namespace", "leader_elect", "metrics_address", "webhook_address", "answers_address", "scheduler_conf",
    "default_queue", "every_pod_has_a_group", "sharding_mode", "sharding_name", "log_level",
)  # fmt: skip
COMPONENT_FLAGS = {**{name: name for name in SAME_FLAGS}, "scheduler_names": "scheduler_name"}
"""Settings with the parameter of `run` that brings each; those of a router, agents and a node have such tables, too."""
ROUTER_FLAGS = {
    "port": "port", "tls_cert": "tls_cert", "tls_key": "tls_key", "metrics_port": "metrics_port",
    "expose_metrics_on_router_port": "metrics_on_port", "debug_port": "debug_port", "with_gateways": "gateways",
    "configuration_file": "configuration", "api_keys_file": "api_keys", "engine_ca_file": "engine_ca",
    "tokenizer": "tokenizer", "shares_port": "share_port", "replicas_directory": "replicas", "processes": "processes",
    "compiled_choosing": "compiled_choosing", "fast_lane": "fast_lane",
}  # fmt: skip
AGENTS_FLAGS = {
    "address": "agents_address", "domain": "agents_domain", "directory": "agents_directory", "keys": "agents_keys",
    "node_token": "node_token", "tls_cert": "tls_cert", "tls_key": "tls_key", "jwt_issuer_url": "jwt_issuer_url",
    "jwt_keys_url": "jwt_keys_url", "jwt_audience": "jwt_audience", "jwt_role_claim": "jwt_role_claim",
    "jwt_required_role": "jwt_required_role", "sessions": "sessions", "sessions_per_owner": "sessions_per_owner",
}  # fmt: skip
NODE_FLAGS = {
    "name": "node_name", "count": "nodes", "runtime": "runtime", "cpu": "cpu_per_node", "memory": "memory_per_node",
    "gpus": "gpus_per_node", "pods": "pods_per_node", "labels": "node_label", "taints": "node_taint",
    "directory": "node_directory", "address": "node_address", "listen": "node_listen", "identity": "node_identity", "tls_cert": "tls_cert", "tls_key": "tls_key",
    "allows_processes": "allow_processes", "sandbox_grace_s": "sandbox_grace_s", "pod_grace_s": "pod_grace_s", "deletes_itself": "delete_node",
}  # fmt: skip


def _given(flags: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Settings by field: what was said on the command line, lists as tuples."""
    given = {field: flags[name] for field, name in names.items() if flags[name] not in (None, [])}
    return {field: tuple(value) if isinstance(value, list) else value for field, value in given.items()}


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
    answers_address: Annotated[
        str, typer.Option("--answers-address", help=HELP["answers_address"])
    ] = StandaloneSettings.answers_address,
    scheduler_conf: Annotated[
        Path | None, typer.Option("--scheduler-conf", help=HELP["scheduler_conf"], show_default=False)
    ] = None,
    scheduler_name: Annotated[
        list[str] | None, typer.Option("--scheduler-name", help=HELP["scheduler_names"], show_default=False)
    ] = None,
    default_queue: Annotated[
        str, typer.Option("--default-queue", help=HELP["default_queue"])
    ] = StandaloneSettings.default_queue,
    every_pod_has_a_group: Annotated[
        bool, typer.Option("--groups-for-every-pod/--groups-for-gangs-only", help=HELP["every_pod_has_a_group"])
    ] = StandaloneSettings.every_pod_has_a_group,
    sharding_mode: Annotated[
        str, typer.Option("--scheduler-sharding-mode", help=HELP["sharding_mode"])
    ] = StandaloneSettings.sharding_mode,
    sharding_name: Annotated[
        str, typer.Option("--scheduler-sharding-name", help=HELP["sharding_name"])
    ] = StandaloneSettings.sharding_name,
    log_level: Annotated[str, typer.Option("--log-level", help=HELP["log_level"])] = StandaloneSettings.log_level,
    port: Annotated[int | None, _of_router("--port", "port")] = None,
    tls_cert: Annotated[str | None, _of_router("--tls-cert", "tls_cert")] = None,
    tls_key: Annotated[str | None, _of_router("--tls-key", "tls_key")] = None,
    metrics_port: Annotated[int | None, _of_router("--metrics-port", "metrics_port")] = None,
    metrics_on_port: Annotated[
        bool | None, _of_router("--expose-metrics-on-router-port", "expose_metrics_on_router_port")
    ] = None,
    debug_port: Annotated[int | None, _of_router("--debug-port", "debug_port")] = None,
    gateways: Annotated[bool | None, _of_router("--enable-gateway-api", "with_gateways")] = None,
    configuration: Annotated[str | None, _of_router("--router-configuration", "configuration_file")] = None,
    api_keys: Annotated[str | None, _of_router("--api-keys", "api_keys_file")] = None,
    engine_ca: Annotated[str | None, _of_router("--engine-ca", "engine_ca_file")] = None,
    tokenizer: Annotated[str | None, _of_router("--tokenizer", "tokenizer")] = None,
    share_port: Annotated[bool | None, _of_router("--share-port", "shares_port")] = None,
    replicas: Annotated[str | None, _of_router("--replicas-directory", "replicas_directory")] = None,
    processes: Annotated[int | None, _of_router("--processes", "processes")] = None,
    compiled_choosing: Annotated[
        bool | None, _of_router("--compiled-choosing/--plain-choosing", "compiled_choosing")
    ] = None,
    fast_lane: Annotated[bool | None, _of_router("--fast-lane/--no-fast-lane", "fast_lane")] = None,
    agents_address: Annotated[str | None, _of_agents("--agents-address", "address")] = None,
    agents_domain: Annotated[str | None, _of_agents("--agents-domain", "domain")] = None,
    agents_directory: Annotated[Path | None, _of_agents("--agents-directory", "directory")] = None,
    agents_keys: Annotated[str | None, _of_agents("--agents-keys", "keys")] = None,
    node_token: Annotated[str | None, _of_agents("--node-token", "node_token")] = None,
    sessions: Annotated[int | None, _of_agents("--sessions", "sessions")] = None,
    sessions_per_owner: Annotated[int | None, _of_agents("--sessions-per-owner", "sessions_per_owner")] = None,
    jwt_issuer_url: Annotated[str | None, _of_agents("--jwt-issuer-url", "jwt_issuer_url")] = None,
    jwt_keys_url: Annotated[str | None, _of_agents("--jwt-keys-url", "jwt_keys_url")] = None,
    jwt_audience: Annotated[str | None, _of_agents("--jwt-audience", "jwt_audience")] = None,
    jwt_role_claim: Annotated[str | None, _of_agents("--jwt-role-claim", "jwt_role_claim")] = None,
    jwt_required_role: Annotated[str | None, _of_agents("--jwt-required-role", "jwt_required_role")] = None,
    node_name: Annotated[str | None, _of_nodes("--node-name", "name")] = None,
    nodes: Annotated[int | None, _of_nodes("--nodes", "count")] = None,
    runtime: Annotated[str | None, _of_nodes("--runtime", "runtime")] = None,
    cpu_per_node: Annotated[str | None, _of_nodes("--cpu-per-node", "cpu")] = None,
    memory_per_node: Annotated[str | None, _of_nodes("--memory-per-node", "memory")] = None,
    gpus_per_node: Annotated[int | None, _of_nodes("--gpus-per-node", "gpus")] = None,
    pods_per_node: Annotated[int | None, _of_nodes("--pods-per-node", "pods")] = None,
    node_label: Annotated[list[str] | None, _of_nodes("--node-label", "labels")] = None,
    node_taint: Annotated[list[str] | None, _of_nodes("--node-taint", "taints")] = None,
    node_directory: Annotated[Path | None, _of_nodes("--node-directory", "directory")] = None,
    node_address: Annotated[str | None, _of_nodes("--node-address", "address")] = None,
    node_listen: Annotated[str | None, _of_nodes("--node-listen", "listen")] = None,
    node_identity: Annotated[str | None, _of_nodes("--node-identity", "identity")] = None,
    allow_processes: Annotated[bool | None, _of_nodes("--allow-processes/--sandboxes-only", "allows_processes")] = None,
    sandbox_grace_s: Annotated[float | None, _of_nodes("--sandbox-grace-s", "sandbox_grace_s")] = None,
    pod_grace_s: Annotated[float | None, _of_nodes("--pod-grace-s", "pod_grace_s")] = None,
    delete_node: Annotated[bool | None, _of_nodes("--delete-node/--keep-node", "deletes_itself")] = None,
) -> None:
    """Run components."""
    flags = dict(locals())
    from hekla.cli.commands.up import checked_configuration
    from hekla.cli.main import EXIT_USAGE, CommandError

    if what not in WORDS:
        raise CommandError(f'"{what}" cannot be run; choose from {", ".join(WORDS)}', EXIT_USAGE)
    if what == ROUTER:
        route(_given(flags, ROUTER_FLAGS), kubeconfig, log_level)
        return
    flags["scheduler_conf"] = checked_configuration(scheduler_conf) if scheduler_conf else None
    try:
        agents = AgentsSettings(**_given(flags, AGENTS_FLAGS)) if what == AGENTS else None
        node = NodeSettings(**_given(flags, NODE_FLAGS)) if what == NODE else None
        components = COMPONENTS if what == "all" else (what,)
        settings = StandaloneSettings(components=components, **_given(flags, COMPONENT_FLAGS))
    except StandaloneSettingsError as error:
        raise CommandError(str(error), EXIT_USAGE) from None
    serve(settings, agents, node)


def route(flags: dict[str, Any], kubeconfig: str, log_level: str) -> None:
    """Run a router until a signal comes; the first one drains, a second ends at once."""
    import os

    from hekla.app.standalone.process import StandaloneError
    from hekla.app.standalone.router_crew import run_crew
    from hekla.app.standalone.router_process import RouterSettingsError, router_settings, run_router
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.kube.kubeconfig import KubeconfigError

    try:
        settings = router_settings(flags, os.environ)
        if settings.processes > 1:
            run_crew(settings, flags, kubeconfig, log_level, _listens)
        else:
            run_router(settings, kubeconfig, log_level, _listens)
    except (KubeconfigError, RouterSettingsError) as error:
        raise CommandError(str(error), EXIT_USAGE) from None
    except StandaloneError as error:
        raise CommandError(str(error)) from None


def _listens(url: str) -> None:
    typer.echo(f"hekla router: listens at {url}")


def serve(settings: StandaloneSettings, agents: AgentsSettings | None = None, node: NodeSettings | None = None) -> None:
    """Run until a signal comes; the first one ends in good order, a second at once."""
    from hekla.app.standalone.process import StandaloneError, run_standalone
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.kube.kubeconfig import KubeconfigError

    def ready(address: str) -> None:
        typer.echo(f"hekla {', '.join(settings.components)}: health and metrics at {address}")

    try:
        run_standalone(settings, ready, agents=agents, node=node)
    except KubeconfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from None
    except StandaloneError as error:
        raise CommandError(str(error)) from None
