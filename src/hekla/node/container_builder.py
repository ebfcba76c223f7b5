"""Turns a pod's container into the `ContainerSpec` that a runtime runs: argv, environment, mounts, user, limits.

Pure but for looking at what the volumes' directories hold. What cannot be decided raises ConfigError.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hekla.api.containers import Container
from hekla.lib import quantity
from hekla.node.admission import gpu_environment, gpu_request
from hekla.node.engines import EngineChoice, adapted
from hekla.node.environment import command_of, environment_of, expand
from hekla.node.fields import Self
from hekla.node.names import hostname_of
from hekla.node.references import Lookup
from hekla.node.runtimes import ConfigError, ContainerKey, ContainerSpec, Limits
from hekla.node.volumes import mounts_of

DEFAULT_MESSAGE_PATH = "/dev/termination-log"


def build(
    container: Container,
    me: Self,
    lookup: Lookup,
    *,
    attempt: int,
    places: Mapping[str, Path] | None,
    rootfs: Path | None,
    hosts_file: Path | None,
    devices: tuple[int, ...] = (),
    default_command: Sequence[str] = (),
    entry: Sequence[str] = (),
    engine: EngineChoice | None = None,
    needs_command: bool = True,
) -> ContainerSpec:
    """One attempt at a container, everything decided; `devices` are the numbers of its GPUs."""
    pod = me.pod
    env = environment_of(container, me, lookup)
    if devices:
        env |= gpu_environment(gpu_request(container)[0], devices)
    argv = command_of(container, env) or tuple(default_command)
    if entry and not container.command:
        argv = (*entry, *argv)
    if engine is not None and rootfs is None:
        env |= engine.environment(argv, env)
        argv = adapted(argv, me.pod_ip, is_installed=engine.is_real)
    if not argv and needs_command:
        raise ConfigError(
            f'container "{container.name}" has neither command nor args, and no image tells its own; set command'
        )
    security, pod_security = container.security_context, pod.spec.security_context
    user = _first(security.run_as_user if security else None, pod_security.run_as_user if pod_security else None)
    non_root = _first(
        security.run_as_non_root if security else None, pod_security.run_as_non_root if pod_security else None
    )
    if non_root and not user:
        raise ConfigError(
            "container has runAsNonRoot and image will run as root "
            f'(pod: "{pod.metadata.name}_{pod.metadata.namespace}({pod.metadata.uid})", container: {container.name})'
        )
    capabilities = security.capabilities if security else None
    return ContainerSpec(
        key=ContainerKey(pod.metadata.uid, container.name, attempt),
        argv=argv,
        env=env,
        working_dir=container.working_dir,
        hostname=hostname_of(pod),
        pod_ip="" if pod.spec.host_network else me.pod_ip,
        hosts_file=None if pod.spec.host_network else hosts_file,
        mounts=() if places is None else mounts_of(container.volume_mounts, places, lambda text: expand(text, env)),
        rootfs=rootfs,
        limits=limits_of(container),
        user=user,
        group=_first(security.run_as_group if security else None, pod_security.run_as_group if pod_security else None),
        groups=_groups(me),
        devices=devices,
        is_privileged=bool(security and security.privileged),
        may_gain_privileges=not (security and security.allow_privilege_escalation is False),
        is_root_read_only=bool(security and security.read_only_root_filesystem),
        keep_capabilities=tuple(_names(capabilities.add if capabilities else [])),
        drop_capabilities=tuple(_names(capabilities.drop if capabilities else [])),
        has_stdin=container.stdin,
        stdin_once=container.stdin_once,
        has_tty=container.tty,
        termination_message_path=container.termination_message_path or DEFAULT_MESSAGE_PATH,
        falls_back_to_logs=container.termination_message_policy == "FallbackToLogsOnError",
        annotations=pod.metadata.annotations,
    )


def limits_of(container: Container) -> Limits:
    """What the container may use, and what it asked for; who names a limit alone asks for that much."""
    wanted = container.resources.limits if container.resources else {}
    asked = {**wanted, **container.resources.requests} if container.resources else {}
    return Limits(
        cpu_milli=quantity.to_milli(wanted["cpu"]) if "cpu" in wanted else 0,
        memory_bytes=quantity.to_int(wanted["memory"]) if "memory" in wanted else 0,
        cpu_request_milli=quantity.to_milli(asked["cpu"]) if "cpu" in asked else 0,
    )


def _groups(me: Self) -> tuple[int, ...]:
    security = me.pod.spec.security_context
    if security is None:
        return ()
    extra = [security.fs_group] if security.fs_group is not None else []
    return tuple(dict.fromkeys([*security.supplemental_groups, *extra]))


def _names(capabilities: list[str]) -> list[str]:
    return [name.upper().removeprefix("CAP_") for name in capabilities]


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
