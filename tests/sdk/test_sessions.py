"""What an agent does with a session, through either shell of `hekla-sdk`."""

import asyncio
import urllib.request

import pytest

import hekla_sdk


async def test_code_keeps_its_variables_and_shows_its_values(sessions):
    async with sessions.create(timeout=120) as session:
        assert (await session.run_code("x = 6 * 7")).text == ""
        said = []
        result = await session.run_code("print('said'); x", on_stdout=said.append)
        assert (result.text, result.stdout, "".join(said), result.error) == ("42", "said\n", "said\n", None)
        failed = await session.run_code("1 / 0")
        assert str(failed.error) == "ZeroDivisionError: division by zero"


async def test_contexts_have_variables_of_their_own(sessions):
    async with sessions.create(timeout=120) as session:
        other = await session.create_context()
        await session.run_code("x = 1")
        await session.run_code("x = 2", context=other)
        assert (await session.run_code("x")).text == "1"
        assert (await session.run_code("x", context=other)).text == "2"
        assert other.id in [one.id for one in await session.contexts()]
        await session.restart_context(other)
        assert (await session.run_code("x", context=other)).error.name == "NameError"
        await session.remove_context(other)
        with pytest.raises(hekla_sdk.NotFoundError):
            await session.run_code("x", context=other)


async def test_a_picture_comes_as_bytes(sessions):
    async with sessions.create(timeout=120) as session:
        code = "class Picture:\n    def _repr_png_(self): return b'\\x89PNG'\nPicture()"
        shown = []
        result = await session.run_code(code, on_display=shown.append)
        assert result.images == [b"\x89PNG"]
        assert len(shown) == 1


async def test_what_a_cell_prints_is_kept_up_to_a_bound_and_told_whole(sessions):
    async with sessions.create(timeout=120) as session:
        told = []
        result = await session.run_code("print('x' * 5000)", most=1000, on_stdout=told.append)
        assert (result.stdout, result.truncated, len("".join(told))) == ("x" * 1000, True, 5001)


async def test_a_cell_that_takes_too_long_is_interrupted_and_the_variables_stay(sessions):
    async with sessions.create(timeout=120) as session:
        result = await session.run_code("x = 1\nimport time\ntime.sleep(600)", timeout=0.2)
        assert result.error.name == "KeyboardInterrupt"
        assert (await session.run_code("x")).text == "1"


async def test_a_command_says_what_it_says_and_how_it_ends(sessions):
    async with sessions.create(timeout=120, env={"WHO": "agent"}) as session:
        told = []
        done = await session.exec("echo $WHO; echo err >&2; exit 3", on_stderr=told.append)
        assert (done.stdout, done.stderr, done.exit_code, "".join(told)) == ("agent\n", "err\n", 3, "err\n")
        with pytest.raises(hekla_sdk.CommandFailedError, match="exit code 3: err"):
            done.check()
        assert (await session.exec(["printf", "%s|", "a b", "$WHO"])).check().stdout == "a b|$WHO|"


async def test_large_input_goes_through_a_command_that_prints_while_it_reads(sessions):
    async with sessions.create(timeout=120) as session:
        data = b"0123456789abcdef" * 65_536
        assert (await session.exec("cat", stdin=data)).stdout_bytes == data
        assert (await session.exec("head -c 4", stdin=data)).stdout == "0123"


async def test_a_character_cut_in_two_pieces_is_told_whole(sessions):
    async with sessions.create(timeout=120) as session:
        process = await session.start(["cat"], stdin=True)
        async with process:
            told = []
            for piece in "é".encode()[:1], "é".encode()[1:]:
                await process.write(piece)
            await process.close_stdin()
            assert (await process.wait(on_stdout=told.append)).stdout == "é"
            assert "".join(told) == "é"


async def test_a_command_over_its_time_is_ended_with_what_it_said(sessions):
    async with sessions.create(timeout=120) as session:
        with pytest.raises(hekla_sdk.CommandTimeoutError) as late:
            await session.exec("echo begun; exec sleep 600", timeout=1)
        assert late.value.completed.stdout == "begun\n"


