"""The embedded platform: everything in one process, wired here and nowhere else.

    async with platform(settings) as running:      # DIR/kubeconfig is written, the API server answers
        await running.ended()                      # until a feature dies; cancel to stop

The API server comes up first and alone, so that `hekla up` is ready at once; the features start behind it and find
it through an in-process client. What they are is listed in `features.py`. Who comes to their own doors (`front_doors.py`)
before they have started waits there.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from hekla import __version__
from hekla.api.meta import Document
from hekla.apiserver.admission import Reader, User
from hekla.apiserver.admission_rules.webhooks import WebhookCaller
from hekla.apiserver.auth.attributes import ADMINISTRATORS
from hekla.apiserver.auth.authenticate import Authenticator
from hekla.apiserver.auth.openid import Issuer
from hekla.apiserver.auth.pki import Pki, ensure_pki, utc_now
from hekla.apiserver.auth.rbac import RbacAuthorizer
from hekla.apiserver.auth.rbac_source import StoredRoles
from hekla.apiserver.auth.token_requests import TokenDesk
from hekla.apiserver.auth.tokens import TokenSigner
from hekla.apiserver.backend import random_uid
from hekla.apiserver.reviews import Reviews
from hekla.apiserver.server import ApiServer
from hekla.apiserver.sqlite_store import SqliteStore
from hekla.apiserver.store import Store
from hekla.apiserver.strategies import builtin_strategies
from hekla.app.admission import platform_rules
from hekla.app.data_directory import DataDirectory
from hekla.app.explaining import computed_resources
from hekla.app.features import Features, run_features
from hekla.app.first_objects import first_objects
from hekla.app.front_doors import close_doors, open_doors
from hekla.app.front_proxy import published
from hekla.app.scheduler_elsewhere import SchedulerElsewhere
from hekla.app.settings import Settings
from hekla.kube.api_client import ApiClient
from hekla.kube.client import PatchType
from hekla.kube.credentials import ClientCertificate
from hekla.kube.errors import AlreadyExistsError, ApiError, KubeError, NotFoundError
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import Informers
from hekla.kube.kubeconfig import write_kubeconfig
from hekla.wire.server import Server
from hekla.wire.tls import server_context

log = structlog.get_logger(__name__)

LOCAL_USER = User("system:hekla", (ADMINISTRATORS, "system:authenticated"))
"""Who the features are when they call the API server inside this process."""

STOP_GRACE_S = 5.0


STORE_REFUSES = 503
"""Of the server in this process: its disk is full. A webhook that does not answer is a 500."""


class FirstObjectsError(Exception):
    """A start that is refused what every platform has; the sentence is for the user."""


@dataclass
class Platform:
    """A platform that runs."""

    settings: Settings
    url: str
    api: ApiServer
    client: ApiClient
    features: asyncio.Task[None]

    async def ended(self) -> None:
        """Return, or raise, when a feature has ended; none does on its own while all is well."""
        await asyncio.shield(self.features)


@asynccontextmanager
async def platform(settings: Settings) -> AsyncIterator[Platform]:
    """Run a platform for the length of a block; when it is entered the API server answers and the kubeconfig is there."""
    directory = DataDirectory(settings.data_dir)
    async with AsyncExitStack() as stack:
        stack.enter_context(directory.claimed())
        pki = ensure_pki(directory.pki, utc_now())
        store = SqliteStore(directory.state)
        stack.push_async_callback(store.close)
        features = Features(settings, directory, pki)
        api = make_api_server(store, pki, features)
        await api.start()
        stack.push_async_callback(api.stop)
        client = ApiClient(InProcessTransport(api.handle))
        await create_first_objects(client)
        server = Server()
        context = server_context(pki.server.certificate, pki.server.key, pki.authority.certificate)
        await server.start(api.handle, port=settings.port, or_any_port=True, ssl_context=context)
        stack.push_async_callback(server.stop, STOP_GRACE_S)
        url = f"https://127.0.0.1:{server.port}"
        _write_kubeconfig(directory, pki, url)
        features.doors = open_doors(settings, directory)
        stack.callback(close_doors, features.doors, directory)
        directory.publish(url, __version__, nodes=settings.all_nodes, without=settings.without)
        directory.keep_nodes(settings.node_counts)
        log.info("api server is ready", url=url, data_dir=str(directory.root))
        await _publish_front_proxy(client, pki)
        features.api_port = server.port
        running = asyncio.create_task(run_features(features, Informers(client), api), name="features")
        stack.push_async_callback(_cancelled, running)
        yield Platform(settings, url, api, client, running)


def make_api_server(store: Store, pki: Pki, features: Features) -> ApiServer:
    """The API server with authentication, RBAC and every admission rule."""
    authorizer = RbacAuthorizer(StoredRoles(store))
    signer = TokenSigner(pki.token_key.read_bytes())
    authenticate = Authenticator(signer=signer, reader=None, clock=time.time, local_user=LOCAL_USER)

    def address_of(namespace: str, name: str, port: int) -> tuple[str, int] | None:
        return service_address(api.backend, namespace, name, port)

    webhooks = WebhookCaller(address_of, random_uid)
    elsewhere = SchedulerElsewhere(lambda: api.backend, address_of, pki.front_proxy)
    desk = TokenDesk(signer, authenticate, lambda: api.backend, random_uid)
    api = ApiServer(
        store,
        strategies=list(builtin_strategies().values()),
        rules=platform_rules(authorizer, features.settings, webhooks),
        authenticate=authenticate,
        authorizer=authorizer,
        proxy=features.proxy,
        reviews=Reviews(review_token=desk.review, issue_token=desk.issue),
        issuer=Issuer(signer),
        computed=computed_resources(
            lambda: features.scheduler, authorizer, elsewhere.ask if _may_be_elsewhere(features) else None
        ),
    )
    authenticate.reader = api.backend
    return api


def _may_be_elsewhere(features: Features) -> bool:
    """Whether the scheduler was left out: a later start of this one must not be taken for its absence."""
    return "scheduler" in features.settings.without


def service_address(reader: Reader, namespace: str, name: str, port: int) -> tuple[str, int] | None:
    """Where a service is reached from this process: its cluster address, which is a loopback address here."""
    service = reader.get("services", namespace, name)
    address = service["spec"].get("clusterIP") if service else None
    return (address, port) if address and address != "None" else None


async def create_first_objects(client: ApiClient) -> None:
    """What every platform has: roles, Hekla's kinds, priority classes, queues. What exists already is left as it is.

    Raises FirstObjectsError.
    """

    async def create(path: str, document: Document) -> None:
        name = document["metadata"]["name"]
        try:
            # looked for first: to check what is there already takes long, and asks webhooks that may not run before us
            with contextlib.suppress(NotFoundError):
                await client.request("GET", f"{path}/{name}")
                return
            await client.request("POST", path, document)
        except AlreadyExistsError:
            log.debug("exists already", path=path, name=name)
        except ApiError as error:
            if error.code < 500 or error.code == STORE_REFUSES:
                raise
            log.warning("not made; start again once its webhook answers", path=path, name=name, error=error.message)

    with _refusals_in_words():
        for wave in first_objects():
            await asyncio.gather(*(create(path, document) for path, document in wave))


@contextlib.contextmanager
def _refusals_in_words() -> Iterator[None]:
    try:
        yield
    except KubeError as error:
        raise FirstObjectsError(f"the platform could not make its first objects: {error}") from error


async def _publish_front_proxy(client: ApiClient, pki: Pki) -> None:
    """Say whom those should believe that this server passes requests on to."""
    for path, document in published(
        pki.front_proxy_authority.certificate.read_text(), pki.authority.certificate.read_text()
    ):
        query = "?fieldManager=hekla&force=true"
        with _refusals_in_words():
            await client.request("PATCH", path + query, document, content_type=PatchType.APPLY)


def _write_kubeconfig(directory: DataDirectory, pki: Pki, url: str) -> None:
    admin = ClientCertificate(pki.admin.certificate.read_bytes(), pki.admin.key.read_bytes())
    write_kubeconfig(
        directory.kubeconfig, server=url, ca_pem=pki.authority.certificate.read_bytes(), client_certificate=admin
    )


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
