import asyncio

from hekla.api.core import Service
from hekla.api.discovery import EndpointSlice
from hekla.node.service_proxy import ServiceProxy

ADDRESS = "127.96.7.7"


async def serve(host, answer, port=0):
    """A server that says one word and closes; its port."""

    async def accepted(reader, writer):
        writer.write(answer + await reader.read(100))
        writer.close()

    server = await asyncio.start_server(accepted, host, port)
    return server, server.sockets[0].getsockname()[1]


async def ask(host, port):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"!")
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def answers(port, wanted):
    """Ask until the answer is as wished; every answer on the way."""
    seen = set()
    async with asyncio.timeout(30):
        while not wanted <= seen:
            try:
                seen.add(await ask(ADDRESS, port))
            except OSError:
                await asyncio.sleep(0.01)
    return seen


def slice_of(addresses, port, *, ready=True):
    return {
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port}],
        "endpoints": [{"addresses": [each], "conditions": {"ready": ready}} for each in addresses],
    }


def test_a_cluster_address_shares_connections_among_endpoints_and_follows_them(live):
    async def story(cluster):
        one, port = await serve("127.64.250.1", b"one")
        two, _ = await serve("127.64.250.2", b"two", port)
        spec = {"clusterIP": ADDRESS, "ports": [{"name": "http", "port": 28080, "targetPort": port}]}
        await cluster.client.create(Service, {"metadata": {"name": "web"}, "spec": spec}, "default")
        await cluster.client.create(EndpointSlice, slice_of(["127.64.250.1", "127.64.250.2"], port), "default")
        proxy = ServiceProxy(cluster.informers)
        await proxy.start()
        try:
            await answers(28080, {b"one!", b"two!"})
            patch = {"endpoints": slice_of(["127.64.250.1"], port)["endpoints"]}
            await cluster.client.patch(EndpointSlice, "web-1", patch, "default")
            async with asyncio.timeout(30):
                while {await ask(ADDRESS, 28080) for _ in range(4)} != {b"one!"}:
                    await asyncio.sleep(0.01)
            await cluster.client.delete(Service, "web", "default")
            async with asyncio.timeout(30):
                while True:
                    try:
                        await ask(ADDRESS, 28080)
                    except ConnectionRefusedError:
                        break
                    except ConnectionResetError:
                        continue  # it was waiting to be accepted when the listener closed
        finally:
            await proxy.close()
            one.close()
            two.close()

    live(story)


def test_a_dead_endpoint_is_passed_over(live):
    async def story(cluster):
        one, port = await serve("127.64.251.1", b"one")
        spec = {"clusterIP": "127.96.7.8", "ports": [{"name": "http", "port": 28081}]}
        await cluster.client.create(Service, {"metadata": {"name": "web"}, "spec": spec}, "default")
        await cluster.client.create(EndpointSlice, slice_of(["127.64.251.1", "127.64.251.9"], port), "default")
        proxy = ServiceProxy(cluster.informers)
        await proxy.start()
        try:
            async with asyncio.timeout(30):
                while True:
                    try:
                        assert [await ask("127.96.7.8", 28081) for _ in range(4)] == [b"one!"] * 4
                        break
                    except OSError:
                        await asyncio.sleep(0.01)
        finally:
            await proxy.close()
            one.close()

    live(story)


def test_a_service_whose_port_is_taken_is_told_of_in_an_event(live):
    async def story(cluster):
        squatter, port = await serve("127.96.7.9", b"mine")
        spec = {"clusterIP": "127.96.7.9", "ports": [{"name": "http", "port": port}]}
        await cluster.client.create(Service, {"metadata": {"name": "web"}, "spec": spec}, "default")
        told = asyncio.Queue()
        proxy = ServiceProxy(cluster.informers, told.put_nowait)
        await proxy.start()
        try:
            event = await asyncio.wait_for(told.get(), 30)
        finally:
            await proxy.close()
            squatter.close()
        assert (event.target.name, event.reason) == ("web", "FailedToListen")
        assert event.message == f"nothing answers at 127.96.7.9:{port}: Address already in use"

    live(story)
