"""What a shell's Tab key offers: names of pods, jobs and queues from the server, and of types where a command takes any.

A Tab key must answer at once and may say nothing: whatever goes wrong, and whatever takes longer than `PATIENCE_S`, is no
names; $HEKLA_COMPLETION_PATIENCE_S is for far servers. `hekla --install-completion` puts it to use.
"""

import contextlib
import io
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from hekla.api.meta import Kind
    from hekla.cli.connection import Connection

PATIENCE_S = 1.0

Ask = Callable[["Connection"], Awaitable[list[str]]]


def pods(ctx: typer.Context, incomplete: str) -> list[str]:
    """Pods of the namespace that the command line names."""
    return _offered(ctx, incomplete, lambda link: _names(link, _kind("core", "Pod"), ctx))


def pods_or_types(ctx: typer.Context, incomplete: str) -> list[str]:
    """Pods, or what a type in front of a slash has."""
    return types_and_names(ctx, incomplete) if "/" in incomplete else pods(ctx, incomplete)


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Namespaces."""
    return _offered(ctx, incomplete, lambda link: _names(link, _kind("core", "Namespace"), ctx))


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Volcano's jobs."""
    return _offered(ctx, incomplete, lambda link: _names(link, _kind("volcano", "Job"), ctx))


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Queues."""
    return _offered(ctx, incomplete, lambda link: _names(link, _kind("volcano", "Queue"), ctx))


def job_flows(ctx: typer.Context, incomplete: str) -> list[str]:
    """JobFlows."""
    return _offered(ctx, incomplete, lambda link: _names(link, _kind("volcano", "JobFlow"), ctx))


def job_templates(ctx: typer.Context, incomplete: str) -> list[str]:
    """JobTemplates."""
    return _offered(ctx, incomplete, lambda link: _names(link, _kind("volcano", "JobTemplate"), ctx))


def types_and_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """A type, `TYPE/NAME`, or after a type its names."""

    async def ask(connection: "Connection") -> list[str]:
        from hekla.cli.resources import discover

        catalogue = await discover(connection)
        word, slash, _ = incomplete.partition("/")
        given = next((one for one in ctx.params.get("words") or () if one != incomplete), "")
        if slash:
            return [f"{word}/{name}" for name in await _names(connection, catalogue.find(word).kind, ctx)]
        if given and "/" not in given:
            return await _names(connection, catalogue.find(given).kind, ctx)
        return sorted({name for one in catalogue.served for name in (one.kind.plural, *one.kind.short_names)})

    return _offered(ctx, incomplete, ask)


def _kind(module: str, name: str) -> "Kind":
    import importlib

    kind: Kind = getattr(importlib.import_module(f"hekla.api.{module}"), name).kind_info
    return kind


async def _names(connection: "Connection", kind: "Kind", ctx: typer.Context) -> list[str]:
    from hekla.cli.names import names_at

    everywhere = bool(ctx.params.get("all_namespaces"))
    namespace = "" if everywhere else ctx.params.get("namespace") or connection.default_namespace
    return await names_at(connection, kind.path(namespace))


def _offered(ctx: typer.Context, incomplete: str, ask: Ask) -> list[str]:
    import asyncio

    from hekla.cli.connection import connected

    async def whole() -> list[str]:
        async with asyncio.timeout(_patience_s()), connected(_given(ctx, "kubeconfig"), _given(ctx, "master")) as link:
            return await ask(link)

    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = asyncio.run(whole())
    except Exception:  # noqa: BLE001  # somebody types: no sentence about a server may appear in the middle of the line
        return []
    return [name for name in found if name.startswith(incomplete)]


def _patience_s() -> float:
    return float(os.environ.get("HEKLA_COMPLETION_PATIENCE_S") or PATIENCE_S)


def _given(ctx: typer.Context, option: str) -> str:
    return str(ctx.params.get(option) or "")
