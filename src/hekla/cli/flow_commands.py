"""The commands for JobFlows and for JobTemplates: two kinds, one set of commands, spelled in our way and in Volcano's."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli import completion
from hekla.cli.groups import Commands
from hekla.cli.options import AllNamespaces, Kubeconfig, Namespace, Output, Watch
from hekla.cli.peer_options import EveryNamespace, Master, PeerKubeconfig, PeerNamespace

if TYPE_CHECKING:
    from hekla.api.meta import Kind
    from hekla.cli.connection import Connection

Work = Callable[["Connection"], Awaitable[None]]

File = Annotated[str, typer.Option("-f", "--file", help="A file of one or several, or -.", show_default=False)]
OwnFile = Annotated[str, typer.Option("-f", "--filename", help="A file of one or several, or -.", show_default=False)]
Format = Annotated[str, typer.Option("-o", "--format", help="yaml or json.")]
PeerName = Annotated[str, typer.Option("-N", "--name", help="Its name.", show_default=False)]


@dataclass(frozen=True)
class Flow:
    """One of the two kinds."""

    name: str
    """As in `hekla.api.volcano`."""

    names: Callable[[typer.Context, str], list[str]]
    """What a shell offers for it."""

    @property
    def word(self) -> str:
        """The command's word."""
        return self.name.lower()

    def kind(self) -> "Kind":
        """The kind; asked for late, because kinds take a while to import."""
        from hekla.api import volcano

        kind: Kind = getattr(volcano, self.name).kind_info
        return kind


FLOW, TEMPLATE = Flow("JobFlow", completion.job_flows), Flow("JobTemplate", completion.job_templates)


def own_commands(flow: Flow) -> Commands:
    """`hekla jobflow ...`: a name is an argument, as with the other commands of ours."""
    name_argument = typer.Argument(metavar="NAME", show_default=False, autocompletion=flow.names)
    optional = typer.Argument(metavar="[NAME]", show_default=False, autocompletion=flow.names)

    def create(file: OwnFile = "", namespace: Namespace = "", kubeconfig: Kubeconfig = "") -> None:
        from hekla.cli.volcano.flows import create_all

        _run(kubeconfig, lambda link: create_all(link, flow.kind(), file, namespace or link.default_namespace))

    def list_all(
        namespace: Namespace = "",
        all_namespaces: AllNamespaces = False,
        output: Output = "",
        watch: Watch = False,
        kubeconfig: Kubeconfig = "",
    ) -> None:
        from hekla.cli.volcano.flows import COLUMNS
        from hekla.cli.volcano.listing import Listing

        async def work(connection: "Connection") -> None:
            where = "" if all_namespaces else namespace or connection.default_namespace
            listing = Listing(
                kind=flow.kind(), columns=COLUMNS[flow.name], namespace=where, output=output, is_watched=watch
            )
            await listing.show(connection)

        _run(kubeconfig, work)

    def get(
        name: Annotated[str, name_argument], namespace: Namespace = "", output: Output = "", kubeconfig: Kubeconfig = ""
    ) -> None:
        _run(kubeconfig, lambda link: _show_one(link, flow, name, namespace or link.default_namespace, output))

    def describe(
        name: Annotated[str, optional] = "",
        namespace: Namespace = "",
        output: Annotated[str, typer.Option("-o", "--output", help="yaml or json.")] = "yaml",
        kubeconfig: Kubeconfig = "",
    ) -> None:
        _run(kubeconfig, lambda link: _describe(link, flow, name, namespace or link.default_namespace, output))

    def delete(
        names: Annotated[
            list[str] | None, typer.Argument(metavar="[NAME...]", show_default=False, autocompletion=flow.names)
        ] = None,
        file: OwnFile = "",
        namespace: Namespace = "",
        kubeconfig: Kubeconfig = "",
    ) -> None:
        async def work(connection: "Connection") -> None:
            await _delete(connection, flow, names or [], file, namespace or connection.default_namespace)

        _run(kubeconfig, work)

    create.__doc__ = f"Create {flow.name}s from a file.\n\nExamples:\n\n  hekla {flow.word} create -f {flow.word}.yaml"
    list_all.__doc__ = f"List {flow.name}s.\n\nExamples:\n\n  hekla {flow.word} list -A -w"
    get.__doc__ = f"Show one {flow.name}.\n\nExamples:\n\n  hekla {flow.word} get nightly -o wide"
    describe.__doc__ = (
        f"Print everything about one {flow.name}, or about all of the namespace.\n\n"
        f"Examples:\n\n  hekla {flow.word} describe nightly -o json"
    )
    delete.__doc__ = f"Delete {flow.name}s by name or by file.\n\nExamples:\n\n  hekla {flow.word} delete nightly"
    return {"create": create, "list": list_all, "get": get, "describe": describe, "delete": delete}


