"""What every `SandboxRuntime` promises. A runtime's test class inherits `SandboxContract` and says how to open one.

Promises that need a feature are skipped where the runtime does not declare it.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hekla.api.agents.names import ISOLATION_STRENGTHS
from hekla.api.agents.node_contract import CheckpointKind, Claim
from hekla.node.runtimes import ContainerKey, ContainerSpec, Feature, Mount, StartError
from hekla.node.runtimes.sandbox import SandboxError, SandboxFeature, SandboxRuntime, bundle
from hekla.testing.conformance.runtimes import PATIENCE_S, output_of

DAEMON = 0


@dataclass
class Sandboxes:
    """A runtime under test and what its promises ask of it."""

    runtime: SandboxRuntime

    async def start(self, name: str = "a", **fields: object) -> ContainerKey:
        """A sandbox that nobody has claimed."""
        key = ContainerKey(name, "main", 0)
        await self.runtime.start(ContainerSpec(key=key, argv=(), hostname=name, **fields))  # type: ignore[arg-type]  # named fields of the spec
        return key

    async def claimed(self, name: str = "a", **fields: object) -> ContainerKey:
        """A sandbox of session `s-<name>`."""
        key = await self.start(name, **fields)
        await self.runtime.claim(key, Claim(session=f"s-{name}"))
        return key

    async def sh(self, key: ContainerKey, script: str) -> str:
        """What a shell printed."""
        output, errors, code = await output_of(await self.runtime.exec(key, ["sh", "-c", script]))
        assert code == 0, errors
        return output

    async def ask(self, key: ContainerKey, path: str, body: object, port: int = DAEMON) -> tuple[int, bytes]:
        """One request to a server inside: status and body."""
        reader, writer = await asyncio.open_connection(sock=await self.runtime.dial(key, port))
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read()
        writer.close()
        head_, _, rest = answer.partition(b"\r\n\r\n")
        return int(head_.split()[1]), rest

    async def printed(self, key: ContainerKey, code: str) -> str:
        """What a cell of the first interpreter printed."""
        _, body = await self.ask(key, "/execute", {"code": code})
        told = [json.loads(line) for line in body.splitlines() if line.startswith(b"{")]
        return "".join(one["text"] for one in told if one["type"] == "stdout")


class SandboxContract:
    """The promises. Each test runs its own event loop."""

    has_hosts_clock = True
    """What is spent inside is what the host counts; a machine's kernel counts the time that its host gave to others, too."""

    def open_runtime(self, directory: Path) -> SandboxRuntime:
        """A new runtime that keeps its state in `directory`."""
        raise NotImplementedError

    def live(
        self, directory: Path, story: Callable[[Sandboxes], Awaitable[None]], needs: Sequence[SandboxFeature] = ()
    ) -> None:
        """Open the runtime, live the story, close it; skipped where the host or the runtime cannot."""

        async def told() -> None:
            runtime = self.open_runtime(directory)
            await runtime.open(lambda key, end: None)
            try:
                missing = set(needs) - runtime.sandbox_features
                if runtime.refusal or missing:
                    pytest.skip(runtime.refusal or f"{runtime.name} has no {', '.join(sorted(missing))}")
                await story(Sandboxes(runtime))
            finally:
                await runtime.close()

        asyncio.run(told())

    def test_it_says_how_strongly_it_isolates(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            assert made.runtime.isolation in ISOLATION_STRENGTHS

        self.live(tmp_path, story)

    def test_a_link_that_is_put_into_the_way_of_a_sub_path_is_not_followed(self, tmp_path: Path) -> None:
        """A volume may be another sandbox's too, which swaps it in after the agent has looked."""
        outside, exact = tmp_path / "outside", tmp_path / "volume" / "sub"
        outside.mkdir()
        exact.mkdir(parents=True)

        async def story(made: Sandboxes) -> None:
            if Feature.MOUNTS not in made.runtime.features:
                pytest.skip("the runtime mounts nothing")
            for is_read_only in (False, True):
                mount = Mount(source=exact, target="/data", is_read_only=is_read_only, is_exact=True)
                (exact / "seen").write_text("mine")
                key = await made.claimed(f"a{is_read_only}", mounts=(mount,))
                assert await made.sh(key, "cat /data/seen") == "mine"
                exact.rename(tmp_path / f"aside-{is_read_only}")
                exact.symlink_to(outside)
                with pytest.raises(StartError):
                    await made.start(f"b{is_read_only}", mounts=(mount,))
                exact.unlink()
                exact.mkdir()

        self.live(tmp_path, story)

    def test_nobody_is_served_before_the_claim_and_one_session_after_it(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.start()
            assert made.runtime.session_of(key) == ""
            assert (await made.ask(key, "/api/execute", {"command": ["true"]}))[0] == 503
            waited = await made.runtime.usage(key)
            assert await made.runtime.claim(key, Claim(session="s-1", env={"WHO": "one"}, hostname="named"))
            used = await made.runtime.usage(key)
            assert used.wall_s - (used.at - waited.at) < waited.wall_s / 2, "who waited for it is nobody's account"
            assert not await made.runtime.claim(key, Claim(session="s-1"))
            with pytest.raises(SandboxError, match="another session") as refusal:
                await made.runtime.claim(key, Claim(session="s-2"))
            assert (refusal.value.code, made.runtime.session_of(key)) == (409, "s-1")
            status, body = await made.ask(key, "/api/execute", {"command": ["sh", "-c", "echo $WHO; hostname"]})
            assert (status, json.loads(body)["stdout"]) == (200, "one\nnamed\n")

        self.live(tmp_path, story)

    def test_claims_at_once_are_one_claim(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.start()
            claims = [made.runtime.claim(key, Claim(session=f"s-{number}")) for number in range(8)]
            ends = await asyncio.gather(*claims, return_exceptions=True)
            assert [end for end in ends if not isinstance(end, SandboxError)] == [True]

        self.live(tmp_path, story)

    def test_what_is_not_there_is_404(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.claimed()
            await made.runtime.stop(key, grace_s=0)
            for question in (made.runtime.freeze(key), made.runtime.dial(key, 80), made.runtime.usage(key)):
                with pytest.raises(SandboxError) as refusal:
                    await question
                assert refusal.value.code == 404

        self.live(tmp_path, story)

    def test_a_server_inside_is_dialled_and_a_port_without_one_is_a_sentence(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.claimed()
            listening = await made.runtime.listen(key, 3128)
            accepted = asyncio.create_task(
                made.sh(
                    key,
                    "exec 2>&1; python3 -c \"import socket; s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'hi')\"",
                )
            )
            async with asyncio.timeout(PATIENCE_S):
                connection, _ = await asyncio.get_running_loop().sock_accept(listening)
                await accepted
            assert connection.recv(10) == b"hi"
            connection.close()
            dialled = await made.runtime.dial(key, 3128)
            dialled.close()
            listening.close()
            with pytest.raises(SandboxError, match="nothing listens on port 9999"):
                await made.runtime.dial(key, 9999)
            with pytest.raises(SandboxError, match="no"):
                await made.runtime.dial(key, 70000)

        self.live(tmp_path, story)

    def test_sandboxes_see_nothing_of_each_other(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            first, second = await asyncio.gather(made.claimed("a"), made.claimed("b"))
            await made.sh(first, "echo mine > /tmp/f; echo mine > /dev/shm/f; (sleep 1000 &) ")
            assert (
                await made.sh(second, "cat /tmp/f /dev/shm/f 2>/dev/null; ps -e -o comm= | grep sleep; echo done")
                == "done\n"
            )
            listening = await made.runtime.listen(first, 8000)
            with pytest.raises(SandboxError, match="nothing listens"):
                await made.runtime.dial(second, 8000)
            listening.close()

        self.live(tmp_path, story)

    def test_nothing_runs_while_it_is_frozen_and_everything_goes_on(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.claimed()
            await made.sh(
                key,
                "(i=0; while :; do i=$((i+1)); echo $i > /tmp/n; done) >/dev/null 2>&1 & until [ -s /tmp/n ]; do sleep 0.01; done",
            )
            await made.runtime.freeze(key)
            await made.runtime.freeze(key)
            assert made.runtime.is_frozen(key)
            before = (await made.runtime.usage(key)).cpu_us
            with pytest.raises(SandboxError, match="frozen"):
                await made.runtime.dial(key, 80)
            await asyncio.sleep(0.1)
            assert (await made.runtime.usage(key)).cpu_us == before
            await made.runtime.thaw(key)
            await made.runtime.thaw(key)
            first = await made.sh(key, "cat /tmp/n")
            async with asyncio.timeout(PATIENCE_S):
                while await made.sh(key, "cat /tmp/n") == first:
                    pass
            assert (await made.runtime.usage(key)).frozen_s >= 0.1

        self.live(tmp_path, story, [SandboxFeature.FREEZE])

    def test_an_order_to_freeze_or_to_thaw_that_a_later_one_has_overtaken_is_refused(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key, runtime = await made.claimed(), made.runtime
            await runtime.freeze(key, 4)
            await runtime.freeze(key, 4)
            await runtime.thaw(key, 5)
            with pytest.raises(SandboxError, match="too late") as refusal:
                await runtime.freeze(key, 4)
            assert (refusal.value.code, runtime.is_frozen(key), runtime.last_order(key)) == (409, False, 5)
            await runtime.thaw(key, 7)  # it runs already, and an order between is too late all the same
            with pytest.raises(SandboxError, match="too late"):
                await runtime.freeze(key, 6)
            await runtime.freeze(key, 8)
            with pytest.raises(SandboxError, match="too late"):
                await runtime.thaw(key, 7)
            assert runtime.is_frozen(key)
            await runtime.thaw(key)  # without a number: always obeyed
            assert await made.sh(key, "echo here") == "here\n"

        self.live(tmp_path, story, [SandboxFeature.FREEZE])

    def test_of_orders_that_come_at_once_the_last_word_is_kept(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key, runtime = await made.claimed(), made.runtime
            for number in range(2, 12, 2):
                await asyncio.gather(runtime.freeze(key, number), runtime.thaw(key, number + 1))
                assert not runtime.is_frozen(key)
            assert await made.sh(key, "echo here") == "here\n"

        self.live(tmp_path, story, [SandboxFeature.FREEZE])

    def test_a_frozen_sandbox_can_be_stopped(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.claimed()
            await made.runtime.freeze(key)
            async with asyncio.timeout(PATIENCE_S):
                await made.runtime.stop(key, grace_s=0)

        self.live(tmp_path, story, [SandboxFeature.FREEZE])

    def test_files_come_along_and_nothing_special_does(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            first, second = await asyncio.gather(made.claimed("a"), made.claimed("b"))
            await made.sh(
                first,
                "cd /home/user; mkdir d; echo text > d/f; ln d/f d/hard; ln -s /etc/passwd d/soft; chmod 640 d/f; mkfifo d/p; truncate -s 5M d/big",
            )
            with open(tmp_path / "packed", "w+b") as packed:
                left_out = await made.runtime.pack(first, CheckpointKind.FILESYSTEM, packed.fileno())
                assert [one.split(":")[0] for one in left_out] == ["/home/user/d/p"]
                await made.runtime.unpack(second, CheckpointKind.FILESYSTEM, packed.fileno())
            told = await made.sh(
                second, "cd /home/user/d; cat hard; stat -c '%a %h %s' f big; readlink soft; ls p 2>/dev/null; hostname"
            )
            assert told == "text\n640 2 5\n644 1 5242880\n/etc/passwd\nb\n"

        self.live(tmp_path, story, [SandboxFeature.CHECKPOINT_FILES])

    def test_variables_come_along(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            first, second = await asyncio.gather(made.claimed("a"), made.claimed("b"))
            await made.ask(
                first,
                "/execute",
                {
                    "code": "x = {'deep': [1, 2]}\ny = x['deep']\ndef f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nz = open('/etc/hosts')"
                },
            )
            with open(tmp_path / "packed", "w+b") as packed:
                left_out = await made.runtime.pack(first, CheckpointKind.INTERPRETER, packed.fileno())
                await made.runtime.unpack(second, CheckpointKind.INTERPRETER, packed.fileno())
            assert len(left_out) == 1
            assert " z: " in left_out[0]
            said = await made.printed(second, "y.append(3); print(x, f(10), 'z' in globals())")
            assert said == "{'deep': [1, 2, 3]} 55 False\n"

        self.live(tmp_path, story, [SandboxFeature.CHECKPOINT_INTERPRETER])

    def test_a_copy_is_filled_and_claimed_in_one_go_and_is_one_sessions(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            parent, child = await asyncio.gather(made.claimed("a"), made.start("b"))
            await made.sh(parent, "echo kept > /home/user/note")
            await made.ask(parent, "/execute", {"code": "import os; x = os.environ.get('WHOSE', 'nobody'); y = [x]"})
            with open(tmp_path / "packed", "w+b") as packed:
                await made.runtime.pack(parent, CheckpointKind.INTERPRETER, packed.fileno())
                claim = Claim(session="s-b", env={"WHOSE": "b"})
                assert await made.runtime.claim_as_copy(child, packed.fileno(), claim)
                assert not await made.runtime.claim_as_copy(child, packed.fileno(), claim)
                with pytest.raises(SandboxError, match="another session"):
                    await made.runtime.claim_as_copy(child, packed.fileno(), Claim(session="s-c"))
            assert made.runtime.session_of(child) == "s-b"
            code = "print(y, open('/home/user/note').read().strip(), __import__('os').environ['WHOSE'])"
            assert await made.printed(child, code) == "['nobody'] kept b\n"

        self.live(tmp_path, story, [SandboxFeature.FORK])

    def test_a_claim_that_was_expected_before_its_pod_came_is_like_any_other(self, tmp_path: Path) -> None:
        """Its daemon hears of it as it starts; who claims it then is the first, once. One that was let go was never expected."""

        async def story(made: Sandboxes) -> None:
            claim = Claim(session="s-a", env={"WHOSE": "a", "POD": "the claim's"}, hostname="mine")
            made.runtime.expect_claim("a", claim)
            made.runtime.expect_claim("b", claim)
            made.runtime.let_claim_go("b")
            key, other = await asyncio.gather(made.start("a", env={"POD": "its own", "KEPT": "1"}), made.start("b"))
            with pytest.raises(SandboxError, match="another session"):
                await made.runtime.claim(key, Claim(session="s-c"))
            assert [await made.runtime.claim(key, claim) for _ in range(2)] == [True, False]
            made.runtime.let_claim_go("a")
            assert made.runtime.session_of(key) == "s-a"
            seen = "import os; print(*(os.environ.get(name) for name in ('WHOSE', 'POD', 'KEPT')), os.uname().nodename)"
            assert await made.printed(key, seen) == "a the claim's 1 mine\n"
            assert await made.sh(key, "echo $WHOSE $KEPT") == "a 1\n"
            assert made.runtime.session_of(other) == ""
            assert await made.runtime.claim(other, Claim(session="s-b"))

        self.live(tmp_path, story)

    def test_a_key_is_taken_by_a_daemon_only_if_it_was_told_that_very_one(self, tmp_path: Path) -> None:
        """Who begins to make a session anew has another key than the one that was expected."""

        async def story(made: Sandboxes) -> None:
            claim = Claim(session="s-a", public_key="", token_key="an early key")
            for pod in "ab":
                made.runtime.expect_claim(pod, claim)
            same, other = await asyncio.gather(made.start("a"), made.start("b"))
            assert await made.runtime.claim(same, claim)
            assert made.runtime.takes_key(same)
            assert await made.runtime.claim(other, Claim(session="s-a", public_key="", token_key="a later key"))
            assert not made.runtime.takes_key(other)

        self.live(tmp_path, story)

    def test_a_pod_with_a_command_of_its_own_is_claimed_when_it_runs(self, tmp_path: Path) -> None:
        """What it runs is older than its claim, whoever expected that."""

        async def story(made: Sandboxes) -> None:
            claim = Claim(session="s-a", env={"WHOSE": "a"})
            made.runtime.expect_claim("a", claim)
            key = ContainerKey("a", "main", 0)
            await made.runtime.start(ContainerSpec(key=key, argv=("sleep", "600"), hostname="a"))
            assert made.runtime.session_of(key) == ""
            assert await made.runtime.claim(key, claim)

        self.live(tmp_path, story)

    def test_a_copy_that_was_expected_before_its_pod_came_is_like_any_other(self, tmp_path: Path) -> None:
        """And whoever copies it again gets what it got, though that was there before its pod was."""

        async def story(made: Sandboxes) -> None:
            parent, warm = await asyncio.gather(made.claimed("a"), made.start("w"))
            await made.sh(
                parent, "echo kept > /home/user/note; echo 'zoe:x:1001:1001::/home/user:/bin/sh' >> /etc/passwd"
            )
            await made.ask(parent, "/execute", {"code": "import os; y = [os.environ.get('WHOSE', 'nobody')]"})
            seen = "import os; print(y, open('/home/user/note').read().strip(), 'zoe' in open('/etc/passwd').read(), "
            seen += "*(os.environ.get(name) for name in ('WHOSE', 'POD', 'HOSTNAME', 'HOME')), os.uname().nodename)"
            with open(tmp_path / "packed", "w+b") as packed:
                await made.runtime.pack(parent, CheckpointKind.INTERPRETER, packed.fileno())
                claim = Claim(session="s-b", env={"WHOSE": "b"})
                made.runtime.expect_copy(parent, "b", packed.fileno(), claim)
                child = await made.start("b", env={"POD": "its own", "HOME": "/"})
                await made.runtime.claim_as_copy(child, packed.fileno(), claim)
                made.runtime.let_copy_go("b")
                with pytest.raises(SandboxError, match="another session"):
                    await made.runtime.claim(child, Claim(session="s-c"))
            assert made.runtime.session_of(child) == "s-b"
            assert await made.printed(child, seen) == "['nobody'] kept True b its own b /home/user b\n"
            with open(tmp_path / "again", "w+b") as packed:
                await made.runtime.pack(child, CheckpointKind.INTERPRETER, packed.fileno())
                await made.runtime.claim_as_copy(warm, packed.fileno(), Claim(session="s-w", env={"WHOSE": "w"}))
            assert await made.printed(warm, seen) == "['nobody'] kept True w None w /home/user w\n"

        self.live(tmp_path, story, [SandboxFeature.FORK])

    def test_a_pod_that_is_not_like_the_one_it_was_to_copy_gets_what_it_asks_for(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            parent = await made.claimed("a")
            await made.sh(parent, "echo kept > /home/user/note")
            with open(tmp_path / "packed", "w+b") as packed:
                await made.runtime.pack(parent, CheckpointKind.FILESYSTEM, packed.fileno())
                claim = Claim(session="s-b")
                made.runtime.expect_copy(parent, "b", packed.fileno(), claim)
                key = ContainerKey("b", "main", 0)
                argv = ("sh", "-c", "ls /home/user; sleep 600")
                await made.runtime.start(ContainerSpec(key=key, argv=argv, hostname="b"))
                assert made.runtime.session_of(key) == ""
                assert await made.runtime.claim_as_copy(key, packed.fileno(), claim)
                made.runtime.let_copy_go("b")
            assert await made.sh(key, "cat /home/user/note") == "kept\n"

        self.live(tmp_path, story, [SandboxFeature.FORK])

    def test_a_copy_made_while_a_cell_runs_has_what_the_cell_left_behind(self, tmp_path: Path) -> None:
        """It waits for the cell: the files that its variables speak of come along."""

        async def story(made: Sandboxes) -> None:
            parent, child = await asyncio.gather(made.claimed("a"), made.start("b"))
            code = "import os, time\nopen('/home/user/began', 'w').close()\nwhile not os.path.exists('/home/user/go'): time.sleep(0.01)\n"
            code += "open('/home/user/made', 'w').write('by the cell'); x = '/home/user/made'"
            cell = asyncio.create_task(made.ask(parent, "/execute", {"code": code}))
            await made.sh(parent, "until [ -e /home/user/began ]; do sleep 0.01; done")
            with open(tmp_path / "packed", "w+b") as packed:
                packing = asyncio.create_task(made.runtime.pack(parent, CheckpointKind.INTERPRETER, packed.fileno()))
                await asyncio.sleep(0)  # it is asked first
                await made.sh(parent, "touch /home/user/go")
                await asyncio.gather(packing, cell)
                await made.runtime.claim_as_copy(child, packed.fileno(), Claim(session="s-b"))
            assert await made.printed(child, "print(open(x).read())") == "by the cell\n"

        self.live(tmp_path, story, [SandboxFeature.FORK])

    def test_a_parent_that_dies_while_it_is_copied_is_told_and_the_copy_stays_nobodys(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            parent, child = await asyncio.gather(made.claimed("a"), made.start("b"))
            code = "import time\nopen('/home/user/began', 'w').close()\nwhile True: time.sleep(1)"
            cell = asyncio.create_task(made.ask(parent, "/execute", {"code": code}))
            await made.sh(parent, "until [ -e /home/user/began ]; do sleep 0.01; done")
            with open(tmp_path / "packed", "w+b") as packed:
                packing = asyncio.create_task(made.runtime.pack(parent, CheckpointKind.INTERPRETER, packed.fileno()))
                await asyncio.sleep(0)  # it waits for the cell, which never ends
                await made.runtime.stop(parent, grace_s=0)
                with pytest.raises(SandboxError) as refusal:
                    async with asyncio.timeout(PATIENCE_S):
                        await packing
                assert refusal.value.code == 503
                await asyncio.gather(cell, return_exceptions=True)
                with pytest.raises(SandboxError, match="no checkpoint"):
                    await made.runtime.claim_as_copy(child, packed.fileno(), Claim(session="s-b"))
            assert made.runtime.session_of(child) == ""
            assert await made.runtime.claim(child, Claim(session="s-c"))

        self.live(tmp_path, story, [SandboxFeature.FORK])

    def test_a_copy_that_dies_before_its_variables_came_takes_none_from_its_sibling(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            parent, first, second = await asyncio.gather(made.claimed("a"), made.start("b"), made.start("c"))
            await made.ask(parent, "/execute", {"code": "x = list(range(100_000))"})
            with open(tmp_path / "packed", "w+b") as packed:
                await made.runtime.pack(parent, CheckpointKind.INTERPRETER, packed.fileno())
                copies = ((first, "s-b"), (second, "s-c"))
                await asyncio.gather(
                    *(made.runtime.claim_as_copy(key, packed.fileno(), Claim(session=whose)) for key, whose in copies)
                )
                await made.runtime.stop(first, grace_s=0)  # what it is filled with comes once it was told whose it is
                with pytest.raises(SandboxError) as refusal:
                    await made.runtime.claim_as_copy(first, packed.fileno(), Claim(session="s-b"))
                assert refusal.value.code == 404
            assert await made.printed(second, "print(len(x), x[-1])") == "100000 99999\n"

        self.live(tmp_path, story, [SandboxFeature.FORK])

    def test_a_frozen_sandbox_is_neither_copied_nor_made_a_copy_until_it_goes_on(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            parent, child = await asyncio.gather(made.claimed("a"), made.start("b"))
            await made.ask(parent, "/execute", {"code": "x = 'kept'"})
            with open(tmp_path / "packed", "w+b") as packed:
                await made.runtime.freeze(parent)
                with pytest.raises(SandboxError, match="frozen") as refusal:
                    await made.runtime.pack(parent, CheckpointKind.INTERPRETER, packed.fileno())
                assert (refusal.value.code, made.runtime.is_frozen(parent)) == (409, True)
                await made.runtime.thaw(parent)
                await made.runtime.pack(parent, CheckpointKind.INTERPRETER, packed.fileno())
                await made.runtime.freeze(child)
                with pytest.raises(SandboxError, match="frozen"):
                    await made.runtime.claim_as_copy(child, packed.fileno(), Claim(session="s-b"))
                assert made.runtime.session_of(child) == ""
                await made.runtime.thaw(child)
                assert await made.runtime.claim_as_copy(child, packed.fileno(), Claim(session="s-c"))
            assert await made.printed(child, "print(x)") == "kept\n"

        self.live(tmp_path, story, [SandboxFeature.FORK, SandboxFeature.FREEZE])

    def test_a_sandbox_that_was_filled_with_nonsense_is_nobodys(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.start()
            (tmp_path / "packed").write_bytes(b"x" * 100)
            with open(tmp_path / "packed", "rb") as packed, pytest.raises(SandboxError, match="no checkpoint"):
                await made.runtime.claim_as_copy(key, packed.fileno(), Claim(session="s-b"))
            assert made.runtime.session_of(key) == ""
            assert await made.runtime.claim(key, Claim(session="s-c"))

        self.live(tmp_path, story, [SandboxFeature.FORK])

    def test_a_sandbox_whose_programs_delete_files_all_the_time_is_packed(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.claimed()
            churn = "cd /home/user; echo kept > kept; (while :; do mkdir -p a/b; echo 1 > a/b/c; rm -rf a; done) > /dev/null 2>&1 &"
            await made.sh(key, churn)
            for _ in range(20):
                with open(tmp_path / "packed", "w+b") as packed:
                    assert await made.runtime.pack(key, CheckpointKind.FILESYSTEM, packed.fileno()) == []
                assert b"home/user/kept" in (tmp_path / "packed").read_bytes()

        self.live(tmp_path, story, [SandboxFeature.CHECKPOINT_FILES])

    def test_a_copy_that_was_refused_halfway_is_never_anybody_elses(self, tmp_path: Path) -> None:
        """It has files of its parent: whoever claimed it would read them."""

        async def story(made: Sandboxes) -> None:
            parent, child = await asyncio.gather(made.claimed("a"), made.start("b"))
            await made.sh(parent, "echo secret > /home/user/note")
            await made.ask(parent, "/execute", {"code": "x = 1"})
            with open(tmp_path / "packed", "w+b") as packed:
                await made.runtime.pack(parent, CheckpointKind.INTERPRETER, packed.fileno())
                with bundle.reading(packed.fileno()) as parts:
                    variables_at = os.lseek(parts.variables, 0, os.SEEK_CUR)
                os.pwrite(packed.fileno(), b"nonsense", variables_at)
                with pytest.raises(SandboxError):
                    await made.runtime.claim_as_copy(child, packed.fileno(), Claim(session="s-b"))
                with pytest.raises(SandboxError, match=r"another session|runs in no sandbox"):
                    await made.runtime.claim(child, Claim(session="s-c"))
            async with asyncio.timeout(PATIENCE_S):
                while made.runtime.has(child):
                    await asyncio.sleep(0.01)

        self.live(tmp_path, story, [SandboxFeature.FORK])

    def test_an_interpreter_collects_its_garbage(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.claimed()
            assert "collects True" in await made.printed(key, "import gc; print('collects', gc.isenabled())")

        self.live(tmp_path, story)

    def test_what_was_not_packed_is_not_unpacked(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.claimed()
            for content in (b"", b"x" * 100, os.urandom(10_000)):
                (tmp_path / "packed").write_bytes(content)
                with open(tmp_path / "packed", "rb") as packed, pytest.raises(SandboxError):
                    await made.runtime.unpack(key, CheckpointKind.FILESYSTEM, packed.fileno())

        self.live(tmp_path, story, [SandboxFeature.CHECKPOINT_FILES])

    def test_memory_is_written_by_those_who_can_and_refused_by_the_others(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            if SandboxFeature.CHECKPOINT_MEMORY in made.runtime.sandbox_features:
                pytest.skip("can")
            key = await made.claimed()
            with open(tmp_path / "packed", "w+b") as packed, pytest.raises(SandboxError, match="microvm") as refusal:
                await made.runtime.pack(key, CheckpointKind.MEMORY, packed.fileno())
            assert refusal.value.code == 412

        self.live(tmp_path, story)

    def test_usage_grows_with_what_is_used(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.claimed()
            before = await made.runtime.usage(key)
            spent = await made.sh(
                key,
                'python3 -c "import time\nwhile time.process_time() < 0.3: pass\nprint(time.process_time())"; head -c 3145728 /dev/zero > /tmp/f',
            )
            after = await made.runtime.usage(key)
            counted = (after.cpu_us - before.cpu_us) / 1e6
            assert counted >= float(spent) * 0.9 if self.has_hosts_clock else counted > 0
            assert after.memory_byte_s > before.memory_byte_s
            assert after.wall_s > before.wall_s

        self.live(tmp_path, story, [SandboxFeature.USAGE])

    def test_privileges_are_refused_with_a_sentence(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            for fields in ({"is_privileged": True}, {"keep_capabilities": ("SYS_ADMIN",)}):
                with pytest.raises(StartError, match="privileges"):
                    await made.start("p", **fields)

        self.live(tmp_path, story)

    def test_an_egress_rule_that_makes_no_sense_starts_nothing(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            with pytest.raises(StartError, match='port "none"'):
                await made.start("p", annotations={"hekla.dev/egress": "example.com:none"})

        self.live(tmp_path, story, [SandboxFeature.EGRESS])

    def test_the_way_out_is_the_broker_and_it_refuses_what_no_rule_names(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.claimed(annotations={"hekla.dev/egress": "*"})
            fetch = "import os, urllib.request as u, urllib.error as e\ntry: print(u.urlopen(f'http://{os.environ[\"META\"]}/').status)\nexcept e.HTTPError as x: print(x.code, x.headers['x-hekla-egress'])"
            for address in ("169.254.169.254", "127.0.0.1:1", "10.0.0.1", "[::1]", "0x7f.1"):
                told = await made.sh(
                    key, f"unset NO_PROXY no_proxy; META='{address}' python3 -c \"$(cat <<'END'\n{fetch}\nEND\n)\""
                )
                assert told.split()[0] in ("400", "403"), (address, told)

        self.live(tmp_path, story, [SandboxFeature.EGRESS])

    def test_whom_it_may_reach_changes_while_it_runs(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.claimed(annotations={"hekla.dev/egress": "first.invalid"})
            fetch = "import urllib.request as u, urllib.error as e\ntry: print(u.urlopen('http://second.invalid/').status)\nexcept e.HTTPError as x: print(x.code)"
            asked = f"python3 -c \"$(cat <<'END'\n{fetch}\nEND\n)\""
            assert (await made.sh(key, asked)).split() == ["403"]
            await made.runtime.restrict(key, "second.invalid")
            assert (await made.sh(key, asked)).split() == ["502"], "allowed now, and there is nobody of that name"
            await made.runtime.restrict(key, "")
            assert (await made.sh(key, asked)).split() == ["403"]
            with pytest.raises(SandboxError, match="port") as refusal:
                await made.runtime.restrict(key, "second.invalid:none")
            assert refusal.value.code == 422

        self.live(tmp_path, story, [SandboxFeature.EGRESS])

    def test_a_sandbox_without_a_way_out_gets_none_while_it_runs(self, tmp_path: Path) -> None:
        async def story(made: Sandboxes) -> None:
            key = await made.claimed()
            await made.runtime.restrict(key, "")
            with pytest.raises(SandboxError, match="without a way out") as refusal:
                await made.runtime.restrict(key, "first.invalid")
            assert refusal.value.code == 412

        self.live(tmp_path, story, [SandboxFeature.EGRESS])
