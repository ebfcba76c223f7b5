"""Asks the admission webhooks that users have registered. `webhook_calls.py` says whom, and what an answer means.

Mutating ones are asked one after the other, each seeing what the one before made of the object; validating ones all
at once. A webhook that cannot be asked refuses the write, unless its failurePolicy is Ignore.
"""

import asyncio
import base64
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
import structlog

from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.apiserver.match_conditions import is_meant
from hekla.apiserver.status import StatusError, bad_request
from hekla.apiserver.webhook_calls import (
    Verdict,
    Webhook,
    WebhookAnswerError,
    concerned,
    has_side_effects,
    patched,
    refused,
    review_of,
    unreachable,
    verdict_of,
)
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.tls import client_context

log = structlog.get_logger(__name__)

MAX_CLIENTS = 64
"""Kept connections by authority and host; the one that was used longest ago is closed first."""

ServiceAddress = Callable[[str, str, int], "tuple[str, int] | None"]
"""From a service's (namespace, name, port) to the host and port where it is reached from here."""


@dataclass
class WebhookCaller:
    """Sends reviews and reads verdicts."""

    service_address: ServiceAddress
    uids: Callable[[], str]
    _clients: "OrderedDict[tuple[str, str], HttpClient]" = field(default_factory=OrderedDict)
    _closing: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def ask(self, webhook: Webhook, request: AdmissionRequest) -> Verdict:
        """The webhook's verdict; raises StatusError when it cannot be had and must be."""
        uid = self.uids()
        body = msgspec.json.encode(review_of(request, uid))
        try:
            url, client = self._route(webhook)
            headers = [("content-type", "application/json"), ("accept", "application/json")]
            answer = await client.request("POST", url, headers, body, timeout_s=webhook.timeout_s)
            assert isinstance(answer.body, bytes)
            if answer.status != 200:
                raise WebhookAnswerError(f"the server answered {answer.status}")
            return verdict_of(answer.body, uid)
        except (WireError, WebhookAnswerError, ssl.SSLError, OSError, ValueError, TimeoutError) as error:
            why = f"failed to call webhook: {error}"
        log.warning("webhook could not be asked", webhook=webhook.name, configuration=webhook.configuration, why=why)
        if webhook.may_fail:
            return Verdict(is_allowed=True)
        raise unreachable(webhook, why)

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))
        self._clients.clear()

    def _route(self, webhook: Webhook) -> tuple[str, HttpClient]:
        config = webhook.spec["clientConfig"]
        authority = str(config.get("caBundle") or "")
        if config.get("url"):
            return str(config["url"]), self._client(authority, "")
        service = config["service"]
        namespace, name, port = service["namespace"], service["name"], int(service.get("port") or 443)
        address = self.service_address(namespace, name, port)
        if address is None:
            raise WebhookAnswerError(f'service "{namespace}/{name}" has no address on port {port}')
        path = service.get("path") or "/"
        return f"https://{address[0]}:{address[1]}{path}", self._client(authority, f"{name}.{namespace}.svc")

    def _client(self, authority: str, hostname: str) -> HttpClient:
        key = (authority, hostname)
        client = self._clients.get(key)
        if client is None:
            context = client_context(ca_data=base64.b64decode(authority)) if authority else client_context()
            client = self._clients[key] = HttpClient(ssl_context=context, server_hostname=hostname)
            if len(self._clients) > MAX_CLIENTS:
                _, oldest = self._clients.popitem(last=False)
                task = asyncio.get_running_loop().create_task(oldest.close())
                self._closing.add(task)  # the loop itself holds tasks weakly
                task.add_done_callback(self._closing.discard)
        self._clients.move_to_end(key)
        return client


@dataclass(frozen=True)
class MutatingWebhooks:
    """Lets webhooks change an object."""

    caller: WebhookCaller
    name: str = "MutatingAdmissionWebhook"
    is_by_kind: ClassVar[bool] = True
    goes_by_template: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """Every write; whom it concerns is looked up in `mutate`."""
        return True

    def mutate(self, request: AdmissionRequest, reader: Reader) -> Awaitable[None] | None:
        """Ask them in order."""
        webhooks = concerned(request, reader, "mutatingwebhookconfigurations")
        return self._ask_all(webhooks, request) if webhooks else None

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """The other rule's business."""

    async def _ask_all(self, webhooks: list[Webhook], request: AdmissionRequest) -> None:
        changed_after: list[Webhook] = []
        for number, webhook in enumerate(webhooks):
            if await self._ask(webhook, request):
                changed_after += [
                    one for one in webhooks[:number] if one.wants_another_look and one not in changed_after
                ]
        for webhook in changed_after:
            await self._ask(webhook, request)

    async def _ask(self, webhook: Webhook, request: AdmissionRequest) -> bool:
        verdict = await _verdict(self.caller, webhook, request)
        if not verdict.patch or request.object is None:
            return False
        try:
            changed = patched(request.object, verdict)
        except StatusError as error:
            raise unreachable(webhook, f"its patch cannot be applied: {error.message}") from None
        if changed == request.object:
            return False
        request.object.clear()
        request.object.update(changed)
        request.is_rewritten = True
        return True


@dataclass(frozen=True)
class ValidatingWebhooks:
    """Lets webhooks refuse an object."""

    caller: WebhookCaller
    name: str = "ValidatingAdmissionWebhook"
    is_by_kind: ClassVar[bool] = True
    goes_by_template: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """Every write; whom it concerns is looked up in `validate`."""
        return True

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """The other rule's business."""

    def validate(self, request: AdmissionRequest, reader: Reader) -> Awaitable[None] | None:
        """Ask them all at once; the first in order that refuses is the one that is told."""
        webhooks = concerned(request, reader, "validatingwebhookconfigurations")
        return self._ask_all(webhooks, request) if webhooks else None

    async def _ask_all(self, webhooks: list[Webhook], request: AdmissionRequest) -> None:
        asked = (_verdict(self.caller, webhook, request) for webhook in webhooks)
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome


async def _verdict(caller: WebhookCaller, webhook: Webhook, request: AdmissionRequest) -> Verdict:
    if not is_meant(webhook, request):
        return Verdict(is_allowed=True)
    if request.is_dry_run and has_side_effects(webhook):
        raise bad_request(f'admission webhook "{webhook.name}" does not support dry run')
    verdict = await caller.ask(webhook, request)
    request.warnings.extend(verdict.warnings)
    if not verdict.is_allowed:
        raise refused(webhook, verdict)
    return verdict
