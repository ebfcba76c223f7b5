"""HTTPS on either side: engines by address are not checked unless a CA was given, names are, and clients may ask over TLS."""

import asyncio
import ssl
from pathlib import Path

import pytest

from hekla.serving.router.plan import Fault
from hekla.serving.router.proxy.bounds import Bounds
from hekla.testing.desk import Engine
from serving.router import proxykit as kit
from wire.certificates import Authority

pytestmark = pytest.mark.usefixtures("lane")


def server_side(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("engine"))
    return context


def authority(folder: Path, name: str) -> Authority:
    (folder / name).mkdir()
    return Authority(folder / name)


def test_an_engine_that_speaks_https_is_reached_by_its_address(tmp_path: Path) -> None:
    async def story() -> None:
        stream = kit.stream(kit.event("a"), kit.DONE)
        async with kit.plane(kit.says(stream), engine_tls=server_side(authority(tmp_path, "ca"))) as plane:
            client = await plane.client()
            for _ in range(3):
                assert (await client.ask(kit.chat(stream=True))).body == kit.event("a") + kit.DONE
            assert plane.engines[0].connections == 1

    kit.run(story())


@pytest.mark.parametrize("is_right", [True, False])
def test_engines_are_checked_against_a_ca_that_was_given(tmp_path: Path, is_right: bool) -> None:
    async def story() -> None:
        own, other = authority(tmp_path, "own"), authority(tmp_path, "other")
        given = str((own if is_right else other).file)
        async with kit.plane(kit.says(kit.whole()), engine_tls=server_side(own), engine_ca_file=given) as plane:
            answer = await plane.ask(kit.chat())
            assert answer.status == (200 if is_right else 503)
            assert plane.desk.plans[0].faults == ([] if is_right else [Fault.CONNECT])

    kit.run(story())


def test_a_providers_certificate_is_checked(tmp_path: Path) -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole()), engine_tls=server_side(authority(tmp_path, "ca"))) as plane:
            plane.desk.engines["m"] = [
                Engine("provider", "localhost", plane.engines[0].port, is_tls=True, verifies=True)
            ]
            assert (await plane.ask(kit.chat())).status == 503
            assert plane.desk.plans[0].faults == [Fault.CONNECT]
            assert not plane.engines[0].asked

    kit.run(story())


def test_clients_may_ask_over_tls(tmp_path: Path) -> None:
    async def story() -> None:
        own = authority(tmp_path, "ca")
        async with kit.plane(kit.says(kit.whole()), client_tls=server_side(own)) as plane:
            context = ssl.create_default_context(cafile=str(own.file))
            streams = await asyncio.open_connection("127.0.0.1", plane.port, ssl=context)
            client = kit.Client(*streams)
            plane.clients.append(client)
            for _ in range(3):
                assert (await client.ask(kit.chat())).body == kit.DOCUMENT
            bad = kit.Client(*await asyncio.open_connection("127.0.0.1", plane.port))
            plane.clients.append(bad)
            await bad.send(kit.chat())
            assert await bad.closed() == b"", "plain HTTP on a port for HTTPS"

    kit.run(story())


def test_a_flood_that_says_no_word_of_tls_has_no_more_places_for_coming_by_two_ports(tmp_path: Path) -> None:
    """Each port counted its own, so a Gateway with many listeners for HTTPS could lose every file all the same."""

    async def story() -> None:
        context = server_side(authority(tmp_path, "ca"))
        async with kit.plane(bounds=Bounds(connections=4), client_tls=context) as plane:
            second = await plane.listener.listen("second", "127.0.0.1", 0, tls=context)
            silent = [
                await asyncio.open_connection("127.0.0.1", port) for port in (plane.port, second) for _ in range(21)
            ]
            turned_away = [asyncio.create_task(reader.read()) for reader, _ in silent[21:]]
            async with asyncio.timeout(kit.PATIENCE_S):
                assert await asyncio.gather(*turned_away) == [b""] * 21
            assert plane.listener.entering == 21, "the first have their time to agree"
            for _, writer in silent:
                writer.close()

    kit.run(story())