async def test_a_command_runs_on_without_a_listener_and_is_found_again(sessions):
    async with sessions.create(timeout=120) as session:
        process = await session.start(["cat"], stdin=True, tag="mine")
        await process.close()
        assert [(one.pid, one.argv, one.tag) for one in await session.processes()] == [(process.pid, ("cat",), "mine")]
        again = await session.attach(process.pid)
        await again.write("hello\n")
        async for piece in again:
            assert piece == hekla_sdk.Output("stdout", b"hello\n")
            break
        assert await again.kill()
        assert (await again.wait()).exit_code == -1
        with pytest.raises(hekla_sdk.NotFoundError):
            await session.attach(999_999)


async def test_a_program_that_is_not_there_is_refused_with_a_sentence(sessions):
    async with sessions.create(timeout=120) as session:
        with pytest.raises(hekla_sdk.RefusedError, match="no-such-program"):
            await session.exec(["no-such-program"])


async def test_files_are_written_read_listed_moved_and_gone(sessions):
    async with sessions.create(timeout=120) as session:
        root = (await session.exec("mktemp -d")).check().stdout.strip()
        files = session.files
        await files.write(f"{root}/below/a b.txt", "text é")
        assert await files.read_text(f"{root}/below/a b.txt") == "text é"
        assert [(one.name, one.kind, one.size) for one in await files.list(f"{root}/below")] == [("a b.txt", "file", 7)]
        assert (await files.stat(f"{root}/below")).is_directory
        await files.move(f"{root}/below/a b.txt", f"{root}/c")
        assert await files.exists(f"{root}/c")
        assert not await files.exists(f"{root}/below/a b.txt")
        assert await files.make_dir(f"{root}/new")
        assert not await files.make_dir(f"{root}/new")
        data = bytes(range(256)) * 4096
        await files.write(f"{root}/c", data)
        assert await files.read(f"{root}/c") == data
        with pytest.raises(hekla_sdk.BadAnswerError, match="more than 100 bytes"):
            await files.read(f"{root}/c", most=100)
        await files.remove(root)
        with pytest.raises(hekla_sdk.NotFoundError):
            await files.read(f"{root}/c")


async def test_a_session_sleeps_and_wakes_with_the_next_request(sessions):
    async with sessions.create(timeout=120, metadata={"who": "sleeper"}) as session:
        await session.run_code("x = 1")
        assert (await session.freeze()).state == "frozen"
        assert (await session.run_code("x")).text == "1"
        assert (await session.info()).state == "running"
        assert (await session.pause()).state == "paused"
        assert (await session.run_code("x")).text == "1"
        await session.pause()
        assert (await session.resume()).state == "running"
        before = await session.info()
        assert (await session.set_timeout(600)).expires > before.expires
        assert (await session.usage()).wall_s >= 0
        assert [one.metadata for one in await sessions.all() if one.id == session.id] == [{"who": "sleeper"}]


async def test_a_session_whose_budget_is_spent_says_so_and_goes_on_when_it_is_raised(sessions):
    async with sessions.create(timeout=120, budget="cpu=1h") as session:
        await session.run_code("x = 1")
        assert (await session.set_budget("awake=1ms")).state == "frozen"
        with pytest.raises(hekla_sdk.LimitError, match="stands still: it has") as refusal:
            await session.run_code("x")
        assert (refusal.value.reason, refusal.value.status) == ("budget_spent", 402)
        assert (await session.set_budget("")).state == "running"
        assert (await session.run_code("x")).text == "1"
        with pytest.raises(hekla_sdk.InvalidError, match="makes no sense"):
            await session.set_budget("luck=1")


