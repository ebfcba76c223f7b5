"""Open sandboxes for agents, run code in them, let them sleep, copy and end them.

They are those of the platform that runs here, or of the gateway that HEKLA_AGENTS_URL and HEKLA_AGENTS_KEY name.

Examples:

  hekla agent create

  hekla agent exec SESSION -- python3 -c 'print(6 * 7)'

  hekla agent fork SESSION --count 3

  hekla agent list
"""

import contextlib
import math
import os
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hekla.cli.agent_packing import pack, publish
from hekla.cli.options import Output

if TYPE_CHECKING:
    from hekla.cli.agents import Gateway

Told = TypeVar("Told")
_AN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


def _session(given: str) -> str:
    """An id, which becomes a part of a path: an empty one (a variable that is not set) would be another path."""
    from hekla.cli.main import EXIT_USAGE, CommandError

    if not _AN_ID.fullmatch(given):
        raise CommandError(f'"{given}" is no id of a session; `hekla agent list` shows them', EXIT_USAGE)
    return given


def _seconds(given: float) -> float:
    from hekla.cli.main import EXIT_USAGE, CommandError

    if not math.isfinite(given):
        raise CommandError(f"{given:g} is no number of seconds; 0 for as long as the template says", EXIT_USAGE)
    return given


Session = Annotated[str, typer.Argument(metavar="SESSION", show_default=False, callback=_session)]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="The platform's data directory.", show_default=False)]


def _ask(data_dir: Path | None, work: "Callable[[Gateway], Awaitable[Told]]") -> Told:
    from hekla.cli.agents import run_with_gateway

    return run_with_gateway(data_dir, work)


def _print(told: Any, output: str) -> None:
    from hekla.cli.output import print_document

    if output == "name" or not output:
        typer.echo(told["id"])
    else:
        print_document(told, output)


def _pairs(given: list[str], flag: str) -> dict[str, str]:
    from hekla.cli.main import EXIT_USAGE, CommandError

    pairs = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise CommandError(f'{flag} "{one}" is not NAME=VALUE', EXIT_USAGE)
        pairs[name] = value
    return pairs


def create(
    template: Annotated[str, typer.Argument(metavar="[TEMPLATE]", help="A CodeInterpreter, AgentRuntime or SandboxTemplate: NAME or NAMESPACE/NAME.", show_default=False)] = "base",
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the template.")] = "default",
    snapshot: Annotated[str, typer.Option("--snapshot", help="Begin with a snapshot, by id or name.", show_default=False)] = "",
    timeout: Annotated[float, typer.Option("--timeout", min=0, callback=_seconds, help="Seconds that it lives; as its template says if 0.")] = 0.0,
    freeze_after: Annotated[float, typer.Option("--freeze-after", min=0, callback=_seconds, help="Seconds without a request until it stands still; never if 0.")] = 0.0,
    env: Annotated[list[str], typer.Option("--env", help="NAME=VALUE; may be given again.", show_default=False)] = [],  # noqa: B006 - typer copies it
    metadata: Annotated[list[str], typer.Option("--metadata", help="NAME=VALUE; may be given again.", show_default=False)] = [],  # noqa: B006 - typer copies it
    budget: Annotated[str, typer.Option("--budget", help="What it may use before it stands still, such as cpu=90s,network=1Gi.", show_default=False)] = "",
    output: Output = "",
    data_dir: DataDir = None,
) -> None:  # fmt: skip
    """Open a session, and print its id.

    Examples:

      hekla agent create

      hekla agent create code-interpreter-v1 --timeout 600 --env TOKEN=x
    """
    if "/" in template:  # as `hekla agent list` shows it
        namespace, _, template = template.partition("/")
    body = {
        "name": template, "namespace": namespace, "snapshot": snapshot, "timeout": timeout, "freeze_after": freeze_after,
        "env": _pairs(env, "--env"), "metadata": _pairs(metadata, "--metadata"), "budget": budget,
    }  # fmt: skip
    _print(_ask(data_dir, lambda gateway: gateway.ask("POST", "sessions", body)), output)


def list_(output: Output = "", data_dir: DataDir = None) -> None:
    """List sessions, the newest first.

    Examples:

      hekla agent list

      hekla agent list -o wide

      hekla agent list -o json
    """
    from hekla.cli.output import print_document

    async def all_of_them(gateway: "Gateway") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            page = await gateway.ask(
                "GET", f"sessions?limit=1000&after={after}{'' if output in ('', 'name') else '&usage=true'}"
            )
            found += page["sessions"]
            after = page["after"]
            if not after:
                return found

    sessions = _ask(data_dir, all_of_them)
    if output and output not in ("name", "wide"):
        print_document({"sessions": sessions}, output)
    elif output == "name":
        typer.echo("\n".join(one["id"] for one in sessions))
    elif not sessions:
        typer.echo("no sessions; open one with `hekla agent create`")
    else:
        _table(sessions, is_wide=output == "wide")


