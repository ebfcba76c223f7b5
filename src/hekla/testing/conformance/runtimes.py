"""What every `Runtime` promises. A runtime's test class inherits `RuntimeContract` and says how to open one.

Promises that need a feature are skipped where the runtime does not declare it; `simulated` annotations let a runtime
without processes take part in the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hekla.node.pod_record import Exit
from hekla.node.runtimes import (
    ContainerKey,
    ContainerSpec,
    ExecError,
    ExecSession,
    Feature,
    LogOptions,
    Mount,
    Runtime,
    StartError,
)

PATIENCE_S = 180.0
"""How long a promise may take on a loaded machine before it counts as broken."""


@dataclass
class Bench:
    """A runtime under test, and the ends it reported."""

    runtime: Runtime
    directory: Path
    ends: list[tuple[ContainerKey, Exit]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def on_exit(self, key: ContainerKey, end: Exit) -> None:
        """Take note of an end."""
        self.ends.append((key, end))
        self.changed.set()

    async def end_of(self, key: ContainerKey) -> Exit:
        """Wait for an attempt to end."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for known, end in self.ends:
                    if known == key:
                        return end
                self.changed.clear()
                await self.changed.wait()

    def spec(self, name: str, script: str = "true", *, attempt: int = 0, **fields: object) -> ContainerSpec:
        """A container that runs a shell script, in pod `u1`."""
        key = ContainerKey("u1", name, attempt)
        return ContainerSpec(key=key, argv=("sh", "-c", script), hostname="pod-1", **fields)  # type: ignore[arg-type]  # named fields of the spec

    async def log_of(self, key: ContainerKey, options: LogOptions | None = None) -> str:
        """A log as text."""
        pieces = [piece async for piece in self.runtime.logs(key, options or LogOptions())]
        return b"".join(pieces).decode()

    async def wait_for_log(self, key: ContainerKey, text: str) -> None:
        """Wait until a log holds a text."""
        async with asyncio.timeout(PATIENCE_S):
            while text not in await self.log_of(key):
                await asyncio.sleep(0.01)

    async def run(self, spec: ContainerSpec) -> tuple[Exit, str]:
        """Run a container to its end: how it ended, and its log."""
        await self.runtime.start(spec)
        end = await self.end_of(spec.key)
        return end, await self.log_of(spec.key)


async def output_of(session: ExecSession) -> tuple[str, str, int]:
    """A command's output, errors and exit code."""
    pieces = {1: b"", 2: b""}
    async with asyncio.timeout(PATIENCE_S):
        while True:
            number, data = await session.read()
            if not data:
                break
            pieces[number] += data
        code = await session.wait()
    await session.close()
    return pieces[1].decode(), pieces[2].decode(), code


FOREVER = {"hekla.dev/simulated-exit-code": "0"}
BRIEF = {"hekla.dev/simulated-duration": "1ms"}
FAILING = {"hekla.dev/simulated-duration": "1ms", "hekla.dev/simulated-exit-code": "3"}
BROKEN = {"hekla.dev/simulated-start-error": 'exec: "no-such-command": executable file not found in $PATH'}