def peer_commands(flow: Flow) -> Commands:
    """`vcctl jobflow ...`: Volcano's flags."""

    def create(file: File = "", master: Master = "", kubeconfig: PeerKubeconfig = "") -> None:
        from hekla.cli.volcano.flows import create_all

        _run(kubeconfig, lambda link: create_all(link, flow.kind(), file), master)

    def list_all(
        namespace: PeerNamespace = "default",
        all_namespaces: EveryNamespace = False,
        master: Master = "",
        kubeconfig: PeerKubeconfig = "",
    ) -> None:
        _run(kubeconfig, lambda link: _peer_list(link, flow, "" if all_namespaces else namespace, ""), master)

    def get(
        name: PeerName = "",
        namespace: PeerNamespace = "default",
        master: Master = "",
        kubeconfig: PeerKubeconfig = "",
    ) -> None:
        from hekla.cli.volcano.lookups import demand_name

        demand_name(name, flow.word, "--name")
        _run(kubeconfig, lambda link: _peer_list(link, flow, namespace, name), master)

    def describe(
        name: PeerName = "",
        namespace: PeerNamespace = "default",
        form: Format = "yaml",
        master: Master = "",
        kubeconfig: PeerKubeconfig = "",
    ) -> None:
        _run(kubeconfig, lambda link: _describe(link, flow, name, namespace, form), master)

    def delete(
        name: PeerName = "",
        namespace: PeerNamespace = "default",
        file: File = "",
        master: Master = "",
        kubeconfig: PeerKubeconfig = "",
    ) -> None:
        _run(kubeconfig, lambda link: _delete(link, flow, [name] if name else [], file, namespace), master)

    create.__doc__ = f"Create {flow.name}s from a file.\n\nExamples:\n\n  vcctl {flow.word} create -f {flow.word}.yaml"
    list_all.__doc__ = f"List {flow.name}s.\n\nExamples:\n\n  vcctl {flow.word} list --all-namespaces"
    get.__doc__ = f"Show one {flow.name}.\n\nExamples:\n\n  vcctl {flow.word} get -N nightly -n research"
    describe.__doc__ = (
        f"Print everything about one {flow.name}, or about all of the namespace.\n\n"
        f"Examples:\n\n  vcctl {flow.word} describe -N nightly -o json"
    )
    delete.__doc__ = f"Delete {flow.name}s by name or by file.\n\nExamples:\n\n  vcctl {flow.word} delete -N nightly"
    return {"create": create, "list": list_all, "get": get, "describe": describe, "delete": delete}


def _run(kubeconfig: str, work: Work, master: str = "") -> None:
    from hekla.cli.connection import run_connected

    run_connected(kubeconfig, work, master)


async def _show_one(connection: "Connection", flow: Flow, name: str, namespace: str, output: str) -> None:
    from hekla.cli.output import print_document
    from hekla.cli.volcano.columns import Rows
    from hekla.cli.volcano.flows import COLUMNS
    from hekla.cli.volcano.listing import without_managed_fields
    from hekla.cli.volcano.lookups import found

    document = await found(connection, flow.kind(), name, namespace)
    if output in ("", "wide"):
        typer.echo(Rows(COLUMNS[flow.name], wide=output == "wide", namespaces=False).table([document]))
    else:
        print_document(without_managed_fields(document), output)


async def _peer_list(connection: "Connection", flow: Flow, namespace: str, name: str) -> None:
    from hekla.cli.volcano.flows import peer_flow_list

    typer.echo(await peer_flow_list(connection, flow.kind(), namespace, name))


async def _describe(connection: "Connection", flow: Flow, name: str, namespace: str, form: str) -> None:
    from hekla.cli.volcano.flows import description

    if text := await description(connection, flow.kind(), namespace, name, form):
        typer.echo(text)


async def _delete(connection: "Connection", flow: Flow, names: list[str], file: str, namespace: str) -> None:
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.cli.volcano.flows import delete_all, delete_one

    if bool(names) == bool(file):
        raise CommandError(f"say which {flow.word} to delete: either by name or with -f FILE", EXIT_USAGE)
    if file:
        await delete_all(connection, flow.kind(), file, namespace)
    for name in names:
        await delete_one(connection, flow.kind(), name, namespace)
