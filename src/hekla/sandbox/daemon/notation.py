"""IPython's notation, written as Python: `!ls`, `%timeit f()`, `%%bash`, `files = !ls`, `f?`, `pip install x` become calls of `get_ipython()`.

Only a cell that is no Python is looked at: a plain one pays nothing. In a cell that is looked at, only lines that are no Python are
rewritten. A line stays a line, so errors name the one that its author wrote. `notebook.py` does what is called.
"""

from __future__ import annotations

import ast
import io
import re
import warnings
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

AUTOMATIC: Final = (
    "pip", "pip3", "cd", "ls", "cat", "cp", "mv", "rm", "mkdir", "rmdir", "head", "tail", "time", "timeit", "env", "matplotlib",
    "load_ext", "run", "wget", "curl", "apt", "apt-get", "git",
)  # fmt: skip
"""Words that begin a command or a magic without a sign, as people type them. Python may begin a line so too (`rm in names`): such a line stays."""
_ASSIGNED: Final = re.compile(r"([A-Za-z_][\w.\[\]'\", ]*?)\s*=\s*([!%])(?![=])\s*(.*)", re.DOTALL)
_HELP: Final = re.compile(r"(\?{1,2})?\s*([%\w][%\w.]*(?:\[[^\]]*\])*)\s*(\?{1,2})?\s*;?")
_WORD: Final = re.compile(r"([\w-]+)\s+([^\s=.,(\[+*/%&|^<>:].*)", re.DOTALL)
_MAGIC: Final = re.compile(r"%\s*([A-Za-z_]\w*)\s*(.*)", re.DOTALL)
_OPENING, _CLOSING = "([{", ")]}"


def as_python(code: str) -> str:
    """The cell with every magic of it as a call; the same text where there is none."""
    lines = list(io.StringIO(code, newline=""))  # str.splitlines knows more ends than Python
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines and lines[first].startswith("%%"):
        head, _, body = code[sum(map(len, lines[:first])) :].partition("\n")
        name, _, line = head[2:].strip().partition(" ")
        return "\n" * first + f"get_ipython().run_cell_magic({name!r}, {line.strip()!r}, {body!r})"
    written, words = _lines_as_python(lines, ())
    bound = words and words & _bound_in(written)
    return _lines_as_python(lines, bound)[0] if bound else written


def _lines_as_python(lines: list[str], variables: Collection[str]) -> tuple[str, set[str]]:
    """The lines rewritten, and the words without a sign that were taken for commands; never such as are variables."""
    words: set[str] = set()
    done: list[str] = []
    place = _Place()
    while len(done) < len(lines):
        line = lines[len(done)]
        if not place.is_statement or not line.strip():
            place.pass_over(line)
            done.append(line)
            continue
        count = 1  # lines that end with a backslash go on
        while line.rstrip("\r\n").endswith("\\") and len(done) + count < len(lines):
            line = line.rstrip("\r\n")[:-1] + lines[len(done) + count]
            count += 1
        text = line.strip()
        call = _call(text)
        found = None if call else _WORD.fullmatch(text)
        if found and found[1] in AUTOMATIC and found[1] not in variables and not _begins_python(text):
            words.add(found[1])
            call = f"get_ipython().run_word({found[1]!r}, {found[2]!r})"
        if call:
            indent = line[: len(line) - len(line.lstrip())]
            done.append(f"{indent}{call}\n")
            done += ["\n"] * (count - 1)
        else:
            place.pass_over(lines[len(done)])
            done.append(lines[len(done)])
    return "".join(done), words


def _is_python(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except SyntaxError:
            return False
    return True


def _begins_python(text: str) -> bool:
    """Whether a line is Python, or may be with the lines that follow."""
    place = _Place()
    place.pass_over(text)
    return not place.is_statement or _is_python(text)


def _bound_in(code: str) -> set[str]:
    """Names that a cell assigns, imports or defines anywhere."""
    if not _is_python(code):
        return set()
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
    return names


def _call(text: str) -> str:
    """What a statement with a sign stands for; empty: it has none."""
    if text.startswith("!!"):
        return f"get_ipython().getoutput({text[2:].strip()!r})"
    if text.startswith("!"):
        return f"get_ipython().system({text[1:].strip()!r})"
    if "?" in text and (found := _HELP.fullmatch(text)) and (found[1] or found[3]):
        return f"get_ipython().run_line_magic({'pinfo' + '2' * ('??' in (found[1], found[3]))!r}, {found[2]!r})"
    if text.startswith("%"):
        return _magic(text)
    if (found := _ASSIGNED.fullmatch(text)) and _is_python(f"{found[1]} = 0"):
        asked = f"get_ipython().getoutput({found[3]!r})" if found[2] == "!" else _magic("%" + found[3])
        return f"{found[1]} = {asked}" if asked else ""
    return ""


def _magic(text: str) -> str:
    if text.startswith("%%"):
        name = text[2:].partition(" ")[0]
        return f"get_ipython().run_cell_magic({name!r}, '', None)"
    found = _MAGIC.fullmatch(text)
    return f"get_ipython().run_line_magic({found[1]!r}, {found[2].strip()!r})" if found else ""


class _Place:
    """Where in the code one is: within brackets, within a string of several lines, or where a statement begins."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""
        self._goes_on = False

    @property
    def is_statement(self) -> bool:
        return not self._depth and not self._quote and not self._goes_on

    def pass_over(self, line: str) -> None:
        at, size, is_comment = 0, len(line), False
        while at < size:
            sign = line[at]
            if self._quote:
                if sign == "\\":
                    at += 1
                elif line.startswith(self._quote, at):
                    at += len(self._quote) - 1
                    self._quote = ""
            elif sign == "#":
                is_comment = True
                break
            elif sign in "\"'":
                self._quote = sign * 3 if line.startswith(sign * 3, at) else sign
                at += len(self._quote) - 1
            elif sign in _OPENING:
                self._depth += 1
            elif sign in _CLOSING:
                self._depth = max(0, self._depth - 1)
            at += 1
        self._goes_on = not self._quote and not is_comment and line.rstrip("\r\n").endswith("\\")
        if len(self._quote) == 1 and not line.rstrip("\r\n").endswith("\\"):
            self._quote = ""  # it is not closed on its line: the compiler will say so
