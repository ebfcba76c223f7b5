"""Change fields of an object by a patch, in YAML or JSON.

Examples:

  hekla patch deployment web -p '{"spec": {"replicas": 3}}'

  hekla patch queue/research --type json -p '[{"op": "replace", "path": "/spec/weight", "value": 2}]'

  hekla patch vcjob train --subresource status --patch-file status.yaml
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hekla.cli import completion
from hekla.cli.options import Kubeconfig, Namespace, Output

if TYPE_CHECKING:
    from hekla.cli.connection import Connection
    from hekla.cli.targets import Target

MEDIA_TYPES = {
    "strategic": "application/strategic-merge-patch+json",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
}


def run(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TYPE/NAME | TYPE NAME...", show_default=False, autocompletion=completion.types_and_names
        ),
    ],
    patch: Annotated[str, typer.Option("-p", "--patch", help="The patch itself.", show_default=False)] = "",
    patch_file: Annotated[
        Path | None, typer.Option("--patch-file", help="A file that has the patch.", show_default=False)
    ] = None,
    form: Annotated[str, typer.Option("--type", help="strategic, merge or json; by default what the kind knows.")] = "",
    subresource: Annotated[str, typer.Option("--subresource", help="status or scale, instead of the object.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Let the server check it and store nothing.")] = False,
    namespace: Namespace = "",
    output: Output = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Patch objects."""
    from hekla.cli.connection import run_connected
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.cli.targets import targets_of

    if form and form not in MEDIA_TYPES:
        raise CommandError(f'--type is "{form}"; use strategic, merge or json', EXIT_USAGE)
    document = read_patch(patch, patch_file)
    query = "?fieldManager=hekla-patch" + ("&dryRun=All" if dry_run else "")

    async def work(connection: "Connection") -> None:
        for target in await targets_of(connection, words, namespace):
            path = target.path + (f"/{subresource}" if subresource else "") + query
            kind = MEDIA_TYPES[form or form_for(target, document)]
            _tell(target, await connection.client.request("PATCH", path, document, content_type=kind), output)

    run_connected(kubeconfig, work)


def read_patch(text: str, file: Path | None) -> Any:
    """The patch as a document; CommandError if there is none, or it cannot be read."""
    import yaml

    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.lib import plain_yaml

    if bool(text) == bool(file):
        raise CommandError("give the patch with -p PATCH or with --patch-file FILE", EXIT_USAGE)
    try:
        document = plain_yaml.load(file.read_text() if file else text)
    except OSError as error:
        raise CommandError(f"{file}: {(error.strerror or 'cannot be read').lower()}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise CommandError(f"{file or '-p'}: is neither YAML nor JSON") from None
    if not isinstance(document, dict | list):
        raise CommandError(f"{file or '-p'}: a patch is an object, or a list of operations", EXIT_USAGE)
    return document


def form_for(target: "Target", document: Any) -> str:
    """The form that a patch has and its kind knows: only Kubernetes' own kinds have strategic merge patches."""
    if isinstance(document, list):
        return "json"
    group = target.served.kind.group
    return "strategic" if "." not in group or group.endswith(".k8s.io") else "merge"


def _tell(target: "Target", after: Any, output: str) -> None:
    from hekla.cli.output import print_document

    if output:
        after.get("metadata", {}).pop("managedFields", None)
        print_document(after, output)
    else:
        typer.echo(f"{target.label} patched")
