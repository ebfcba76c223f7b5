"""Create or change objects so that they are as the manifests say (server-side apply).

Examples:

  hekla apply -f job.yaml

  hekla apply -f examples/ -n research

  cat job.yaml | hekla apply -f -

  hekla apply -f job.yaml --dry-run
"""

from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli.options import Files, Kubeconfig, Namespace, Output, Recursive

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection
    from hekla.cli.manifests import Manifest
    from hekla.cli.resources import Catalogue

FIELD_MANAGER = "hekla-apply"
SERVED_LOOKS, SERVED_PAUSE_S = 50, 0.1
"""How often, and how far apart, a server is asked whether it serves the kind it was just told of."""


def run(
    filename: Files = [],  # noqa: B006 - typer copies it
    namespace: Namespace = "",
    recursive: Recursive = False,
    output: Output = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the server check everything and store nothing.")
    ] = False,
    force_conflicts: Annotated[
        bool, typer.Option("--force-conflicts", help="Take fields over from other managers.")
    ] = False,
    kubeconfig: Kubeconfig = "",
) -> None:
    """Apply manifests."""
    from hekla.cli.connection import run_connected
    from hekla.cli.main import CommandError
    from hekla.cli.manifests import read_manifests

    manifests = read_manifests(filename, recursive=recursive)
    apply = Apply(namespace, output, dry_run, force_conflicts)
    failures = run_connected(kubeconfig, lambda connection: apply.all(connection, manifests))
    if failures:
        raise CommandError(f"{failures} of {len(manifests)} objects were refused; the reasons are above")


class Apply:
    """Applies documents one after the other, in the order they were written."""

    def __init__(self, namespace: str, output: str, dry_run: bool, force: bool) -> None:
        self.namespace, self.output, self.dry_run, self.force = namespace, output, dry_run, force

    async def all(self, connection: "Connection", manifests: "list[Manifest]") -> int:
        """How many were refused; the others are applied all the same, as with kubectl."""
        from hekla.cli.main import CommandError
        from hekla.cli.refused_fields import tell_refusal
        from hekla.cli.resources import discover
        from hekla.kube.errors import ApiError

        catalogue = await discover(connection)
        failures = 0
        for manifest in manifests:
            try:
                if manifest.document["kind"] == "CustomResourceDefinition":
                    await self._one(connection, catalogue, manifest)
                    catalogue = await self._with_definition(connection, manifest.document)
                else:
                    await self._one(connection, catalogue, manifest)
            except ApiError as error:
                await tell_refusal(connection, catalogue, manifest, error)
                failures += 1
            except CommandError as error:
                typer.echo(f"hekla: {error}", err=True)
                failures += 1
        return failures

    async def _with_definition(self, connection: "Connection", definition: "Document") -> "Catalogue":
        """What the server has once it serves a definition; a second or two at most, then what it has."""
        import asyncio

        from hekla.cli.resources import discover

        spec = definition.get("spec") or {}
        wanted = ((spec.get("names") or {}).get("kind"), spec.get("group"))
        for _attempt in range(1 if self.dry_run else SERVED_LOOKS):
            catalogue = await discover(connection)
            if any((one.kind.kind, one.kind.group) == wanted for one in catalogue.served):
                break
            await asyncio.sleep(SERVED_PAUSE_S)
        return catalogue

    async def _one(self, connection: "Connection", catalogue: "Catalogue", manifest: "Manifest") -> None:
        from hekla.cli.output import print_document, resource_name

        document = manifest.document
        kind = catalogue.of_document(document, manifest.source).kind
        metadata = document["metadata"]
        namespace = metadata.get("namespace") or self.namespace or connection.default_namespace
        if not kind.is_namespaced:
            namespace = ""
        path = kind.path(namespace, metadata.get("name", ""))
        before = await self._revision(connection, path) if metadata.get("name") else ""
        after = await self._send(connection, path, document)
        if self.output:
            after.get("metadata", {}).pop("managedFields", None)
            print_document(after, self.output)
            return
        done = (
            "created"
            if not before
            else ("unchanged" if before == after["metadata"]["resourceVersion"] else "configured")
        )
        typer.echo(f"{resource_name(after)} {done}{' (dry run)' if self.dry_run else ''}")

    async def _revision(self, connection: "Connection", path: str) -> str:
        from hekla.kube.errors import NotFoundError

        try:
            return str((await connection.client.request("GET", path))["metadata"]["resourceVersion"])
        except NotFoundError:
            return ""

    async def _send(self, connection: "Connection", path: str, document: "Document") -> "Document":
        query = f"fieldManager={FIELD_MANAGER}&fieldValidation=Strict"
        query += "&force=true" if self.force else ""
        query += "&dryRun=All" if self.dry_run else ""
        if not document["metadata"].get("name"):
            return await connection.client.request("POST", f"{path}?{query}", document)
        return await connection.client.request(
            "PATCH", f"{path}?{query}", document, content_type="application/apply-patch+yaml"
        )
