"""The other side of an interpreter context: a process that runs Python cell by cell and keeps its variables.

It is forked by the nursery (`nursery.py`), talks JSON lines with the daemon (`contexts.py`) over one socket, and can fork itself, so that a
live session continues twice. Nothing of the daemon's secrets is in its memory: the nursery was forked before there were any.
"""

from __future__ import annotations

import array
import ast
import asyncio
import base64
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
from typing import Any

from hekla.sandbox.daemon import portable

LONGEST_TEXT = 1024 * 1024
"""Of one representation; what is longer is cut and marked."""
LONGEST_MESSAGE = 16 * 1024 * 1024
CUT = "... [cut by the sandbox]"
MIMES = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
    "application/javascript": "javascript",
}  # fmt: skip
"""Kinds of results, and the names that clients know them by."""
METHODS = {
    "_repr_html_": "text/html", "_repr_markdown_": "text/markdown", "_repr_svg_": "image/svg+xml", "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg", "_repr_pdf_": "application/pdf", "_repr_latex_": "text/latex", "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}  # fmt: skip
READY, FORKED, SAVED, LOADED = "ready", "forked", "saved", "loaded"


class _Stream(io.TextIOBase):
    """Standard output or error: every write goes to whoever runs the cell, in order with the results."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self._kernel = kernel
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
            self._kernel.tell({"type": self._name, "text": text[start : start + LONGEST_TEXT]})
        return len(text)


class Kernel:
    """One context's interpreter."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lines = b""
        self._descriptors: list[int] = []
        self._cells = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_running = False
        self.names: dict[str, Any] = {}

    def begin(self) -> None:
        """Become `__main__`, with streams that are heard."""
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        main.__dict__["display"] = self.display
        sys.modules["__main__"] = main
        self.names = main.__dict__
        sys.stdout, sys.stderr = _Stream(self, "stdout"), _Stream(self, "stderr")
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
        self.tell({"type": READY, "pid": os.getpid()})

    def tell(self, message: dict[str, Any]) -> None:
        """Send one message; waits while the daemon does not read."""
        data = json.dumps(message).encode("utf-8", "surrogatepass") + b"\n"
        if len(data) > LONGEST_MESSAGE:
            kept = {key: message[key] for key in ("type", "id", "is_main_result") if key in message}
            data = json.dumps({**kept, "text": f"[{len(data)} bytes, more than are sent]"}).encode() + b"\n"
        self._channel.sendall(data)

    def display(self, *values: object) -> None:
        """Show values as results of the cell."""
        for value in values:
            self._show(value, is_main=False)

    def _run(self, code: str, envs: dict[str, str]) -> None:
        self._cells += 1
        before = {name: os.environ.get(name) for name in envs}
        os.environ.update(envs)
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
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._evaluate(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if isinstance(last, ast.Expr):
            value = self._evaluate(compile(ast.Expression(last.value), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if value is not None:
                self.names["_"] = value
                if not code.rstrip().endswith(";"):
                    self._show(value, is_main=True)

    def _evaluate(self, compiled: types.CodeType) -> Any:
        value = eval(compiled, self.names)
        if compiled.co_flags & inspect.CO_COROUTINE:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
            return self._loop.run_until_complete(value)
        return value

    def _show(self, value: object, *, is_main: bool) -> None:
        shown = {"type": "result", "is_main_result": is_main}
        for mime, content in _pictures(value).items():
            shown[MIMES.get(mime, mime)] = content
        self.tell(shown)

    def _show_figures(self) -> None:
        plots: Any = sys.modules.get("matplotlib.pyplot")
        if plots is None:
            return
        for number in plots.get_fignums():
            buffer = io.BytesIO()
            plots.figure(number).savefig(buffer, format="png", bbox_inches="tight")
            png = base64.b64encode(buffer.getvalue()).decode()
            self.tell({"type": "result", "is_main_result": False, "text": f"<Figure {number}>", "png": png})
        plots.close("all")

    def _fork(self) -> None:
        channel = socket.socket(fileno=self._descriptors.pop(0))
        output = self._descriptors.pop(0)
        pid = os.fork()
        if pid:
            channel.close()
            os.close(output)
            self.tell({"type": FORKED, "pid": pid})
            return
        self._channel.close()
        self._channel, self._lines, self._descriptors = channel, b"", []
        for standard in (1, 2):
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
        if self._is_running:
            raise KeyboardInterrupt


def become_a_kernel(channel: socket.socket, output: int) -> None:
    """Run as a context in a process that has just been forked, to its end."""
    for standard in (1, 2):
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


def _pictures(value: object) -> dict[str, Any]:
    """A value in every form that it offers; text always."""
    found: dict[str, Any] = {}
    if not isinstance(value, type):
        bundle = _asked(value, "_repr_mimebundle_")
        if isinstance(bundle, tuple):
            bundle = bundle[0]
        if isinstance(bundle, dict):
            found.update(bundle)
        for method, mime in METHODS.items():
            if mime not in found and (content := _asked(value, method)) is not None:
                found[mime] = content[0] if isinstance(content, tuple) else content
    try:
        found.setdefault("text/plain", repr(value))
    except Exception as error:  # noqa: BLE001 - a broken __repr__ is the user's, and is shown
        found["text/plain"] = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return {mime: _sendable(content) for mime, content in found.items()}


def _asked(value: object, method: str) -> Any:
    try:
        asked = getattr(value, method, None)
        return asked() if callable(asked) else None
    except Exception:  # noqa: BLE001 - a form that cannot be made is left out, the others are shown
        return None


def _sendable(content: Any) -> Any:
    if isinstance(content, bytes):
        return base64.b64encode(content).decode()
    if isinstance(content, str):
        return content if len(content) <= LONGEST_TEXT else content[:LONGEST_TEXT] + CUT
    try:
        json.dumps(content)
    except (TypeError, ValueError):
        return repr(content)[:LONGEST_TEXT]
    return content


def _told(error: BaseException) -> dict[str, Any]:
    """What went wrong, with the lines of the cell and without ours."""
    kept = error.__traceback__
    while kept is not None and kept.tb_frame.f_code.co_filename == __file__:
        kept = kept.tb_next
    lines = traceback.format_exception(type(error), error, kept, limit=-100)
    return {
        "type": "error",
        "name": type(error).__name__,
        "value": str(error)[:LONGEST_TEXT],
        "traceback": "".join(lines)[:LONGEST_TEXT],
    }
