"""How a command reaches an API server, and what it finds there.

Which server: `--kubeconfig`, else $KUBECONFIG, else the embedded platform that runs on the default data directory,
else ~/.kube/config, else the cluster this process runs in.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hekla.cli import loops
from hekla.cli.main import EXIT_UNREACHABLE, CommandError
from hekla.cli.names import did_you_mean, queue_meant
from hekla.cli.rights import rights_hint

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.kube.api_client import ApiClient
    from hekla.kube.errors import ApiError
    from hekla.kube.https import HttpsTransport
    from hekla.kube.kubeconfig import Connection as Reach

Result = TypeVar("Result")

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@dataclass(frozen=True)
class Connection:
    """An open connection to one API server."""

    transport: "HttpsTransport"
    client: "ApiClient"
    default_namespace: str

    async def table(self, path: str) -> "Document":
        """The answer as a Table, where the server can make one."""
        from hekla.kube.answers import error_from_response
        from hekla.wire.messages import Request

        answer = await self.transport.send(Request("GET", path, {"accept": TABLE}))
        assert isinstance(answer.body, bytes)
        if answer.status >= 400:
            error = error_from_response(answer.status, answer.body, answer.headers)
            error.path = path
            raise error
        document: Document = json.loads(answer.body)
        return document


def run_connected(kubeconfig: str, work: Callable[[Connection], Awaitable[Result]], master: str = "") -> Result:
    """Run `work` against the server; what it says no to becomes a sentence and an exit code."""
    from hekla.kube.errors import ApiError, KubeError, NotFoundError

    async def whole() -> Result:
        async with connected(kubeconfig, master) as connection:
            try:
                return await work(connection)
            except NotFoundError as missing:
                raise CommandError(refusal_text(missing) + await did_you_mean(connection, missing)) from None
            except ApiError as refused:
                refused.message = await queue_meant(connection, refused.message)
                raise

    try:
        with warnings_on_stderr():
            return loops.run(whole())
    except (KubeError, ExceptionGroup) as error:
        raise _in_words(error) from None


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Say what a server warns of as kubectl does; the library's own default writes its log between the answers."""
    import structlog

    def tell(_logger: object, _level: str, event: MutableMapping[str, object]) -> str:
        said = f"Warning: {event['warning']}" if "warning" in event else f"hekla: {event['event']}"
        print(said, file=sys.stderr)  # noqa: T201  # the command line's own voice
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[tell], wrapper_class=structlog.make_filtering_bound_logger("warning"))
    try:
        yield
    finally:
        structlog.configure(**before)


def _in_words(error: Exception) -> Exception:
    """The sentence for what a server refused; of tasks that failed together, the first one's."""
    from hekla.kube.errors import ApiError, KubeError, TransportError

    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TransportError):
        hint = "is the platform running? start one with `hekla up --detach`"
        return CommandError(f"{error}; {hint}", EXIT_UNREACHABLE)
    if isinstance(error, ApiError):
        return CommandError(refusal_text(error) + (rights_hint(error.message) if error.code == 403 else ""))
    return CommandError(str(error)) if isinstance(error, KubeError) else error


def about(source: str, document: "Document") -> str:
    """Which object of which file, to stand before what the server says of it: webhooks do not name what they refuse."""
    name = document.get("metadata", {}).get("name") or document.get("metadata", {}).get("generateName", "")
    return f'{source}: {document.get("kind", "")} "{name}": '


def refusal_text(error: "ApiError", what: str = "") -> str:
    """What a server refused, as kubectl words it."""
    return f"Error from server ({error.reason or error.code}): {what}{error.message}"


@asynccontextmanager
async def connected(kubeconfig: str, master: str = "") -> AsyncIterator[Connection]:
    """A connection for the length of a block; `master` is the address of a server in place of the kubeconfig's."""
    from hekla.kube.api_client import ApiClient

    found = _how_to_reach(kubeconfig, master)
    transport = found.transport()
    client = ApiClient(transport)
    try:
        yield Connection(transport, client, found.namespace or "default")
    finally:
        await client.close()


def _how_to_reach(kubeconfig: str, master: str) -> "Reach":
    from hekla.kube.credentials import FixedCredentials
    from hekla.kube.kubeconfig import Connection as Reach
    from hekla.kube.kubeconfig import in_cluster_connection, load_kubeconfig

    try:
        path = find_kubeconfig(kubeconfig)
    except CommandError:
        if kubeconfig or not master:
            raise
        return Reach(server=_with_scheme(master, "http"), credentials=FixedCredentials())
    found = load_kubeconfig(*path.split(os.pathsep)).connection() if path else in_cluster_connection()
    scheme = found.server.partition("://")[0]
    return replace(found, server=_with_scheme(master, scheme)) if master else found


def _with_scheme(address: str, scheme: str) -> str:
    return address if "://" in address else f"{scheme}://{address}"


def find_kubeconfig(given: str) -> str:
    """The kubeconfig's path; empty when only in-cluster credentials are left to try."""
    from hekla.cli.platform_errors import in_words

    with in_words():
        return _found_kubeconfig(given)


def _found_kubeconfig(given: str) -> str:
    from hekla.app.data_directory import DataDirectory
    from hekla.app.settings import default_data_dir

    if given:
        if not Path(given).exists():
            raise CommandError(f"--kubeconfig {given}: there is no such file")
        return given
    if os.environ.get("KUBECONFIG"):
        return os.environ["KUBECONFIG"]
    platform = DataDirectory(default_data_dir())
    if platform.running():
        return str(platform.kubeconfig)
    home = Path.home() / ".kube" / "config"
    if home.exists():
        return str(home)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return ""
    message = "no cluster to talk to: start one with `hekla up --detach`, or name one with --kubeconfig"
    raise CommandError(message, EXIT_UNREACHABLE)
