import asyncio

from hekla.app.own_service import publish_own_service
from hekla.testing.server import api_server, in_process_client


def test_a_later_start_leads_to_its_own_port_whatever_was_there():
    async def story():
        async with api_server() as server, in_process_client(server) as client:
            for port in (6443, 7443):
                await publish_own_service(client, "127.0.0.1", port)
            service = await client.request("GET", "/api/v1/namespaces/default/services/kubernetes")
            slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
            return service["spec"]["ports"], await client.request("GET", slices)

    ports, leads = asyncio.run(story())
    assert [(port["port"], port["targetPort"]) for port in ports] == [(443, 7443)]
    assert (leads["endpoints"][0]["addresses"], leads["ports"][0]["port"]) == (["127.0.0.1"], 7443)
