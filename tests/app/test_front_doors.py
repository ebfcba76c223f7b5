"""Who comes as soon as `hekla up` says that it is ready waits for the feature behind the door instead of being refused."""

import asyncio
import socket

from hekla.app import embedded
from hekla.app.data_directory import DataDirectory
from hekla.app.front_doors import open_door, url_of
from hekla.app.settings import Settings
from hekla.wire.accepting import Port


def port_in(text):
    return int(text.strip().rpartition(":")[2])


def test_every_front_door_is_open_when_the_platform_is_ready(monkeypatch, tmp_path):
    """Gateway and router listened 3 to 4 s after the word, and the files that say where were not there either."""

    async def nothing(*_given):
        await asyncio.Event().wait()

    monkeypatch.setattr(embedded, "run_features", nothing)
    directory = DataDirectory(tmp_path)
    directory.agents_url.write_text("http://127.0.0.1:1\n")  # of a life that was killed

    async def story():
        settings = Settings(data_dir=tmp_path, port=0, router_port=0, agents_port=0, nodes=0)
        async with embedded.platform(settings):
            for url, keys in (
                (directory.router_url, directory.router_keys),
                (directory.agents_url, directory.agents_key),
            ):
                socket.create_connection(("127.0.0.1", port_in(url.read_text())), timeout=10).close()
                assert keys.read_text().startswith("admin: ")
                assert keys.stat().st_mode & 0o777 == 0o600
        assert not directory.router_url.exists()
        assert not directory.agents_url.exists()

    asyncio.run(story())


def test_what_is_left_out_has_no_door(monkeypatch, tmp_path):
    async def nothing(*_given):
        await asyncio.Event().wait()

    monkeypatch.setattr(embedded, "run_features", nothing)
    directory = DataDirectory(tmp_path)

    async def story():
        without = frozenset({"router", "agents"})
        async with embedded.platform(Settings(data_dir=tmp_path, port=0, nodes=0, without=without)):
            assert not any(one.exists() for one in (directory.router_url, directory.agents_url))

    asyncio.run(story())


def test_who_waited_at_a_door_is_let_in_once_somebody_serves_there():
    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

    async def story():
        door = open_door(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", door.getsockname()[1])
        writer.write(b"early")
        port = Port(Echo)
        assert port.take(door) == door.getsockname()[1]
        assert await reader.readexactly(5) == b"early"
        writer.close()
        port.close()

    asyncio.run(story())


def test_a_door_whose_port_is_taken_opens_at_another():
    with open_door(0) as taken:
        number = taken.getsockname()[1]
        with open_door(number) as other:
            assert url_of(other) != url_of(taken)
