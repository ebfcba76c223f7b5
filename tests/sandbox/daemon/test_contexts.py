"""Interpreter contexts: variables stay, results are rich, whatever goes wrong is a message, and a fork is a copy with a chance of its own."""

import asyncio
import contextlib
import errno
import io
import json
import os
import signal
import socket
import sys
import tempfile

import pytest

from hekla.sandbox.daemon import contexts as contexts_module
from hekla.sandbox.daemon import nursery as nursery_module
from hekla.sandbox.daemon.contexts import LONGEST_JOINED, Contexts, Process
from hekla.sandbox.daemon.nursery import Nursery
from hekla.sandbox.daemon.printed import Printed
from hekla.sandbox.daemon.processes import CommandError, Processes


def tell(story, preload=()):
    """Run a story with the contexts of a sandbox; nothing of it is alive afterwards."""
    nursery = Nursery.start(preload)

    async def told():
        processes = Processes({"PATH": os.environ["PATH"]})
        processes.begin()
        one = Contexts(processes, nursery)
        try:
            await story(one)
        finally:
            for context in one.listed():
                one.remove(context.id)
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    try:
        asyncio.run(told())
    finally:
        nursery.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(nursery.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # the daemon's reaper was first
            os.waitpid(nursery.pid, 0)


async def run(one, code, context=None, **more):
    return [message async for message in one.run(context or one.default(), code, **more)]


def texts(messages, kind):
    return "".join(message["text"] for message in messages if message["type"] == kind)


def test_an_interpreter_loads_nothing_before_it_is_asked(monkeypatch):
    """numpy finds its dice when they are first named; looking for them to throw them anew cost each interpreter 13 ms and 3 MB."""
    numpy = pytest.importorskip("numpy")
    monkeypatch.delattr(numpy, "random")  # which loads it, as another test may have
    monkeypatch.delitem(sys.modules, "numpy.random")

    async def story(one):
        asked = "import sys; ['numpy' in sys.modules, 'numpy.random' in sys.modules]"
        assert texts(await run(one, asked), "result") == "[True, False]"

    tell(story, preload=("numpy",))


def test_what_was_printed_before_it_was_read_is_one_message_and_keeps_its_place():
    """`print` writes twice a line, and each message of its own passed daemon, gateway and client: 16,000 lines took 25 s."""

    async def story():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        process = Process(0, ours, (-1, -1))
        sent = [("stdout", "a"), ("stdout", "\n"), ("stderr", "b"), ("stderr", "\n"), ("stdout", "c")]
        sent += [("result", "1"), ("result", "2"), ("stdout", "d" * LONGEST_JOINED), ("stdout", "e"), ("stdout", "f")]
        with theirs:
            theirs.sendall(
                b"".join(json.dumps({"type": kind, "text": text}).encode() + b"\n" for kind, text in sent[:7])
            )
            got = [await process.next() for _ in range(5)]
            assert [(one["type"], one["text"]) for one in got] == [
                ("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c"), ("result", "1"), ("result", "2"),
            ]  # fmt: skip
            theirs.sendall(
                b"".join(json.dumps({"type": kind, "text": text}).encode() + b"\n" for kind, text in sent[7:])
            )
            assert (await process.next())["text"] == "d" * LONGEST_JOINED
            assert (await process.next())["text"] == "ef"
            theirs.sendall(b'{"type": "stdout", "text": "g"}\n{"type": "stdout"')
            assert (await process.next())["text"] == "g"
        assert await process.next() is None
        process.close()

    asyncio.run(story())


def test_variables_stay_and_the_last_value_is_the_result():
    async def story(one):
        assert await run(one, "x = 40\ny = 2") == []
        told = await run(one, "print('hi'); x + y")
        assert texts(told, "stdout") == "hi\n"
        assert told[-1] == {"type": "result", "is_main_result": True, "text": "42"}
        assert await run(one, "_;") == []

    tell(story)


def test_what_goes_wrong_is_told_with_the_lines_of_the_cell():
    async def story(one):
        (error,) = await run(one, "def f():\n    return 1 / 0\nf()")
        assert (error["type"], error["name"], error["value"]) == ("error", "ZeroDivisionError", "division by zero")
        assert "return 1 / 0" in error["traceback"]
        assert "kernel.py" not in error["traceback"]
        (error,) = await run(one, "a b")
        assert error["name"] == "SyntaxError"
        (error,) = await run(one, "raise SystemExit(3)")
        assert (error["name"], error["value"]) == ("SystemExit", "3")
        assert texts(await run(one, "1"), "result") == "1"

    tell(story)


def test_values_are_shown_in_every_form_that_they_offer():
    async def story(one):
        code = """
class Table:
    def _repr_html_(self): return "<b>t</b>"
    def _repr_png_(self): return b"\\x89PNG"
    def _repr_svg_(self): raise ValueError("no")
    def __repr__(self): return "Table"
class Broken:
    def __repr__(self): raise ValueError
display(Table())
Broken()
"""
        first, second = await run(one, code)
        assert first == {
            "type": "result",
            "is_main_result": False,
            "text": "Table",
            "html": "<b>t</b>",
            "png": "iVBORw==",
        }
        assert second["text"] == "<Broken, whose repr raised ValueError>"

    tell(story)


def test_a_result_that_is_too_long_is_cut():
    async def story(one):
        (result,) = await run(one, "'x' * 5_000_000")
        assert len(result["text"]) < 1_100_000
        assert result["text"].endswith("[cut by the sandbox]")

    tell(story)


def test_what_programs_print_and_what_is_written_to_stderr_is_heard():
    async def story(one):
        code = "import subprocess, sys\nsubprocess.run(['echo', 'from below'])\nprint('err', file=sys.stderr)"
        messages = await run(one, code)
        assert "from below" in texts(messages, "stdout")
        assert texts(messages, "stderr") == "err\n"

    tell(story)


def test_a_program_that_prints_more_than_a_pipe_holds_is_read_while_it_runs():
    """A cell that ran `pip install`, or `seq 100000`, stood still at 64 KiB until its client's time was over."""

    async def story(one):
        told = await run(one, "import os; left = os.system('seq 100000')\nprint('end')")
        assert texts(told, "stdout") == "".join(f"{number}\n" for number in range(1, 100_001)) + "end\n"

    tell(story)


def test_what_a_program_prints_is_told_while_the_cell_waits_for_it():
    async def story(one):
        code = "import subprocess; done = subprocess.run('echo now; read line < go; echo then', shell=True)"
        with tempfile.TemporaryDirectory() as place:
            os.mkfifo(f"{place}/go")
            cell = one.run(one.create(cwd=place), code)
            assert (await cell.__anext__())["text"] == "now\n"
            with open(f"{place}/go", "w") as go:
                go.write("\n")
            assert texts([message async for message in cell], "stdout") == "then\n"

    tell(story)


def test_what_a_cell_left_running_goes_on_printing_and_its_latest_words_are_told():
    async def story(one):
        with tempfile.TemporaryDirectory() as place:
            context = one.create(cwd=place)
            code = "import subprocess; left = subprocess.Popen('seq 100000; echo done; echo > over', shell=True)"
            await run(one, code, context)
            while not os.path.exists(f"{place}/over"):
                await asyncio.sleep(0)
            told = texts(await run(one, "left.wait()", context), "stdout")
            assert told.endswith("100000\ndone\n")
            assert len(told) <= 1 << 20

    tell(story)


def test_the_last_words_of_programs_are_told_before_their_interpreters_end():
    async def story(one):
        told = await run(one, "import os; os.system('echo last'); os._exit(1)")
        assert [message["type"] for message in told] == ["stdout", "error"]
        assert texts(told, "stdout") == "last\n"

    tell(story)


def test_half_a_character_waits_for_its_other_half():
    async def story():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        process = Process(0, ours, (reading, -1))
        letter = "\u00e4".encode()
        os.write(writing, b"a" + letter[:1])
        assert (await process.next_of_cell())["text"] == "a"
        os.write(writing, letter[1:])
        assert (await process.next_of_cell())["text"] == "\u00e4"
        os.close(writing)
        theirs.close()
        assert await process.next_of_cell() is None
        process.close()

    asyncio.run(story())


def test_between_cells_what_programs_print_is_read_now_and_then():
    """One that printed without end had the daemon read all the time: a fifth of a processor for each."""

    async def story():
        output, written = os.pipe()
        os.set_blocking(output, False)
        heard = Printed("stdout", output, lambda: None)

        async def until(printed):
            async with asyncio.timeout(60):
                while heard._waiting != printed:
                    await asyncio.sleep(0)

        heard.gather()
        for printed in (b"a", b"ab"):
            os.write(written, printed[-1:])
            await until(printed)
            assert not heard._is_gathering
        heard.keeps_all = True
        heard.gather()
        os.write(written, b"c")
        await until(b"abc")
        assert heard._is_gathering
        heard.close()
        os.close(written)

    asyncio.run(story())


def test_what_a_cells_programs_say_on_their_error_stream_is_told_as_that():
    """Both streams of programs once had one pipe: warnings of a compiler or of git stood among the results."""

    async def story(one):
        code = "import os, subprocess, sys; subprocess.run(['sh', '-c', 'echo result; echo warning >&2']); os.write(2, b'w2\\n'); print('p')"
        copies = [one.default(), await one.fork(one.default().id)]
        for context in copies:
            told = await run(one, code, context)
            assert (texts(told, "stdout"), texts(told, "stderr")) == ("result\np\n", "warning\nw2\n")
        told = await run(one, "!echo out; echo err >&2")
        assert (texts(told, "stdout"), texts(told, "stderr")) == ("out\nerr\n", ""), "as in a notebook, in order"
        told = await run(one, "import os; os.system('echo bad >&2'); os._exit(1)")
        assert texts(told, "stderr") == "bad\n"

    tell(story)


@pytest.mark.parametrize("is_gone", [False, True], ids=["the cell ends", "the interpreter ends"])
def test_a_cell_ends_beside_a_program_of_an_earlier_cell_that_goes_on_printing(is_gone):
    """`subprocess.Popen(["yes"])` in one cell: the next one sent 200 MB before its end."""

    async def story():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        process = Process(0, ours, (reading, -1))
        with theirs, open(writing, "wb", buffering=0) as program:
            program.write(b"before\n")
            theirs.sendall(b"" if is_gone else json.dumps({"type": "end"}).encode() + b"\n")
            if is_gone:
                theirs.shutdown(socket.SHUT_WR)
            told = []
            for _ in range(3):
                told.append(await process.next_of_cell())
                program.write(b"again\n")
            process.close()
        kinds = [message and message["type"] for message in told]
        assert texts(filter(None, told), "stdout").startswith("before\n")
        assert kinds[1] == (None if is_gone else "end")

    asyncio.run(story())


def test_await_is_allowed_at_the_top():
    async def story(one):
        code = "import asyncio\nawait asyncio.sleep(0)\nasync def f(): return 7\nawait f()"
        assert texts(await run(one, code), "result") == "7"
        assert texts(await run(one, "asyncio.run(f())"), "result") == "7"

    tell(story)


def test_input_is_over_at_once():
    async def story(one):
        (error,) = await run(one, "input()")
        assert error["name"] == "EOFError"

    tell(story)


def test_variables_of_one_cell_are_gone_with_it():
    async def story(one):
        assert texts(await run(one, "import os; os.environ['A']", envs={"A": "b"}), "result") == "'b'"
        assert texts(await run(one, "os.environ.get('A')"), "result") == ""

    tell(story)


def test_an_interpreter_that_never_returns_is_interrupted():
    async def story(one):
        messages = await run(one, "kept = 1\nwhile True: pass", timeout_s=0.1)
        assert messages[-1]["name"] == "KeyboardInterrupt"
        assert texts(await run(one, "kept"), "result") == "1"

    tell(story)


def test_one_that_does_not_listen_is_ended_and_begins_anew(monkeypatch):
    monkeypatch.setattr(contexts_module, "INTERRUPT_GRACE_S", 0.1)

    async def story(one):
        context = one.default()
        cell = one.run(
            context, "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf')\nwhile True: pass"
        )
        assert (await cell.__anext__())["text"].startswith("deaf")
        await cell.aclose()
        assert texts(await run(one, "1 + 1", context), "result") == "2"

    tell(story)


def test_an_interpreter_that_dies_says_so_and_begins_anew():
    async def story(one):
        await run(one, "x = 1")
        messages = await run(one, "import os; os._exit(1)")
        assert messages[-1]["name"] == "KernelDied"
        assert (await run(one, "x"))[-1]["name"] == "NameError"

    tell(story)


def test_cells_that_write_into_the_channel_only_harm_themselves():
    async def story(one):
        code = """
import os
for fd in map(int, os.listdir('/proc/self/fd')):
    if fd > 2:
        try: os.write(fd, b'garbage\\n')
        except OSError: pass
"""
        assert (await run(one, code))[-1]["name"] == "KernelDied"
        assert texts(await run(one, "5"), "result") == "5"

    tell(story)


def test_a_fork_goes_on_from_where_the_session_is_and_apart_from_it():
    async def story(one):
        context = one.default()
        await run(one, "x = [1]\nimport random, uuid; random.random()\nf = open('/proc/self/stat')")
        copies = [await one.fork(context.id) for _ in range(3)]
        for number, copy in enumerate([context, *copies]):
            await run(one, f"x.append({number})", copy)
        seen = [texts(await run(one, "x", copy), "result") for copy in [context, *copies]]
        assert seen == ["[1, 0]", "[1, 1]", "[1, 2]", "[1, 3]"]
        assert {len(await run(one, "f.read(3)", copy)) for copy in copies} == {1}
        chances = {
            texts(await run(one, "(random.random(), uuid.uuid4())", one_), "result") for one_ in [context, *copies]
        }
        assert len(chances) == 4
        one.remove(context.id)
        assert texts(await run(one, "x", copies[0]), "result") == "[1, 1]"

    tell(story)


async def saved(one):
    """All contexts in a file, as a copy of the sandbox reads them."""
    told, datas, _ = await one.save()
    return told, [len(data) for data in datas], io.BytesIO(b"".join(datas))


def test_a_copys_variables_come_by_themselves_and_nobody_is_served_without_them():
    async def story(one):
        await run(one, "x = [1, 2]")
        written = await saved(one)
        one.remove(one.default().id)
        await one.load(*written)
        copy = one.default()
        assert texts(await run(one, "x"), "result") == "[1, 2]"  # asked at once
        one.remove(copy.id)
        written[2].seek(0)
        await one.load(*written)
        one.fill_soon()
        await one.default().filling  # asked by nobody
        assert one.default().process is not None
        assert texts(await run(one, "x"), "result") == "[1, 2]"

    tell(story)


def test_a_copy_that_is_begun_anew_before_its_variables_came_has_none():
    async def story(one):
        await run(one, "x = [1, 2]")
        written = await saved(one)
        one.remove(one.default().id)
        await one.load(*written)
        filling = one.default().filling
        one.restart(one.default().id)
        with pytest.raises(asyncio.CancelledError):
            await filling
        assert texts(await run(one, "'x' in globals()"), "result") == "False"

    tell(story)


def test_cells_of_one_context_wait_for_one_another_and_others_do_not():
    async def story(one):
        slow, quick = one.create(), one.create()
        first = asyncio.ensure_future(
            run(one, "print('begun'); import time\nwhile 'go' not in globals(): time.sleep(0.01)", slow)
        )
        assert texts(await run(one, "'quick'", quick), "result") == "'quick'"
        assert not first.done()
        one.interrupt(slow.id)
        while not first.done():
            one.interrupt(slow.id)
            await asyncio.sleep(0.01)

    tell(story)


def test_bash_runs_a_program_per_cell():
    async def story(one):
        context = one.create("bash")
        messages = await run(one, "echo $((6*7)); exit 3", context)
        assert texts(messages, "stdout") == "42\n"
        assert messages[-1] == {
            "type": "error",
            "name": "ExitCode",
            "value": "bash ended with exit code 3",
            "traceback": "",
        }

    tell(story)


@pytest.mark.parametrize(("language", "code"), [("cobol", "invalid_argument"), ("r", "unimplemented")])
def test_a_language_that_is_not_here_is_told(language, code, monkeypatch):
    monkeypatch.setattr(contexts_module.shutil, "which", lambda program: None)

    async def story(one):
        with pytest.raises(CommandError) as error:
            one.create(language)
        assert error.value.code == code

    tell(story)


def test_contexts_are_bounded_and_one_that_is_removed_is_gone(monkeypatch):
    monkeypatch.setattr(contexts_module, "MOST_CONTEXTS", 2)

    async def story(one):
        first = one.create()
        pid = (await run(one, "import os; os.getpid()", first))[0]["text"]
        one.create()
        with pytest.raises(CommandError, match="2 contexts are open already"):
            one.create()
        one.remove(first.id)
        while os.path.exists(f"/proc/{pid}"):
            await asyncio.sleep(0.01)
        with pytest.raises(CommandError, match="there is no context"):
            one.find(first.id)

    tell(story)


WHO_I_AM = """
import os, sys
def lines(name):
    return sorted(line for line in open(f"/proc/self/{name}") if not line.startswith(("Pid", "NSpid", "NStgid", "NSpgid", "NSsid", "Tgid", "Ngid", "Vm", "Hugetlb", "SigQ", "Rss", "voluntary", "nonvoluntary")))
variables = {name: value for name, value in os.environ.items() if name != "HEKLA_COMMAND"}
opened = sorted(os.readlink(f"/proc/self/fd/{one}").partition(":")[0] for one in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{one}"))
mask = os.umask(0); os.umask(mask)
[lines("status"), lines("limits"), variables, os.getcwd(), opened, mask, os.getsid(0) == os.getpgrp() == os.getpid(), sys.argv, sys.path, sorted(globals())]
"""


def test_an_interpreter_that_waited_is_as_one_that_begins_with_its_context():
    """User, groups, capabilities, limits, session, mask, variables, directory and what is open: a table of the one beside the other."""

    async def story(one):
        await one.make_spare()
        waited, _ = one._spare
        first, second = one.default(), one.create()
        tables = [texts(await run(one, WHO_I_AM, context), "result") for context in (first, second)]
        assert first.process is waited
        assert second.process is not waited
        assert tables[0] == tables[1]
        assert "CapEff" in tables[0]

    tell(story)


def test_an_interpreter_that_waited_has_the_variables_and_the_directory_of_who_takes_it():
    async def story(one):
        await one.make_spare()
        one._processes.environment["CLAIMED"] = "later"
        context = one.create(cwd="/usr")
        asked = "import os; [os.environ['CLAIMED'], os.environ['HEKLA_COMMAND'], os.getcwd()]"
        assert texts(await run(one, asked, context), "result") == str(["later", context.mark, "/usr"])

    tell(story)


def test_an_interpreter_that_waited_rolls_other_dice_than_when_it_began_to_wait():
    """A snapshot may have been taken of it meanwhile, and many sandboxes go on from there."""

    async def story(one):
        await one.make_spare()
        process, _ = one._spare
        await process.ask({"op": "run", "code": "import random; state = random.getstate(); 1", "envs": {}})
        while (await process.next())["type"] != "end":
            continue
        assert texts(await run(one, "random.getstate() == state"), "result") == "False"

    tell(story)


def test_an_interpreter_that_died_waiting_is_not_missed():
    async def story(one):
        await one.make_spare()
        dead = one._spare[0]
        os.kill(dead.pid, signal.SIGKILL)
        assert await dead.next() is None  # it is gone for whoever asks it
        assert texts(await run(one, "6 * 7"), "result") == "42"

    tell(story)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_an_interpreter_waits_for_its_own_user_only():
    async def story(one):
        await one.make_spare()
        waiting = one._spare
        other = one.create(user="nobody")
        uid = "[line.split()[1:] for line in open('/proc/self/status') if line.startswith(('Uid', 'CapEff'))]"
        told = texts(await run(one, uid, other), "result")
        assert told == str([[str(other.user.uid)] * 4, ["0" * 16]])
        assert one._spare is waiting
        waiting[0].kill()

    tell(story)


def test_no_second_interpreter_waits_and_none_where_a_context_is_open():
    async def story(one):
        await one.make_spare()
        waiting = one._spare
        await one.make_spare()
        assert one._spare is waiting
        await run(one, "1")
        await one.make_spare()
        assert one._spare is None

    tell(story)


def test_an_interpreter_that_nobody_took_is_let_go():
    async def story(one):
        await one.make_spare()
        waiting = one._spare[0]
        one.let_spare_go()
        one.let_spare_go()
        assert await waiting.next() is None
        assert texts(await run(one, "6 * 7"), "result") == "42"

    tell(story)


def test_a_context_that_is_removed_while_it_takes_what_waits_runs_nothing():
    """Its cell ran to its end, in an interpreter of nobody."""

    async def story(one):
        await one.make_spare()
        context = one.create()
        running = asyncio.ensure_future(run(one, "while True: pass", context))
        while context.process is None:
            await asyncio.sleep(0)
        one.remove(context.id)
        async with asyncio.timeout(60):
            [told] = await asyncio.gather(running, return_exceptions=True)
        # where the interpreter was taken in no time the cell had begun
        assert isinstance(told, (CommandError, OSError)) or told[-1]["name"] == "KernelDied"
        assert context.process is None

    tell(story)


def test_a_cell_for_which_no_process_is_left_says_so_and_a_later_one_runs(monkeypatch):
    """The nursery ended by it: no cell of the session ran again, and each closed its connection."""
    real, ours, tries = os.fork, os.getpid(), []

    def fork():
        if os.getpid() != ours and not tries:
            tries.append(1)
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return real()

    monkeypatch.setattr(os, "fork", fork)

    async def story(one):
        [told] = await run(one, "1 + 1")
        assert (told["name"], "no interpreter can begin" in told["value"]) == ("KernelDied", True)
        assert texts(await run(one, "1 + 1"), "result") == "2"

    tell(story)


def test_a_module_that_takes_long_to_import_is_waited_for_and_the_daemon_serves_meanwhile(monkeypatch, tmp_path):
    """Patience began before the imports, and whoever asked meanwhile had the sandbox lose its interpreters for good."""
    monkeypatch.setattr(nursery_module, "PATIENCE_S", 0.05)
    monkeypatch.syspath_prepend(tmp_path)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "takes_long.py").write_text(f"open({str(gate)!r}).read()\n")

    async def story(one):
        context = one.create()
        left = asyncio.create_task(run(one, "1 + 1", context))
        asked = asyncio.create_task(run(one, "1 + 1"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked.done()
        one.remove(context.id)
        gate.write_text("")
        assert texts(await asked, "result") == "2"
        [told] = await left
        assert (told["name"], context.process) == ("KernelDied", None)

    tell(story, preload=["takes_long"])


def test_a_module_that_is_imported_for_ever_is_said_and_asked_about_again(monkeypatch, tmp_path):
    monkeypatch.setattr(contexts_module, "LOADING_S", 0.05)
    monkeypatch.syspath_prepend(tmp_path)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "takes_for_ever.py").write_text(f"open({str(gate)!r}).read()\n")

    async def story(one):
        [told] = await run(one, "1 + 1")
        assert told["value"] == "no interpreter can begin yet: modules are still being imported"
        gate.write_text("")
        assert one._nursery.is_ready(60.0)
        assert texts(await run(one, "1 + 1"), "result") == "2"

    tell(story, preload=["takes_for_ever"])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_cell_whose_nursery_was_ended_or_stopped_from_inside_says_so(monkeypatch, how):
    """Where there is one user only, a command may do both. The daemon waited for an answer, for good."""
    monkeypatch.setattr(nursery_module, "PATIENCE_S", 0.05)

    async def story(one):
        assert one._nursery.is_ready(60.0)
        os.kill(one._nursery.pid, how)
        for _ in range(2):
            [told] = await run(one, "1 + 1")
            assert told["value"].startswith("what interpreters are forked from was ended")

    tell(story)
