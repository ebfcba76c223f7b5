"""What cells find as `get_ipython()`: commands of the shell and the magics that data scientists write.

    !ls            system("ls")                   f?       run_line_magic("pinfo", "f")
    x = !ls        getoutput("ls")                %%bash   run_cell_magic("bash", "", "...")

Those that are not here answer a sentence that says what to write instead. `notation.py` turns a cell into these calls.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from hekla.sandbox.daemon import programs
from hekla.sandbox.daemon.timing import Times, timed_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NAMED: Final = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|\$\$(?=[A-Za-z_])|\$([A-Za-z_]\w*)")
_FORMAT: Final = re.compile(r"(?:!([rsa]))?(?::|$)")
_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {"r": repr, "s": str, "a": ascii, "": lambda value: value}
_OF_PYTHON: Final = (types.BuiltinFunctionType, types.FunctionType, types.ModuleType, type)
_SHELL: Final = frozenset((
    "ls", "cat", "cp", "mv", "rm", "mkdir", "rmdir", "head", "tail", "wget", "curl", "apt", "apt-get", "git", "ll", "echo", "less", "more",
))  # fmt: skip
_HOW_IT_LOOKS: Final = frozenset(("autosave", "colors", "config", "xmode", "precision", "pprint", "autoindent"))
"""They set how a terminal or a page shows things; here they change nothing, and a cell that says one goes on."""
_INSTEAD: Final = {
    "autoreload": "modules are read once: call importlib.reload(module) after you changed its file",
    "conda": "there is no conda here; use %pip", "mamba": "there is no mamba here; use %pip",
    "debug": "nobody can type here: print what you want to see, or catch the error and look at its traceback",
    "pdb": "nobody can type here: print what you want to see", "edit": "write the file: %%writefile, or open(...)",
    "history": "In and Out hold what was run and what came of it", "hist": "In and Out hold what was run and what came of it",
    "load": "read the file: print(open(path).read()), or run it: %run path", "pylab": "import numpy as np; import matplotlib.pyplot as plt",
    "gui": "there is no screen here", "notebook": "write the file yourself", "save": "write the file: %%writefile, or open(...)",
    "store": "variables stay for as long as the session, and come along in its snapshots; for longer write a file",
    "memit": "import memory_profiler and call it", "lprun": "import line_profiler and call it", "sql": "connect with a library for it",
    "R": "run a cell of the language r", "cython": "build the module with %pip and a setup file",
}  # fmt: skip
_SCRIPTS: Final = {"sh": "sh", "perl": "perl", "ruby": "ruby", "node": "node", "python2": "python2", "pypy": "pypy"}
_NO_INDEX: Final = re.compile(
    r"name resolution|NameResolutionError|Name or service not known|Failed to establish a new connection|ProxyError|Tunnel connection failed|Network is unreachable"
)
NO_INDEX = (
    "\npip reached no index: a sandbox reaches only what its template allows by the annotation hekla.dev/egress "
    "(pypi.org and files.pythonhosted.org for pip), or what its image or files bring along\n"
)
_PLACED: Final = frozenset(("--target", "-t", "--prefix", "--user", "--root", "--no-user"))


class UsageError(Exception):
    """A magic was not written as it is meant, or is not here; the sentence says what to write."""

    __module__ = "builtins"  # a traceback names it as IPython's does


class Notebook:
    """The object for one interpreter."""

    def __init__(
        self,
        names: dict[str, Any],
        run: Callable[[str], Any],
        show: Callable[[Mapping[str, Any]], None],
        find_figures: Callable[[], None],
    ) -> None:
        """`run` runs code as a cell's and returns its last value; `show` tells of representations by MIME type."""
        self.user_ns = names
        self._run, self._show, self._find_figures = run, show, find_figures
        self._came_from = ""

    def __getattr__(self, name: str) -> Any:
        known = "system, getoutput, run_line_magic, run_cell_magic, run_cell, ev, ex and user_ns"
        raise AttributeError(f"get_ipython() has no {name} here; it has {known}")

    def system(self, command: str) -> None:
        """`!command`: what it prints is the cell's, its exit code is in `_exit_code`."""
        command = self._filled_in(command, inspect.currentframe())
        if re.search(r"(?<![&>])&\s*$", command):
            raise OSError(programs.BACKGROUND)
        self.user_ns["_exit_code"] = self._shell(command)

    def getoutput(self, command: str) -> programs.Lines:
        """`x = !command`: the lines that it prints."""
        pieces: list[str] = []
        command = self._filled_in(command, inspect.currentframe())
        self.user_ns["_exit_code"] = programs.run([programs.shell(), "-c", command], hear=pieces.append)
        return programs.Lines("".join(pieces).splitlines())

    def run_line_magic(self, name: str, line: str, *_more: object) -> Any:
        """`%name line`."""
        known: Callable[[str], Any] | None = getattr(type(self), f"_line_{name}", None)
        if name not in ("time", "timeit", "prun", "pinfo", "pinfo2"):  # theirs is Python
            line = self._filled_in(line, inspect.currentframe())
        if known is not None:
            return known.__get__(self)(line)
        if name in _SHELL:
            return self._line_system(f"{name} {line}")
        if name in _HOW_IT_LOOKS:
            return None
        if name in _INSTEAD:
            raise UsageError(f"%{name} is not here: {_INSTEAD[name]}")
        if hasattr(type(self), f"_cell_{name}") or name in _SCRIPTS:
            raise UsageError(f"%%{name} begins a cell with two signs, and its text follows in the next lines")
        raise UsageError(_unknown("%", name, self._all("_line_") + sorted(_SHELL)))

    def run_word(self, name: str, line: str) -> Any:
        """`name line` without a sign, which is no Python. Raises SyntaxError where the name is a variable, as Python does."""
        if name in self.user_ns:
            raise SyntaxError(f"invalid syntax; {name} is a variable here: write %{name} if the command is meant")
        return self.run_line_magic(name, line)

    def run_cell_magic(self, name: str, line: str, cell: str | None) -> Any:
        """`%%name line`, and the rest of the cell."""
        if cell is None:
            raise UsageError(f"%%{name} must stand in the first line of its cell, for it is about all that follows")
        known: Callable[[str, str], Any] | None = getattr(type(self), f"_cell_{name}", None)
        if known is not None:
            return known.__get__(self)(self._filled_in(line, inspect.currentframe()), cell)
        if name in _SCRIPTS:
            return self._cell_script(_SCRIPTS[name], cell)
        if name in _INSTEAD:
            raise UsageError(f"%%{name} is not here: {_INSTEAD[name]}")
        if hasattr(type(self), f"_line_{name}"):
            raise UsageError(f"%{name} is about one line: write it with one sign")
        raise UsageError(_unknown("%%", name, self._all("_cell_") + sorted(_SCRIPTS)))

    def magic(self, text: str) -> Any:
        """A magic as one text, as older notebooks call it."""
        name, _, line = text.lstrip("%").partition(" ")
        return self.run_line_magic(name, line.strip())

    def run_cell(self, code: str, **_options: object) -> Any:
        """Run a cell within this one."""
        return self._run(code)

    def ev(self, code: str) -> Any:
        """The value of an expression among the variables of the session."""
        return eval(code, self.user_ns)

    def ex(self, code: str) -> None:
        """Run statements among the variables of the session."""
        exec(code, self.user_ns)

    def _all(self, kind: str) -> list[str]:
        return sorted(name[len(kind) :] for name in dir(type(self)) if name.startswith(kind))

    def _filled_in(self, text: str, frame: types.FrameType | None) -> str:
        """With `{expression}` and `$name` of whoever wrote it; what is nothing of his is the shell's."""
        if "{" not in text and "$" not in text:
            return text
        here = self._variables_of(frame)

        def value(found: re.Match[str]) -> str:
            if found[0] in ("{{", "}}", "$$"):
                return found[0][0]
            if found[2]:
                name = found[2]
                return str(here.get(name, self.user_ns.get(name))) if name in here or name in self.user_ns else found[0]
            try:
                said, told = _evaluated(found[1], self.user_ns, here, is_shells=text[: found.start()].endswith("$"))
                return found[0] if isinstance(said, _OF_PYTHON) else told
            except Exception:  # noqa: BLE001 - a brace of the shell's
                return found[0]

        return _NAMED.sub(value, text)

    def _variables_of(self, frame: types.FrameType | None) -> Mapping[str, Any]:
        """What the cell's code that called sees as its own: a function's locals, or the variables of the session themselves."""
        while frame is not None and frame.f_globals is not self.user_ns:
            frame = frame.f_back
        return frame.f_locals if frame is not None else self.user_ns

    def _seen(self, frame: types.FrameType | None) -> dict[str, Any]:
        """All that the code sees; within a function that is a copy."""
        here = self._variables_of(frame)
        return self.user_ns if here is self.user_ns else {**self.user_ns, **here}

    def _shell(self, command: str) -> int:
        if found := re.match(r"\s*(?:(?:\S*/)?pip3?|python3? -m pip)\s+(?=[\w-])([^;&|<>`$]*)$", command):
            return self._pip(found[1])
        if re.match(r"\s*cd\s[^;&|]*$", command):
            sys.stderr.write("!cd changes the directory of its own shell only; %cd changes that of the session\n")
        return programs.run([programs.shell(), "-c", command])

    def _pip(self, line: str) -> int:
        """Run the pip of the session's own interpreter, into a place where this user may write and that looks."""
        if importlib.util.find_spec("pip") is None:
            raise UsageError(f"{sys.executable} has no pip; install it into the image")
        words = shlex.split(line, comments=True)
        envs = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
        envs.setdefault("PIP_RETRIES", "2")  # five take ten seconds to say that there is no way out
        if words[:1] == ["install"] and not _PLACED.intersection(words) and not os.access(_packages(), os.W_OK):
            envs["PIP_PREFIX"] = os.path.expanduser("~/.local")
        said: list[str] = []

        def hear(text: str) -> None:
            said.append(text[-4096:])
            del said[:-16]
            sys.stdout.write(text)

        code = programs.run([sys.executable, "-m", "pip", *words], hear=hear, envs=envs)
        importlib.invalidate_caches()
        if code and _NO_INDEX.search("".join(said)):
            sys.stderr.write(NO_INDEX)
        return code

    def _line_pip(self, line: str) -> None:
        if self._pip(line):
            raise UsageError("pip did not do it; what it printed says why")

    _line_pip3 = _line_pip

    def _line_system(self, line: str) -> None:
        self.user_ns["_exit_code"] = self._shell(line)

    def _line_sx(self, line: str) -> programs.Lines:
        return self.getoutput(line)

    def _line_pwd(self, line: str) -> str:
        return os.getcwd()

    def _line_cd(self, line: str) -> None:
        place = line.strip().strip("\"'") or "~"
        here = os.getcwd()
        os.chdir(os.path.expanduser(self._came_from or "." if place == "-" else place))
        self._came_from = here
        sys.stdout.write(os.getcwd() + "\n")

    def _line_env(self, line: str) -> Any:
        name, sign, value = line.partition("=") if "=" in line else line.partition(" ")
        if not line:
            return dict(os.environ)
        if not sign:
            if name not in os.environ:
                raise UsageError(f"no variable {name} is set; set it by %env {name}=value")
            return os.environ[name]
        os.environ[name.strip()] = value.strip()
        sys.stdout.write(f"env: {name.strip()}={value.strip()}\n")
        return None

    _line_set_env = _line_env

    def _line_matplotlib(self, line: str) -> None:
        """Figures are pictures of the cell in any case."""
        wanted = line.split("#")[0].strip()
        if wanted not in ("", "inline", "agg", "Agg", "--list"):
            sys.stderr.write(f"%matplotlib {wanted}: there is no screen here; figures are shown as pictures\n")

    def _line_load_ext(self, line: str) -> None:
        name = line.split()[0] if line.split() else ""
        said = _INSTEAD.get(name.split(".")[-1], "import the package and call it")
        sys.stderr.write(f"%load_ext {name}: extensions of IPython are not loaded here; {said}\n")

    _line_reload_ext = _line_load_ext

    def _line_autoreload(self, line: str) -> None:
        sys.stderr.write(f"%autoreload is not here: {_INSTEAD['autoreload']}\n")

    def _line_lsmagic(self, line: str) -> None:
        lines = " ".join(f"%{name}" for name in self._all("_line_"))
        cells = " ".join(f"%%{name}" for name in sorted({*self._all("_cell_"), *_SCRIPTS}))
        sys.stdout.write(f"{lines}\n{cells}\n! and !! run commands, ? and ?? tell about objects\n")

    def _own_names(self) -> list[str]:
        return sorted(
            name for name, value in self.user_ns.items()
            if not name.startswith("_") and name not in ("In", "Out", "display", "get_ipython", "exit", "quit", "help")
            and not isinstance(value, types.ModuleType)
        )  # fmt: skip

    def _line_who_ls(self, line: str) -> list[str]:
        return self._own_names()

    def _line_who(self, line: str) -> None:
        sys.stdout.write("  ".join(self._own_names()) + "\n")

    def _line_whos(self, line: str) -> None:
        for name in self._own_names():
            value = self.user_ns[name]
            sys.stdout.write(f"{name:<16} {type(value).__name__:<14} {_short(value)}\n")

    def _line_reset(self, line: str) -> None:
        for name in self._own_names():
            del self.user_ns[name]

    def _line_time(self, line: str) -> Any:
        names, value = self._seen(inspect.currentframe()), None
        if names is not self.user_ns:
            with contextlib.suppress(SyntaxError):
                value = compile(line.strip(), "<timed>", "eval")
        with timed_text():
            return self._run(line) if value is None else eval(value, names)

    def _cell_time(self, line: str, cell: str) -> Any:
        if line:
            self._run(line)
        with timed_text():
            return self._run(cell)

    def _line_timeit(self, line: str) -> Any:
        return Times.of(line, "pass", self._seen(inspect.currentframe()))

    def _cell_timeit(self, line: str, cell: str) -> Any:
        return Times.of(line, cell, self.user_ns)

    def _line_prun(self, line: str) -> None:
        import cProfile
        import pstats

        profile = cProfile.Profile()
        names = self._seen(inspect.currentframe())
        profile.runctx(line, names, names)
        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(30)

    def _cell_prun(self, line: str, cell: str) -> None:
        self._line_prun(cell)

    def _line_run(self, line: str) -> None:
        words = shlex.split(line)
        is_within = words[:1] == ["-i"]  # among the variables of the session
        path, *arguments = words[is_within:] or [""]
        if path.startswith("-"):
            raise UsageError(
                f"%run {path} is not here: %run has only -i, which runs the file among the session's variables"
            )
        if not path.endswith(".py"):
            raise UsageError(f'%run wants a file of Python; "{path}" ends otherwise')
        before, sys.argv = sys.argv, [path, *arguments]
        beside = os.path.dirname(os.path.abspath(os.path.expanduser(path)))
        names: dict[str, Any] = self.user_ns if is_within else {"__name__": "__main__", "__builtins__": __builtins__}
        names["__file__"] = path
        sys.path.insert(0, beside)
        try:
            with open(os.path.expanduser(path), encoding="utf-8") as file:
                exec(compile(file.read(), path, "exec"), names)
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        finally:
            sys.argv = before
            with contextlib.suppress(ValueError):
                sys.path.remove(beside)
            if is_within:
                names.pop("__file__", None)
        self.user_ns.update({name: value for name, value in names.items() if not name.startswith("__")})

    def _line_pinfo(self, line: str) -> None:
        sys.stdout.write(_told_of(line, self._found(line), with_source=False))

    def _line_pinfo2(self, line: str) -> None:
        sys.stdout.write(_told_of(line, self._found(line), with_source=True))

    def _found(self, line: str) -> Any:
        name = line.lstrip("%")
        if line.startswith("%") and name.isidentifier():
            return getattr(type(self), f"_line_{name}", None) or getattr(type(self), f"_cell_{name}", None)
        try:
            return eval(line, self.user_ns)
        except Exception as error:  # noqa: BLE001 - whatever an object's own code raises
            raise UsageError(f"{line} is nothing here: {type(error).__name__}: {error}") from None

    def _cell_script(self, line: str, cell: str) -> None:
        words = shlex.split(line)
        options = [word for word in words if word.startswith("--")]
        program = [word for word in words if not word.startswith("--")]
        if "--bg" in options:
            raise UsageError(programs.BACKGROUND)
        if program and program[0] in ("python", "python3"):
            program[0] = sys.executable
        try:
            code = programs.script(program, cell)
        except FileNotFoundError:
            raise UsageError(f"there is no program {program[0]} here; install it into the image") from None
        self.user_ns["_exit_code"] = code
        if code and "--no-raise-error" not in options:
            raise subprocess.CalledProcessError(code, " ".join(program))

    def _cell_bash(self, line: str, cell: str) -> None:
        self._cell_script(f"bash {line}", cell)

    def _cell_python(self, line: str, cell: str) -> None:
        self._cell_script(f"python {line}", cell)

    _cell_python3 = _cell_python

    def _cell_sx(self, line: str, cell: str) -> programs.Lines:
        return self.getoutput(cell)

    def _cell_writefile(self, line: str, cell: str) -> None:
        words = shlex.split(line)
        is_more = "-a" in words or "--append" in words
        paths = [word for word in words if word not in ("-a", "--append")]
        if len(paths) != 1:
            raise UsageError("%%writefile wants the path of one file, and -a before it to add to it")
        path = os.path.expanduser(paths[0])
        word = "Appending to" if is_more else "Overwriting" if os.path.exists(path) else "Writing"
        with open(path, "a" if is_more else "w", encoding="utf-8") as file:
            file.write(cell if cell.endswith("\n") or not cell else cell + "\n")
        sys.stdout.write(f"{word} {paths[0]}\n")

    _cell_file = _cell_writefile

    def _cell_capture(self, line: str, cell: str) -> None:
        out, err = io.StringIO(), io.StringIO()
        kept: list[Mapping[str, Any]] = []
        show, self.capturing = self._show, kept
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                self._run(cell)
                self._find_figures()
        finally:
            self.capturing = None
            names = [word for word in line.split() if not word.startswith("--")]
            if names:
                self.user_ns[names[0]] = Captured(out.getvalue(), err.getvalue(), kept, show)

    capturing: list[Mapping[str, Any]] | None = None
    """Where representations go instead of to the client, while a cell is captured."""

    def _cell_html(self, line: str, cell: str) -> None:
        self._show({"text/html": cell})

    _cell_HTML = _cell_html

    def _cell_markdown(self, line: str, cell: str) -> None:
        self._show({"text/markdown": cell})

    def _cell_latex(self, line: str, cell: str) -> None:
        self._show({"text/latex": cell})

    def _cell_svg(self, line: str, cell: str) -> None:
        self._show({"image/svg+xml": cell})

    _cell_SVG = _cell_svg

    def _cell_javascript(self, line: str, cell: str) -> None:
        self._show({"application/javascript": cell})

    _cell_js = _cell_javascript