async def test_a_budget_that_is_spent_while_a_cell_runs_is_told_as_that_and_not_as_a_broken_connection(sessions):
    async with sessions.create(timeout=120) as session:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        cell = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)"

        async def run():
            await session.run_code(cell, on_stdout=lambda _: loop.call_soon_threadsafe(begun.set) and None)

        running = asyncio.create_task(run())
        await begun.wait()
        await session.set_budget("awake=1ms")
        with pytest.raises(hekla_sdk.LimitError, match=f'session "{session.id}" stands still: it has') as refusal:
            await running
        assert (refusal.value.reason, refusal.value.status) == ("budget_spent", 402)


async def test_forks_are_sessions_of_their_own_and_end_with_their_block(sessions):
    # their files and variables are in test_on_a_platform.py: the sandboxes of this gateway share the machine's
    async with sessions.create(timeout=120) as session:
        forks = await session.fork(2)
        for one in forks:
            async with one:
                assert one.opened.parent == session.id
                assert (await one.exec("echo here")).stdout == "here\n"
        assert {session.id} == {one.id for one in await sessions.all()} & {session.id, *(one.id for one in forks)}
        with pytest.raises(hekla_sdk.InvalidError):
            await session.fork(0)


async def test_a_snapshot_is_where_another_session_begins_until_it_is_forgotten(sessions):
    async with sessions.create(timeout=120) as session:
        kept = await session.snapshot()
        assert kept.id in [one.id for one in await sessions.snapshots()]
        async with sessions.create(snapshot=kept.id, timeout=120) as other:
            assert (await other.exec("echo here")).stdout == "here\n"
        await sessions.delete_snapshot(kept.id)
        with pytest.raises(hekla_sdk.NotFoundError, match="not found"):
            await sessions.create(snapshot=kept.id)


async def test_leaving_the_block_ends_what_was_opened_and_leaves_what_was_found(sessions):
    async with sessions.create(timeout=120) as session:
        async with sessions.connect(session.id) as found:
            assert (await found.exec("echo hello")).stdout == "hello\n"
        assert (await session.info()).state == "running"
    with pytest.raises(hekla_sdk.NotFoundError):
        await sessions.connect(session.id)


async def test_refusals_carry_the_servers_sentence(sessions, stranger, monkeypatch):
    with pytest.raises(hekla_sdk.NotFoundError, match='template "default/nothing" not found') as refused:
        await sessions.create("nothing")
    assert (refused.value.reason, refused.value.status) == ("template_not_found", 404)
    async with sessions.create(timeout=120) as session:
        with pytest.raises(hekla_sdk.NotFoundError):
            await sessions.connect(session.id, gateway=stranger)
        assert "base" in [one.name for one in await sessions.templates()]
    monkeypatch.setenv("HEKLA_AGENTS_KEY", "no-key-of-anybody")
    with pytest.raises(hekla_sdk.AuthenticationError):
        await sessions.create()


async def test_a_server_inside_is_reached_by_its_port(sessions):
    async with sessions.create(timeout=120) as session:
        code = (
            "import http.server, threading\n"
            "class Hello(http.server.BaseHTTPRequestHandler):\n"
            "    def do_GET(self):\n"
            "        self.send_response(200); self.end_headers(); self.wfile.write(self.path.encode())\n"
            "    def log_message(self, *args): pass\n"
            "server = http.server.HTTPServer(('127.0.0.1', 0), Hello)\n"
            "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
            "server.server_address[1]"
        )
        port = int((await session.run_code(code)).text)
        asked = urllib.request.Request(session.url(port, "a/b?c=d"), headers=session.headers)
        assert urllib.request.urlopen(asked, timeout=30).read() == b"/a/b?c=d"


async def test_connections_that_were_given_back_are_told_and_those_of_a_fork_stay(sessions):
    session = await sessions.create(timeout=120)
    [fork] = await session.fork()
    await session.close()
    await session.close()
    async with fork:
        assert (await fork.exec("echo here")).stdout == "here\n"
        assert await session.kill()
    with pytest.raises(hekla_sdk.UnreachableError, match="given back"):
        await session.info()
