"""Passes questions about the scheduler on to the one that runs as a process of its own, as an API server of Kubernetes does
for every group that has an APIService: by the service that it names, over TLS both ways, with who asked in headers.

`standalone/answer_desk.py` is at the other end.
"""

import base64
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from hekla.api.explanation import EXPLANATION
from hekla.api.foreign import ApiService
from hekla.api.meta import Document
from hekla.apiserver.admission import Reader
from hekla.apiserver.auth.pki import Pair
from hekla.apiserver.calls import Call
from hekla.apiserver.status import StatusError
from hekla.app.front_proxy import headers_of
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.messages import Response
from hekla.wire.tls import client_context

API_SERVICE = f"{EXPLANATION.version}.{EXPLANATION.group}"
"""The name of the APIService by which the scheduler's answers are registered."""

ANSWER_S = 60.0
"""How long an answer may take: a snapshot of a large cluster takes seconds to write down."""

ServiceAddress = Callable[[str, str, int], "tuple[str, int] | None"]
"""From a service's (namespace, name, port) to the host and port where it is reached from here."""


@dataclass(frozen=True)
class SchedulerElsewhere:
    """The scheduler that has registered itself, if one has."""

    reader: Callable[[], Reader]
    service_address: ServiceAddress
    front_proxy: Pair

    async def ask(self, call: Call) -> Response:
        """The other scheduler's answer; StatusError 503 says why there is none."""
        registered = self.reader().get(ApiService.kind_info.resource, "", API_SERVICE)
        spec = (registered or {}).get("spec") or {}
        service = spec.get("service")
        if not service or not spec.get("caBundle"):
            raise _silent(
                "no scheduler runs here; it was left out, or is not up yet"
                if registered is None
                else f"the scheduler that the APIService {API_SERVICE} stands for has not said yet where it is"
            )
        return await self._passed_on(call, spec, service)

    async def _passed_on(self, call: Call, spec: Document, service: Document) -> Response:
        namespace, name = service["namespace"], service["name"]
        address = self.service_address(namespace, name, int(service.get("port") or 443))
        if address is None:
            raise _silent(f'the service "{namespace}/{name}" of the scheduler has no address')
        headers = [*headers_of(call.user), ("accept", "application/json")]
        url = f"https://{address[0]}:{address[1]}{call.request.target}"
        try:
            client = self._client(spec["caBundle"], f"{name}.{namespace}.svc")
            try:
                answer = await client.request(call.request.method, url, headers, timeout_s=ANSWER_S)
            finally:
                await client.close()
        except (WireError, ssl.SSLError, OSError, ValueError, TimeoutError) as error:
            raise _silent(f"the scheduler cannot be asked: {error}") from None
        return Response(answer.status, answer.body, answer.content_type)

    def _client(self, ca_bundle: str, name: str) -> HttpClient:
        context = client_context(
            ca_data=base64.b64decode(ca_bundle), cert_file=self.front_proxy.certificate, key_file=self.front_proxy.key
        )
        return HttpClient(ssl_context=context, server_hostname=name)


def _silent(why: str) -> StatusError:
    return StatusError(503, "ServiceUnavailable", why)
