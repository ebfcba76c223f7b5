"""The Service `kubernetes`: programs in pods that know no environment call the API server `https://kubernetes.default.svc`.

It leads to the port that this start of the platform got; `node.service_proxy` listens for it like for any other. An
ordinary user may not listen on 443: there the name resolves, and KUBERNETES_SERVICE_HOST and _PORT still lead here.
"""

from collections.abc import Iterator

from hekla.api.meta import Document
from hekla.kube.client import Client

NAME, NAMESPACE, PORT = "kubernetes", "default", 443
FIELD_MANAGER = "hekla"


async def publish_own_service(client: Client, api_host: str, api_port: int) -> None:
    """Write it, whatever an earlier start or a user left there."""
    for path, document in own_service(api_host, api_port):
        query = f"?fieldManager={FIELD_MANAGER}&force=true"
        await client.request("PATCH", path + query, document, content_type="application/apply-patch+yaml")


def own_service(api_host: str, api_port: int) -> Iterator[tuple[str, Document]]:
    """The paths and documents: a Service that selects nothing, and where it leads."""
    labels = {"component": "apiserver", "provider": "kubernetes"}
    port = {"name": "https", "port": PORT, "protocol": "TCP", "targetPort": api_port}
    yield (
        f"/api/v1/namespaces/{NAMESPACE}/services/{NAME}",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": labels},
            "spec": {"type": "ClusterIP", "ports": [port]},
        },
    )
    yield (
        f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/{NAME}",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": NAME}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [api_host], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": api_port, "protocol": "TCP"}],
        },
    )