_ACCOUNTS = ("CPU", "MEMORY", "STORAGE", "NETWORK", "AWAKE", "FROZEN", "BUDGET", "WHY")


def _accounts(one: dict[str, Any]) -> tuple[str, ...]:
    """What a session has used, may use, and why it stands still."""
    used, told = one.get("usage"), (one["budget"] or "-", one["why"] or "-")
    if used is None:
        return ("?",) * 6 + told
    network = used["networkSentBytes"] + used["networkReceivedBytes"]
    return (
        f"{used['cpuUs'] / 1e6:.1f}s", *(f"{count / 2**20:.1f}Mi" for count in (used["memoryBytes"], used["storageBytes"], network)),
        f"{used['wallS'] - used['frozenS']:.0f}s", f"{used['frozenS']:.0f}s", *told,
    )  # fmt: skip


def _table(sessions: list[dict[str, Any]], *, is_wide: bool) -> None:
    import time

    now = time.time()
    rows: list[tuple[str, ...]] = [
        ("SESSION", "STATE", "TEMPLATE", "OWNER", "AGE", "ENDS IN", *(_ACCOUNTS if is_wide else ()))
    ]
    for one in sessions:
        end = _end_of(one)
        left = f"{max(0, int(end - now))}s" if end else "-"
        rows.append(
            (
                one["id"],
                one["state"],
                f"{one['namespace']}/{one['name']}",
                one["owner"],
                f"{int(now - one['created'])}s",
                left,
                *(_accounts(one) if is_wide else ()),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        typer.echo("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _end_of(one: dict[str, Any]) -> float:
    """When a session ends if nobody uses it from now on; 0: never."""
    idle = one["used"] + one["idle"] if one["idle"] else 0.0
    return min((end for end in (one["expires"], one["ends"], idle) if end), default=0.0)


def exec_(
    session: Session,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARG...]", show_default=False)],
    cwd: Annotated[str, typer.Option("--cwd", help="Where it runs.", show_default=False)] = "",
    env: Annotated[list[str], typer.Option("--env", help="NAME=VALUE; may be given again.", show_default=False)] = [],  # noqa: B006 - typer copies it
    stdin: Annotated[bool, typer.Option("-i", "--stdin", help="Pass standard input on.")] = False,
    data_dir: DataDir = None,
) -> None:  # fmt: skip
    """Run a command in a session, its output as it comes; the exit code is the command's, or 128 and the number of the signal that ended it.

    Examples:

      hekla agent exec SESSION -- python3 -c 'print(6 * 7)'

      hekla agent exec -i SESSION -- python3 - < script.py
    """
    envs = _pairs(env, "--env")

    async def run(gateway: "Gateway") -> int:
        if stdin:
            from hekla.cli.agents import feed

            return await feed(gateway, session, command, cwd=cwd, envs=envs)
        async for name, told in gateway.run(session, command, cwd=cwd, envs=envs):
            if name == "end":
                return int(told)
            if name in ("stdout", "stderr"):
                stream = sys.stdout if name == "stdout" else sys.stderr
                stream.buffer.write(told)
                stream.flush()
        return 1

    raise typer.Exit(_ask(data_dir, run) & 0xFF)


def shell(session: Session, data_dir: DataDir = None) -> None:
    """Open a terminal in a session, or run a script there that comes by standard input.

    Examples:

      hekla agent shell SESSION

      hekla agent shell SESSION < script.sh
    """
    from hekla.cli.agents import interact

    raise typer.Exit(_ask(data_dir, lambda gateway: interact(gateway, session, "/bin/bash")) & 0xFF)


def cp(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A file here, or SESSION:PATH.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The other one.", show_default=False)],
    data_dir: DataDir = None,
) -> None:
    """Copy a file into a session or out of it.

    Examples:

      hekla agent cp data.csv SESSION:/home/user/data.csv

      hekla agent cp SESSION:/home/user/plot.png .
    """
    from hekla.cli.main import EXIT_USAGE, CommandError

    (from_session, from_path), (to_session, to_path) = _place(source), _place(target)
    if bool(from_session) is bool(to_session):
        raise CommandError("one of SOURCE and TARGET is SESSION:PATH, and the other a file here", EXIT_USAGE)
    if from_session and not os.path.basename(from_path):
        raise CommandError(f'"{source}" names no file of the session; say which one', EXIT_USAGE)
    if to_session:
        try:
            data = Path(from_path).read_bytes()
        except OSError as error:
            raise CommandError(f"{from_path}: {(error.strerror or str(error)).lower()}") from None
        name = to_path if not to_path.endswith("/") else to_path + Path(from_path).name
        _ask(data_dir, lambda gateway: gateway.upload(to_session, name, data))
        return
    here = Path(to_path) / os.path.basename(from_path) if os.path.isdir(to_path) else Path(to_path)

    async def fetch(gateway: "Gateway") -> None:
        scratch = here.with_name(here.name + ".part")
        try:
            with scratch.open("wb") as file:
                await gateway.download(from_session, from_path, file.write)
            scratch.replace(here)
        except OSError as error:
            raise CommandError(f"{here}: {(error.strerror or str(error)).lower()}") from None
        finally:
            with contextlib.suppress(OSError):  # it was not made, or its directory is gone
                scratch.unlink()

    _ask(data_dir, fetch)


def _place(text: str) -> tuple[str, str]:
    """Session and path; a file here has no session."""
    session, colon, path = text.partition(":")
    return (session, path) if colon and len(session) == 26 and session.isalnum() else ("", text)


def logs(
    session: Session,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends.")] = False,
    tail: Annotated[int, typer.Option("--tail", help="Only the last lines; -1 for all.")] = -1,
    data_dir: DataDir = None,
) -> None:
    """Print what the pod of a session wrote: the agent's own server, or the daemon.

    Examples:

      hekla agent logs SESSION -f
    """
    from hekla.app.data_directory import DataDirectory
    from hekla.app.settings import default_data_dir
    from hekla.cli.commands.logs import run
    from hekla.cli.main import CommandError

    found = _ask(data_dir, lambda gateway: gateway.ask("GET", f"sessions/{session}"))
    if not found["sandbox"]:
        raise CommandError(f"session {session} sleeps and has no sandbox; resume it first")
    kubeconfig = DataDirectory((data_dir or default_data_dir()).absolute()).kubeconfig
    run(
        found["sandbox"], follow=follow, tail=tail, namespace=found["namespace"],
        kubeconfig=str(kubeconfig) if kubeconfig.exists() else "",
    )  # fmt: skip


def pause(
    session: Session,
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Keep files alone, and give the sandbox back.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Put a session to sleep.

    Examples:

      hekla agent pause SESSION

      hekla agent pause SESSION --files-only
    """
    told = _ask(data_dir, lambda gateway: gateway.ask("POST", f"sessions/{session}/pause", {"memory": not files_only}))
    typer.echo(f"session {told['id']} is {told['state']}")


def resume(session: Session, data_dir: DataDir = None) -> None:
    """Wake a session.

    Examples:

      hekla agent resume SESSION
    """
    told = _ask(data_dir, lambda gateway: gateway.ask("POST", f"sessions/{session}/resume", {}))
    typer.echo(f"session {told['id']} is {told['state']}")


def fork(
    session: Session,
    count: Annotated[int, typer.Option("--count", help="How many copies.", min=1, max=100)] = 1,
    data_dir: DataDir = None,
) -> None:
    """Copy a running session, files and variables, and print the ids of the copies.

    Examples:

      hekla agent fork SESSION --count 3
    """
    told = _ask(data_dir, lambda gateway: gateway.ask("POST", f"sessions/{session}/fork", {"count": count}))
    failed = False
    for one in told["sessions"]:
        failed = failed or "error" in one
        typer.echo(one["error"]["message"] if "error" in one else one["id"], err="error" in one)
    raise typer.Exit(int(failed))


def budget(
    session: Session,
    amounts: Annotated[str, typer.Argument(metavar="[AMOUNTS]", help="Such as cpu=90s,awake=8h,network=1Gi,storage=500Mi,memory=4Gi; none if empty.", show_default=False)] = "",
    data_dir: DataDir = None,
) -> None:  # fmt: skip
    """Say what a session may use before it stands still; raised, one that stood still for want of it goes on.

    Examples:

      hekla agent budget SESSION cpu=2m,network=1Gi
    """
    told = _ask(data_dir, lambda gateway: gateway.ask("POST", f"sessions/{session}/budget", {"budget": amounts}))
    typer.echo(f"session {told['id']} is {told['state']}, its budget {told['budget'] or 'has no bound'}")


def delete(
    sessions: Annotated[list[str], typer.Argument(metavar="SESSION...", show_default=False)], data_dir: DataDir = None
) -> None:
    """End sessions and give their sandboxes back.

    Examples:

      hekla agent delete SESSION
    """

    async def end(gateway: "Gateway") -> None:
        for one in map(_session, sessions):
            await gateway.ask("DELETE", f"sessions/{one}")
            typer.echo(f"session {one} deleted")

    _ask(data_dir, end)


def mcp(
    template: Annotated[str, typer.Option("--template", help="What sessions are made from: NAME or NAMESPACE/NAME.")] = "base",
    data_dir: DataDir = None,
) -> None:  # fmt: skip
    """Serve the Model Context Protocol by standard input and output: tools that run code and keep files in sessions.

    Examples:

      hekla agent mcp

      claude mcp add hekla -- hekla agent mcp
    """
    from hekla.cli.mcp import carry

    _ask(data_dir, lambda gateway: carry(gateway, template))


COMMANDS = {
    "create": create,
    "list": list_,
    "exec": exec_,
    "shell": shell,
    "cp": cp,
    "logs": logs,
    "pause": pause,
    "resume": resume,
    "fork": fork,
    "budget": budget,
    "delete": delete,
    "mcp": mcp,
    "pack": pack,
    "publish": publish,
}
