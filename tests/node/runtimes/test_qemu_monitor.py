"""What is asked of QEMU's monitor, and in which order it answers."""

import asyncio
import contextlib
import json
import os
import socket
from types import SimpleNamespace

import pytest

from hekla.node.runtimes.microvm import qemu
from hekla.node.runtimes.microvm.monitor import MachineError
from hekla.node.runtimes.microvm.qemu import QemuMachine
from hekla.node.runtimes.microvm.qmp import Qmp


class Monitor:
    """As QEMU: it tells that all is written while it is still finishing, and refuses to go on until it has finished."""

    def __init__(self, link, looks):
        self.link, self.looks_left, self.asked = link, looks, []

    @property
    def is_finishing(self):
        return "migrate" in self.asked and self.looks_left > 0

    async def answer(self):
        loop = asyncio.get_running_loop()
        await self.say({"QMP": {}})
        inbox = b""
        while data := await loop.sock_recv(self.link, 1 << 16):
            inbox += data
            orders, inbox = self.orders_in(inbox)
            for order in orders:
                await self.take(order)

    @staticmethod
    def orders_in(inbox):
        """JSON documents that stand one behind the other, and what is left."""
        found, decoder, text = [], json.JSONDecoder(), inbox.decode()
        while text:
            try:
                order, end = decoder.raw_decode(text)
            except json.JSONDecodeError:
                break
            found.append(order)
            text = text[end:].lstrip()
        return found, text.encode()

    async def take(self, order):
        name = order["execute"]
        self.asked.append(name)
        if name == "cont" and self.is_finishing:
            await self.say({"id": order["id"], "error": {"desc": "Migration is not finalized yet"}})
            return
        told = {}
        if name == "query-status":
            told = {"status": "finish-migrate" if self.is_finishing else "postmigrate"}
            self.looks_left -= 1
        await self.say({"id": order["id"], "return": told})
        if name == "migrate":
            await self.say({"event": "MIGRATION", "data": {"status": "completed"}})

    async def say(self, told):
        await asyncio.get_running_loop().sock_sendall(self.link, json.dumps(told).encode() + b"\r\n")


def story(looks, told):
    async def whole():
        ours, its = socket.socketpair()
        its.setblocking(False)
        monitor = Monitor(its, looks)
        answering = asyncio.create_task(monitor.answer())
        qmp = Qmp(ours)
        try:
            await qmp.greet()
            await told(QemuMachine(SimpleNamespace(pid=0), -1, qmp, -1), monitor)
        finally:
            qmp.close()
            with contextlib.suppress(BrokenPipeError):  # it was answering still
                await answering
            its.close()

    asyncio.run(whole())


def test_a_machine_goes_on_once_its_monitor_has_finished_writing_it_down():
    """It was asked to go on when all was told as written: refused a little too early, it stood still for ever."""

    async def told(machine, monitor):
        with open(os.devnull, "wb") as output:
            await machine.pause()
            await machine.write_down(output.fileno())
            await machine.resume()
        assert monitor.asked[-4:] == ["query-status", "query-status", "query-status", "cont"]

    story(2, told)


def test_a_monitor_that_never_finishes_is_told_of(monkeypatch):
    monkeypatch.setattr(qemu, "SETTLES_S", 0.0)

    async def told(machine, monitor):
        with open(os.devnull, "wb") as output, pytest.raises(MachineError, match="has not settled within"):
            await machine.write_down(output.fileno())

    story(10**9, told)
