"""The other side of an interpreter context: a process that runs Python cell by cell and keeps its variables.

It is forked by the nursery (`nursery.py`), talks JSON lines with the daemon (`contexts.py`) over one socket, and can fork itself, so that a
live session continues twice. Nothing of the daemon's secrets is in its memory: the nursery was forked before there were any.
"""

from __future__ import annotations

import array
import ast
import asyncio
import builtins
import contextlib
import inspect
import io
import json
import linecache
import os
import random
import signal
import socket
import sys
import traceback
import types
from typing import TYPE_CHECKING, Any

from hekla.sandbox.daemon import portable
from hekla.sandbox.daemon.displays import CHART, DATA, LONGEST_TEXT, Display, Finder, let_hear, pictures
from hekla.sandbox.daemon.notation import as_python
from hekla.sandbox.daemon.notebook import Notebook, UsageError
from hekla.sandbox.daemon.telling import Telling

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_OUT = 1_000
"""Results that `Out` keeps, as IPython does."""
MIMES = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
    "application/javascript": "javascript", DATA: "data", CHART: "chart",
}  # fmt: skip
"""Kinds of results, and the names that clients know them by; what has none is among `extra`."""
_OURS = os.path.dirname(__file__)
READY, FORKED, SAVED, LOADED = "ready", "forked", "saved", "loaded"


class _Stream(io.TextIOBase):
    """Standard output or error: every write goes to whoever runs the cell, in order with the results."""

    def __init__(self, telling: Telling, name: str) -> None:
        self._telling = telling
        self._name = name

    encoding = "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return 1 if self._name == "stdout" else 2

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        for start in range(0, len(text), LONGEST_TEXT):
            self._telling.say(self._name, text[start : start + LONGEST_TEXT])
        return len(text)

    def flush(self) -> None:
        self._telling.flush()