class Captured:
    """What a cell under `%%capture` printed and showed."""

    def __init__(
        self, stdout: str, stderr: str, outputs: list[Mapping[str, Any]], show: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self.stdout, self.stderr, self.outputs = stdout, stderr, outputs
        self._show = show

    def show(self) -> None:
        """Tell it after all."""
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for one in self.outputs:
            self._show(one)

    __call__ = show


def _evaluated(text: str, names: dict[str, Any], here: Mapping[str, Any], *, is_shells: bool) -> tuple[Any, str]:
    """The value of `expression`, `expression!r` or `expression:format`, and its text; `${x:1}` is the shell's."""
    try:
        said = eval(text, names, here)
        return said, str(said)
    except SyntaxError:
        if is_shells:
            raise
    for end in _FORMAT.finditer(text):
        try:
            said = eval(text[: end.start()], names, here)
        except SyntaxError:
            continue
        return said, format(_CONVERSIONS[end[1] or ""](said), text[end.end() :])
    raise SyntaxError(text)


def _packages() -> str:
    import sysconfig

    place = sysconfig.get_path("purelib")
    return place if os.path.isdir(place) else os.path.dirname(place)


def _unknown(sign: str, name: str, there: list[str]) -> str:
    near = difflib.get_close_matches(name, there, 3)
    meant = f"; {' or '.join(sign + one for one in near)} is near" if near else ""
    return f"there is no {sign}{name} here{meant}; %lsmagic lists what there is, and Python or a command behind ! does the rest"


def _told_of(name: str, value: object, *, with_source: bool) -> str:
    lines: list[str] = []
    try:
        lines.append(f"Signature: {name}{inspect.signature(value)}")  # type: ignore[arg-type]  # not all are callable
    except (TypeError, ValueError):
        lines.append(f"String form: {_short(value)}")
    lines.append(f"Type:      {type(value).__name__}")
    with contextlib.suppress(TypeError):
        lines.append(f"File:      {inspect.getfile(value)}")  # type: ignore[arg-type]  # the same
    source = ""
    if with_source:
        with contextlib.suppress(TypeError, OSError):
            source = inspect.getsource(value)  # type: ignore[arg-type]  # the same
    lines.append(f"Source:\n{source.rstrip()}" if source else f"Docstring:\n{inspect.getdoc(value) or 'none'}")
    return "\n".join(lines) + "\n"


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a broken __repr__ is the user's
        text = f"its repr raised {type(error).__name__}"
    first = text.splitlines()[0] if text else ""
    return first if len(first) <= 80 else f"{first[:77]}..."
