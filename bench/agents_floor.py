"""The floor under a session from a pool: the least that Python on this machine takes for one, with nothing of what makes it a session.

A server writes a row (SQLite, as sessions are written), tells a parked child whose it is and passes one request on to it; the child runs a
program. No keys, quotas, objects, scheduler, gateway or isolation. By itself: after a rest of 0.3 s, as `agents.py` does it; and one behind the other.
"""

import asyncio
import json
import os
import signal
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import uvloop

from bench.report import Report, percentile, run_alone

ROUNDS, REST_S, LONGEST = 80, 0.3, 65536
PROGRAM = "/bin/true"


def run_program() -> bytes:
    """Both of its outputs, read to their end, and how it ended."""
    read_out, out = os.pipe()
    read_err, err = os.pipe()
    moves = [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
    pid = os.posix_spawn(PROGRAM, [PROGRAM], dict(os.environ), file_actions=moves, setsid=True)
    os.close(out)
    os.close(err)
    said = [os.read(one, LONGEST).decode() for one in (read_out, read_err)]
    status = os.waitpid(pid, 0)[1]
    os.close(read_out)
    os.close(read_err)
    return json.dumps({"stdout": said[0], "stderr": said[1], "exit_code": status}).encode()


def parked(orders: socket.socket) -> None:
    """A child that waits for one order after the other, warm: it has run a program before."""
    run_program()
    while order := orders.recv(LONGEST):
        told = json.loads(order)
        if told["op"] == "claim":
            os.environ.update(told["env"])
            orders.send(b"{}")
        else:
            orders.send(run_program())
    os._exit(0)


def parked_children(count: int) -> list[socket.socket]:
    """Our ends of their sockets; they end with these."""
    ends: list[socket.socket] = []
    for _ in range(count):
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            for end in (*ends, own):
                end.close()
            parked(its)
        its.close()
        own.setblocking(False)
        ends.append(own)
    return ends


class Door(asyncio.Protocol):
    """Takes whole requests: `/create`, or the id of a session."""

    def __init__(self, rows: apsw.Connection, free: list[socket.socket], held: dict[str, socket.socket]) -> None:
        self._rows, self._free, self._held = rows, free, held

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._task = asyncio.get_running_loop().create_task(self._answer(data))

    async def _answer(self, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        path, asked = head.split(b" ", 2)[1], json.loads(body)
        answer = await (self._create(body) if path == b"/create" else self._ask(path[1:].decode(), asked))
        told = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
        self._transport.write(told + answer)

    async def _create(self, body: bytes) -> bytes:
        session = os.urandom(8).hex()
        self._held[session] = self._free.pop()
        self._rows.execute("INSERT INTO session VALUES (?, ?)", (session, body))
        await self._ask(session, {"op": "claim", "session": session, "env": {"SESSION": session}})
        self._rows.execute("UPDATE session SET row = ? WHERE id = ?", (body, session))
        return json.dumps({"id": session}).encode()

    async def _ask(self, session: str, order: dict[str, Any]) -> bytes:
        child = self._held[session]
        child.send(json.dumps(order).encode())
        return await asyncio.get_running_loop().sock_recv(child, LONGEST)


def serve(folder: Path, children: list[socket.socket], told: int) -> None:
    """Tell the port, and serve until killed."""
    rows = apsw.Connection(str(folder / "floor.db"))
    for statement in (
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=NORMAL",
        "CREATE TABLE session (id TEXT PRIMARY KEY, row BLOB) WITHOUT ROWID",
    ):
        rows.execute(statement).fetchall()

    async def run() -> None:
        held: dict[str, socket.socket] = {}
        server = await asyncio.get_running_loop().create_server(lambda: Door(rows, children, held), "127.0.0.1", 0)
        os.write(told, str(server.sockets[0].getsockname()[1]).encode())
        await server.serve_forever()

    uvloop.run(run())


def asked(connection: socket.socket, path: str, body: dict[str, Any]) -> tuple[float, Any]:
    """Milliseconds, and the answer's document."""
    data = json.dumps(body).encode()
    request = f"POST /{path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
    began = time.perf_counter()
    connection.sendall(request)
    answer = connection.recv(LONGEST)
    return (time.perf_counter() - began) * 1e3, json.loads(answer.partition(b"\r\n\r\n")[2])


def floor(report: Report, folder: Path, rest_s: float) -> None:
    """One server and its children, asked once a session."""
    children = parked_children(report.scaled(ROUNDS))
    reader, told = os.pipe()
    server = os.fork()
    if server == 0:
        serve(folder, children, told)
    for end in children:
        end.close()
    creates, wholes = [], []
    try:
        with closing(socket.create_connection(("127.0.0.1", int(os.read(reader, 16))))) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in children:
                time.sleep(rest_s)
                created, session = asked(connection, "create", {"name": "warm"})
                more, ran = asked(connection, session["id"], {"op": "run"})
                assert ran["exit_code"] == 0, ran
                creates.append(created)
                wholes.append(created + more)
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    how = "by itself" if rest_s else "one behind the other"
    for what, taken in (("create", creates), ("create to first program", wholes)):
        report.add(f"the floor: {what}, {how}, p50", percentile(taken, 0.5), "ms")
        report.add(f"the floor: {what}, {how}, p99", percentile(taken, 0.99), "ms")


def run(report: Report) -> None:
    """The least that a session from a pool takes in Python here: a row, a message to a parked child, a program in it."""
    for rest_s in (REST_S, 0.0):
        with report.folder() as folder:
            floor(report, folder, rest_s)


if __name__ == "__main__":
    run_alone("agents_floor", run)