class Kernel:
    """One context's interpreter."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.telling = Telling(channel)
        self._lines = b""
        self._descriptors: list[int] = []
        self._cells = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_running = False
        self.names: dict[str, Any] = {}
        self._display = Display(self._show)
        self._inputs: list[str] = [""]
        self._outputs: dict[int, Any] = {}
        self._notebook = self._notebook_of({})

    def begin(self) -> None:
        """Become `__main__`, with streams that are heard."""
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        self.names = main.__dict__
        self._notebook = self._notebook_of(self.names)
        self.names.update(
            display=self._display.display, get_ipython=self._get_notebook, In=self._inputs, Out=self._outputs,
            exit=_leave, quit=_leave, help=_help,
        )  # fmt: skip
        builtins.input = _ask_nobody
        let_hear(Finder(self._display, self._get_whole_ipython, self._show_figures))
        _look_at_home()
        sys.stdout, sys.stderr = _Stream(self.telling, "stdout"), _Stream(self.telling, "stderr")
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it lives as long as the interpreter
        sys.argv = [""]
        sys.path.insert(0, "")
        signal.signal(signal.SIGINT, self._interrupted)
        self.tell({"type": READY, "pid": os.getpid()})

    def serve(self) -> None:
        """Run what is asked until the daemon is gone."""
        while True:
            asked = self._next()
            if asked is None:
                return
            if asked["op"] == "run":
                self._run(asked["code"], asked.get("envs") or {})
            elif asked["op"] == "fork":
                self._fork()
            elif asked["op"] == "env":
                os.environ.update(asked["envs"])
            elif asked["op"] == "take":
                self._take(asked["cwd"], asked["envs"])
            elif asked["op"] == "save":
                self._save()
            elif asked["op"] == "load":
                self._load(asked["cells"])

    def _take(self, cwd: str, envs: dict[str, str]) -> None:
        """Be somebody's, after a wait: as if it had begun now."""
        made_anew()
        os.environ.clear()
        os.environ.update(envs)
        with contextlib.suppress(OSError):
            os.chdir(cwd)
        _look_at_home()
        self.tell({"type": READY, "pid": os.getpid()})

    def tell(self, message: dict[str, Any]) -> None:
        """Send one message; waits while the daemon does not read."""
        self.telling.tell(message)

    def _notebook_of(self, names: dict[str, Any]) -> Notebook:
        return Notebook(names, self._run_within, self._show, self._show_figures)

    def _get_notebook(self) -> Notebook:
        return self._notebook

    def _get_whole_ipython(self) -> Notebook | None:
        """Libraries that ask for IPython want all of it; cells are content with what is here."""
        asking = sys._getframe(1).f_globals
        return self._notebook if asking is self.names else None

    def _run(self, code: str, envs: dict[str, str]) -> None:
        self._cells += 1
        before = {name: os.environ.get(name) for name in envs}
        os.environ.update(envs)
        self.telling.is_interrupted = False
        self._is_running = True
        try:
            self._execute(code)
            self._show_figures()
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is its own result
            self._is_running = False
            self.tell(_told(error))
        finally:
            self._is_running = False
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        self.tell({"type": "end", "count": self._cells})

    def _execute(self, code: str) -> None:
        name = f"<cell {self._cells}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        self._inputs.append(code)
        value = self._value_of(code, name)
        if value is not None:
            self._outputs[self._cells] = value
            if len(self._outputs) > MOST_OUT:
                del self._outputs[next(iter(self._outputs))]
            self.names.update(_=value, __=self.names.get("_"), ___=self.names.get("__"))
            if not code.rstrip().endswith(";") and not self._display.shows_itself(value):
                self._show(pictures(value), is_main=True)

    def _run_within(self, code: str) -> Any:
        """What a magic runs is part of its cell."""
        return self._value_of(code, f"<cell {self._cells}, within>")

    def _value_of(self, code: str, name: str) -> Any:
        """Run code; what its last expression is worth, if it ends with one."""
        tree = _parsed(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._evaluate(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if isinstance(last, ast.Expr):
            return self._evaluate(compile(ast.Expression(last.value), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        return None

    def _evaluate(self, compiled: types.CodeType) -> Any:
        value = eval(compiled, self.names)
        if compiled.co_flags & inspect.CO_COROUTINE:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
            return self._loop.run_until_complete(value)
        return value

    def _show(self, forms: Mapping[str, Any], *, is_main: bool = False) -> None:
        if self._notebook.capturing is not None:
            self._notebook.capturing.append(forms)
            return
        shown: dict[str, Any] = {"type": "result", "is_main_result": is_main}
        for mime, content in forms.items():
            if mime in MIMES:
                shown[MIMES[mime]] = content
            else:
                shown.setdefault("extra", {})[mime] = content
        self.tell(shown)

    def _show_figures(self, *_given: object, **_options: object) -> None:
        """What `plt.show()` does, and the end of a cell."""
        plots: Any = sys.modules.get("matplotlib.pyplot")
        if plots is None:
            return
        for number in plots.get_fignums():
            self._show(pictures(plots.figure(number)))
        plots.close("all")

    def _fork(self) -> None:
        channel = socket.socket(fileno=self._descriptors.pop(0))
        outputs, self._descriptors = self._descriptors[:2], self._descriptors[2:]
        pid = os.fork()
        if pid:
            channel.close()
            for output in outputs:
                os.close(output)
            self.tell({"type": FORKED, "pid": pid})
            return
        self._channel.close()
        self._channel, self._lines, self._descriptors = channel, b"", []
        self.telling.begin_anew(channel)
        for standard, output in enumerate(outputs, 1):
            os.dup2(output, standard)
            os.close(output)
        os.setsid()
        self._loop = None
        made_anew()
        self.tell({"type": READY, "pid": os.getpid()})

    def _save(self) -> None:
        """Write the variables into the file that came with the order."""
        with os.fdopen(self._descriptors.pop(0), "wb") as file:
            data, left_out = portable.written(self.names)
            file.write(data)
        self.tell({"type": SAVED, "left_out": left_out})

    def _load(self, cells: int) -> None:
        """Go on with variables that another wrote."""
        self._cells, problem = cells, ""
        try:
            with os.fdopen(self._descriptors.pop(0), "rb") as file:
                portable.read(file.read(), self.names)
        except Exception as error:  # noqa: BLE001 - an object's own code may raise anything; the context stays empty
            problem = f"{type(error).__name__}: {error}"[:500]
        self.tell({"type": LOADED, "problem": problem})

    def _next(self) -> dict[str, Any] | None:
        while b"\n" not in self._lines:
            try:
                data, descriptors = _receive(self._channel)
            except OSError:
                return None
            if not data:
                return None
            self._lines += data
            self._descriptors += descriptors
        line, _, self._lines = self._lines.partition(b"\n")
        asked: dict[str, Any] = json.loads(line)
        return asked

    def _interrupted(self, number: int, frame: object) -> None:
        if not self._is_running:
            return
        if self.telling.is_sending:  # half a message would be the end of the interpreter
            self.telling.is_interrupted = True
            return
        raise KeyboardInterrupt


def become_a_kernel(channel: socket.socket, outputs: list[int]) -> None:
    """Run as a context in a process that has just been forked, to its end; its standard output and error go to `outputs`."""
    for standard, output in enumerate(outputs, 1):
        os.dup2(output, standard)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    keep = {0, 1, 2, channel.fileno()}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) not in keep:
                os.close(int(name))
    made_anew()
    kernel = Kernel(channel)
    kernel.begin()
    kernel.serve()


def made_anew() -> None:
    """Nothing random is the same in two processes that were one."""
    random.seed()
    dice: Any = sys.modules.get(
        "numpy.random"
    )  # numpy loads it when it is first asked for, and then it is fresh by itself
    if dice is not None:
        dice.seed()
    uuid: Any = sys.modules.get("uuid")
    if uuid is not None:  # the clock sequence and last time of uuid1
        uuid._last_timestamp = None
        uuid._node = None
    ssl: Any = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Some bytes, and the descriptors that came with them."""
    data, ancillary, _, _ = channel.recvmsg(65_536, socket.CMSG_SPACE(16))
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, list(descriptors)


def _parsed(code: str, name: str) -> ast.Module:
    """A cell as Python, which it may be only after its magics are written as calls."""
    try:
        return ast.parse(code, name)
    except SyntaxError as error:
        written = as_python(code)
        if written == code:
            raise error.with_traceback(None) from None
    try:
        return ast.parse(written, name)
    except SyntaxError as error:
        raise error.with_traceback(None) from None


def _look_at_home() -> None:
    """Where `%pip` puts what this user may not put beside the interpreter; it goes before that, as Python has it."""
    place = os.path.expanduser(f"~/.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
    if place not in sys.path:
        at = next(
            (number for number, one in enumerate(sys.path) if one.endswith(("site-packages", "dist-packages"))), None
        )
        sys.path.insert(len(sys.path) if at is None else at, place)


def _ask_nobody(prompt: object = "") -> str:
    raise EOFError(
        "input() has nobody to ask in a cell: write the value into the code, or read it from a file or os.environ"
    )


def _leave(code: object = None) -> None:
    """`exit()` and `quit()`."""
    raise SystemExit(code)


def _help(*asked: object) -> None:
    """`help(...)`, which only an interpreter with `site` has by itself."""
    import pydoc

    pydoc.Helper(output=sys.stdout)(*asked or ("help",))


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a broken __str__ is the user's
        return f"<{type(error).__name__}, whose str raised {type(broken).__name__}>"


def _told(error: BaseException) -> dict[str, Any]:
    """What went wrong, with the lines of the cell and without ours."""
    kept = error.__traceback__
    while kept is not None and kept.tb_frame.f_code.co_filename == __file__:
        kept = kept.tb_next
    if isinstance(error, UsageError):  # the sentence says all
        kept = None
    told = traceback.TracebackException(type(error), error, kept, limit=-100)
    theirs = [frame for frame in told.stack if not frame.filename.startswith(_OURS)]
    told.stack = traceback.StackSummary.from_list(theirs)
    return {
        "type": "error",
        "name": type(error).__name__,
        "value": _said(error)[:LONGEST_TEXT],
        "traceback": "".join(told.format())[:LONGEST_TEXT],
    }
