"""A sandbox that waited has run a program before its owner's first, and been claimed if it is next; nothing of that is to be seen."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from hekla.api.agents.node_contract import Claim
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes
from hekla.sandbox.daemon.rehearsal import WANTED_AT
from hekla.sandbox.gateway.minting import Mint, new_private_key
from hekla.sandbox.sessions.records import Session
from hekla.testing.conformance.runtimes import PATIENCE_S
from hekla.testing.conformance.sandboxes import Sandboxes

FEW_PAGES = 100
"""A first program copies 300 of its daemon's, a second 10."""
FEWER_PAGES = 80
"""A claim and a first program with its token copy 24 (68 on Python 3.14) where both were rehearsed, and 140 where only the program was."""
TRUE = {"command": ["/bin/true"]}


def live(tmp_path, story):
    async def told():
        runtime = ZygoteSandboxes(tmp_path / "state of a node", warm=1, preload=())
        await runtime.open(lambda key, end: None)
        try:
            if runtime.refusal:
                pytest.skip(runtime.refusal)
            await story(runtime, Sandboxes(runtime))
        finally:
            await runtime.close()

    asyncio.run(told())


def copied(pid):
    """Pages that a process had to copy or to map so far."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


async def rested(runtime, made):
    """A sandbox of the stock whose rehearsal is over, and its daemon as the host numbers it."""
    await made.runtime.stop(await made.start("first"), grace_s=0)  # the stock is made once one was asked for
    async with asyncio.timeout(PATIENCE_S):
        while not (runtime._zygotes._warm and was_rehearsed(runtime._zygotes._warm[0].pid)):
            await asyncio.sleep(0.01)
    cell = runtime._zygotes._warm[0]
    await cell.channel.ask("ping")  # orders are heard again afterwards
    return await made.start("rested"), cell.pid


async def until_still(runtime, daemon):
    """Until it answers and writes to nothing new meanwhile."""
    (box,) = (box for box in runtime._boxes.values() if box.cell.pid == daemon)
    pages = []
    async with asyncio.timeout(PATIENCE_S):
        while len(pages) < 5 or len(set(pages[-5:])) > 1:
            await box.cell.channel.ask("ping")
            pages.append(copied(daemon))


def was_rehearsed(pid):
    """Whether a daemon has waited for a child that ran a program: it counts what those took."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[8]) > 0


def test_its_first_program_copies_few_of_its_daemons_pages(tmp_path):
    async def story(runtime, made):
        key, daemon = await rested(runtime, made)
        await made.runtime.claim(key, Claim(session="s"))
        before = copied(daemon)
        assert (await made.ask(key, "/api/execute", TRUE))[0] == 200
        assert copied(daemon) - before < FEW_PAGES

    live(tmp_path, story)


def test_nobody_sees_that_a_program_ran(tmp_path):
    async def story(runtime, made):
        key, _ = await rested(runtime, made)
        fresh = await made.start("fresh")
        seen = []
        for one in (key, fresh):
            await made.runtime.claim(one, Claim(session=f"s-{one.pod_uid}"))
            listed = await made.ask(one, "/process.Process/List", {})
            seen.append((listed, await made.sh(one, "ls -lAR --time-style=+ /tmp /home /workspace /run")))
            assert [each["message"] for each in await journal_of(made, one)] == []
        assert seen[0] == seen[1]

    live(tmp_path, story)


@pytest.mark.parametrize("is_next", [True, False])
def test_neither_the_claim_nor_the_first_token_copies_many_pages(tmp_path, is_next):
    """Of one that a gateway gives away next, and of any other that has rested: in a burst all are claimed at once."""

    async def story(runtime, made):
        key, daemon = await rested(runtime, made)
        mint, secret = Mint(new_private_key()), "5" * 64
        row = Session(id="s", kind="", namespace="", name="", owner="o", door="", sandbox_uid="u", token_key=secret)
        connection = await asyncio.open_connection(sock=await runtime.dial(key, 0))
        if is_next:
            assert (await asked(connection, WANTED_AT))[0] == 204
        else:
            await until_still(runtime, daemon)
        before = copied(daemon)
        told = {"session": "s", "public_key": mint.public_pem, "audience": "u", "token_key": secret}
        await made.runtime.claim(key, Claim(**told))
        token = mint.line(row, time.time())
        status, answer = await asked(connection, "/api/execute", TRUE, token)
        assert (status, answer["exit_code"]) == (200, 0)
        assert copied(daemon) - before < FEWER_PAGES
        for wrong in (b"", token.replace(b".", b".e30", 1)):
            connection = await asyncio.open_connection(sock=await runtime.dial(key, 0))
            assert (await asked(connection, "/api/execute", TRUE, wrong))[0] == 401

    live(tmp_path, story)


def test_only_whoever_is_nobodys_rehearses_and_nothing_else_is_let_in_for_it(tmp_path):
    async def story(runtime, made):
        key = await made.start("s")
        for path, status in ((WANTED_AT, 204), (WANTED_AT, 204), ("/api/execute", 503), ("/api/rehearsal", 503)):
            assert (await made.ask(key, path, TRUE))[0] == status
        await made.runtime.claim(key, Claim(session="s"))
        assert (await made.ask(key, WANTED_AT, {}))[0] == 404
        assert [each["message"] for each in await journal_of(made, key)] == []

    live(tmp_path, story)


async def asked(connection, path, body=None, token=b""):
    """One of several requests on a connection: status and document."""
    reader, writer = connection
    data = json.dumps(body or {}).encode()
    writer.write(
        b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (path.encode(), token, len(data), data)
    )
    async with asyncio.timeout(PATIENCE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
        answer = await reader.readexactly(int(length or b"0"))
    return int(head.split()[1]), json.loads(answer or b"{}")


async def journal_of(made, key):
    reader, writer = await asyncio.open_connection(sock=await made.runtime.dial(key, 0))
    writer.write(b"GET /journal HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])