class RuntimeContract:
    """The promises. Each test runs its own event loop."""

    def open_runtime(self, directory: Path) -> Runtime:
        """A new runtime that keeps its state in `directory`."""
        raise NotImplementedError

    def live(self, directory: Path, story: Callable[[Bench], Awaitable[None]], needs: Sequence[Feature] = ()) -> None:
        """Open the runtime, live the story, close it; skipped where a feature is missing."""

        async def told() -> None:
            bench = Bench(self.open_runtime(directory), directory)
            await bench.runtime.open(bench.on_exit)
            try:
                missing = set(needs) - bench.runtime.features
                if missing:
                    pytest.skip(f"{bench.runtime.name} has no {', '.join(sorted(missing))}")
                await story(bench)
            finally:
                await bench.runtime.close()

        asyncio.run(told())

    def test_a_container_runs_and_its_end_is_reported_once(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", annotations=BRIEF)
            await bench.runtime.start(spec)
            end = await bench.end_of(spec.key)
            assert (end.code, end.reason, end.signal) == (0, "Completed", 0)
            assert 0 < end.started_at <= end.finished_at
            assert len(bench.ends) == 1

        self.live(tmp_path, story)

    def test_an_exit_code_is_told_as_it_was(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "exit 3", annotations=FAILING)
            await bench.runtime.start(spec)
            end = await bench.end_of(spec.key)
            assert (end.code, end.reason) == (3, "Error")

        self.live(tmp_path, story)

    def test_starting_twice_is_starting_once(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "echo x >> /tmp/f; wc -l < /tmp/f; exec sleep 1000", annotations=FOREVER)
            first, second = await asyncio.gather(bench.runtime.start(spec), bench.runtime.start(spec))
            assert first == second == await bench.runtime.start(spec)
            assert list(await bench.runtime.observe()) == [spec.key]
            await bench.runtime.stop(spec.key, grace_s=0)
            assert len(bench.ends) == 1

        self.live(tmp_path, story)

    def test_a_stop_ends_the_container_and_a_second_stop_finds_it_done(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "exec sleep 1000", annotations=FOREVER)
            await bench.runtime.start(spec)
            await bench.runtime.stop(spec.key, grace_s=10)
            await bench.runtime.stop(spec.key, grace_s=10)
            assert (await bench.end_of(spec.key)).code == 143
            assert len(bench.ends) == 1

        self.live(tmp_path, story)

    def test_stopping_what_was_never_started_does_nothing(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            await bench.runtime.stop(ContainerKey("u1", "main", 0), grace_s=1)
            await bench.runtime.remove("u1")
            assert bench.ends == []

        self.live(tmp_path, story)

    def test_a_command_that_does_not_exist_is_a_start_error_that_names_it(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = ContainerSpec(key=ContainerKey("u1", "main", 0), argv=("no-such-command",), annotations=BROKEN)
            with pytest.raises(StartError, match=r"no-such-command.*not found in \$PATH"):
                await bench.runtime.start(spec)
            assert bench.ends == []
            assert not await bench.runtime.observe()

        self.live(tmp_path, story)

    def test_observe_tells_running_from_ended(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            running, ended = bench.spec("a", "sleep 1000", annotations=FOREVER), bench.spec("b", annotations=BRIEF)
            await bench.runtime.start(running)
            await bench.runtime.start(ended)
            await bench.end_of(ended.key)
            seen = await bench.runtime.observe()
            assert seen[running.key].exit is None
            assert seen[ended.key].exit is not None
            await bench.runtime.stop(running.key, grace_s=0)

        self.live(tmp_path, story)

    def test_a_removed_pod_is_forgotten_with_its_logs(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", annotations=BRIEF)
            await bench.runtime.start(spec)
            await bench.end_of(spec.key)
            await bench.runtime.remove("u1")
            assert not await bench.runtime.observe()
            with pytest.raises(LookupError, match="main"):
                await bench.log_of(spec.key)

        self.live(tmp_path, story)

    def test_what_needs_no_process_is_refused_with_a_sentence_where_there_is_none(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            if Feature.EXEC in bench.runtime.features:
                pytest.skip("this runtime runs commands")
            spec = bench.spec("main", annotations=FOREVER)
            await bench.runtime.start(spec)
            with pytest.raises(ExecError, match="simulated"):
                await bench.runtime.exec(spec.key, ["true"])

        self.live(tmp_path, story)

    def test_both_streams_are_logged_in_whole_lines(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            _, log = await bench.run(bench.spec("main", "echo out; echo err >&2; printf tail"))
            assert sorted(log.splitlines()) == ["err", "out", "tail"]
            key = ContainerKey("u1", "main", 0)
            assert await bench.log_of(key, LogOptions(stream="stderr")) == "err\n"

        self.live(tmp_path, story, [Feature.LOGS, Feature.PROCESSES])

    def test_the_last_lines_of_a_log_with_their_times(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            await bench.run(bench.spec("main", "seq 1000"))
            key = ContainerKey("u1", "main", 0)
            assert await bench.log_of(key, LogOptions(tail_lines=2)) == "999\n1000\n"
            stamped = await bench.log_of(key, LogOptions(tail_lines=1, timestamps=True))
            assert stamped.endswith("Z 1000\n")
            assert await bench.log_of(key, LogOptions(tail_lines=0)) == ""
            assert await bench.log_of(key, LogOptions(limit_bytes=5)) == "1\n2\n3"

        self.live(tmp_path, story, [Feature.LOGS, Feature.PROCESSES])

    def test_a_followed_log_ends_with_its_container(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "echo first; while ! test -e /tmp/go; do sleep 0.01; done; echo last")
            await bench.runtime.start(spec)
            following = asyncio.create_task(bench.log_of(spec.key, LogOptions(follow=True)))
            await bench.wait_for_log(spec.key, "first")
            session = await bench.runtime.exec(spec.key, ["touch", "/tmp/go"])
            await session.wait()  # with any code: the container's end may overtake it
            await session.close()
            assert await following == "first\nlast\n"

        self.live(tmp_path, story, [Feature.LOGS, Feature.EXEC])

    def test_a_container_ends_with_its_command_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            end, _ = await bench.run(bench.spec("main", "sleep 87654 & setsid sleep 87654 & exit 2"))
            assert end.code == 2
            assert processes_with("sleep\x0087654") == []

        self.live(tmp_path, story, [Feature.PROCESSES])

    def test_after_the_grace_comes_sigkill(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "trap '' TERM; echo up; while :; do sleep 0.02; done")
            await bench.runtime.start(spec)
            await bench.wait_for_log(spec.key, "up")
            await bench.runtime.stop(spec.key, grace_s=0.1)
            end = await bench.end_of(spec.key)
            assert (end.code, end.signal) == (137, 9)

        self.live(tmp_path, story, [Feature.PROCESSES, Feature.LOGS])

    def test_a_container_that_handles_its_stop_signal_chooses_its_exit_code(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "trap 'exit 7' INT; echo up; while :; do sleep 0.02; done")
            await bench.runtime.start(spec)
            await bench.wait_for_log(spec.key, "up")
            await bench.runtime.stop(spec.key, grace_s=20, signal="SIGINT")
            assert (await bench.end_of(spec.key)).code == 7

        self.live(tmp_path, story, [Feature.PROCESSES, Feature.LOGS])

    def test_the_environment_is_the_containers_own(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            _, log = await bench.run(
                bench.spec("main", 'echo "$GREETING"; echo "${USER-unset}"', env={"GREETING": "a b"})
            )
            assert log == "a b\nunset\n"

        self.live(tmp_path, story, [Feature.PROCESSES])

    def test_python_is_there_with_numpy(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            key = ContainerKey("u1", "main", 0)
            argv = ("python3", "-c", "import numpy; print(numpy.arange(3).sum())")
            end, log = await bench.run(ContainerSpec(key=key, argv=argv))
            assert (end.code, log) == (0, "3\n")

        self.live(tmp_path, story, [Feature.PROCESSES, Feature.HOST_FILES])

    def test_a_termination_message_is_told(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "echo why > /tmp/why; exit 1", termination_message_path="/tmp/why")
            end, _ = await bench.run(spec)
            assert end.message == "why\n"

        self.live(tmp_path, story, [Feature.PROCESSES])

    def test_without_a_message_the_log_tells_if_that_was_wished(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec(
                "main", "echo it broke; exit 1", termination_message_path="/tmp/why", falls_back_to_logs=True
            )
            end, _ = await bench.run(spec)
            assert end.message == "it broke\n"

        self.live(tmp_path, story, [Feature.PROCESSES])

    def test_volumes_lie_where_they_are_mounted(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            volume = bench.directory / "a volume"
            volume.mkdir()
            (volume / "f").write_text("hello")
            mounts = (
                Mount(source=volume, target="/data"),
                Mount(source=volume, target="/etc/deep/er", is_read_only=True),
            )
            script = "cat /data/f /etc/deep/er/f; echo new > /data/g; touch /etc/deep/er/h 2>/dev/null || echo refused"
            _, log = await bench.run(bench.spec("main", script, mounts=mounts))
            assert log == "hellohellorefused\n"
            assert (volume / "g").read_text() == "new\n"

        self.live(tmp_path, story, [Feature.MOUNTS])

    def test_the_hosts_files_cannot_be_written(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            target = bench.directory / "precious"
            target.write_text("kept")
            script = f"echo gone > {target} && echo written || echo refused; echo x > /tmp/own && echo ours"
            _, log = await bench.run(bench.spec("main", f"{script} 2>/dev/null"))
            assert "ours" in log
            assert "refused" in log
            assert target.read_text() == "kept"

        self.live(tmp_path, story, [Feature.MOUNTS])

    def test_a_command_runs_beside_the_container_with_its_streams(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "echo mine > /tmp/f; sleep 1000", env={"NAME": "value"})
            await bench.runtime.start(spec)
            argv = ["sh", "-c", "while ! test -s /tmp/f; do sleep 0.01; done; cat /tmp/f; echo $NAME >&2; cat; exit 6"]
            session = await bench.runtime.exec(spec.key, argv, has_stdin=True)
            await session.write(b"typed\n")
            await session.close_stdin()
            assert await output_of(session) == ("mine\ntyped\n", "value\n", 6)
            await bench.runtime.stop(spec.key, grace_s=0)

        self.live(tmp_path, story, [Feature.EXEC])

    def test_a_command_that_does_not_exist_is_an_exec_error(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "sleep 1000")
            await bench.runtime.start(spec)
            with pytest.raises(ExecError, match="no-such-command"):
                await bench.runtime.exec(spec.key, ["no-such-command"])
            await bench.runtime.stop(spec.key, grace_s=0)
            with pytest.raises(ExecError, match="not running"):
                await bench.runtime.exec(spec.key, ["true"])

        self.live(tmp_path, story, [Feature.EXEC])

    def test_a_closed_command_is_ended(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "sleep 1000")
            await bench.runtime.start(spec)
            session = await bench.runtime.exec(spec.key, ["sh", "-c", "sleep 76543; true"])
            await session.close()
            assert await asyncio.wait_for(session.wait(), PATIENCE_S) == 137
            await eventually(lambda: processes_with("sleep\x0076543") == [])
            await bench.runtime.stop(spec.key, grace_s=0)

        self.live(tmp_path, story, [Feature.EXEC])

    def test_a_terminal_has_the_size_it_was_given(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "sleep 1000")
            await bench.runtime.start(spec)
            argv = ["sh", "-c", "read line; stty size; tty >/dev/null && echo terminal"]
            session = await bench.runtime.exec(spec.key, argv, has_stdin=True, has_tty=True)
            session.resize(columns=101, rows=33)
            await session.write(b"go\n")
            output, _, code = await output_of(session)
            assert "33 101\r\nterminal\r\n" in output
            assert code == 0
            await bench.runtime.stop(spec.key, grace_s=0)

        self.live(tmp_path, story, [Feature.EXEC, Feature.TTY])

    def test_attached_streams_feed_the_container_itself(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            spec = bench.spec("main", "read x; echo got $x; cat; exit 9", has_stdin=True, stdin_once=True)
            await bench.runtime.start(spec)
            session = await bench.runtime.attach(spec.key)
            await session.write(b"it\nrest\n")
            await session.close_stdin()
            assert (await bench.end_of(spec.key)).code == 9
            assert await bench.log_of(spec.key) == "got it\nrest\n"
            await session.close()

        self.live(tmp_path, story, [Feature.STDIN])

    def test_many_containers_start_at_once(self, tmp_path: Path) -> None:
        async def story(bench: Bench) -> None:
            specs = [bench.spec(f"c{number}", annotations=BRIEF) for number in range(50)]
            await asyncio.gather(*(bench.runtime.start(spec) for spec in specs))
            for spec in specs:
                assert (await bench.end_of(spec.key)).code == 0
            assert len(bench.ends) == len(specs)

        self.live(tmp_path, story)


def processes_with(command: str) -> list[int]:
    """Running processes whose command line (parts joined by NUL) contains a text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if command in line and state != "Z":
                found.append(int(entry.name))
    return found


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds; fails after a long while."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)
