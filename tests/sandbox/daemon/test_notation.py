"""IPython's notation becomes calls, and Python stays as it is."""

import ast

import pytest

from hekla.sandbox.daemon.notation import as_python


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("!ls -la", "get_ipython().system('ls -la')\n"),
        ("  \n%%bash -x\necho 1\necho 2", "\nget_ipython().run_cell_magic('bash', '-x', 'echo 1\\necho 2')"),
        ("%timeit f(1)", "get_ipython().run_line_magic('timeit', 'f(1)')\n"),
        ("files = !ls {place}", "files = get_ipython().getoutput('ls {place}')\n"),
        ("t = %timeit -o f()", "t = get_ipython().run_line_magic('timeit', '-o f()')\n"),
        ("!!ls", "get_ipython().getoutput('ls')\n"),
        ("?f.g", "get_ipython().run_line_magic('pinfo', 'f.g')\n"),
        ("f??", "get_ipython().run_line_magic('pinfo2', 'f')\n"),
        ("pip install x", "get_ipython().run_word('pip', 'install x')\n"),
        ("if a:\n    !ls\n    b = 1", "if a:\n    get_ipython().system('ls')\n    b = 1"),
        ("!a \\\n  b\nc", "get_ipython().system('a   b')\n\nc"),
        ("x = '''\n!no\n'''\n!yes", "x = '''\n!no\n'''\nget_ipython().system('yes')\n"),
        ("f(a\n% b)\n!yes", "f(a\n% b)\nget_ipython().system('yes')\n"),
        ("x = 1 + \\\n%y\n!z", "x = 1 + \\\n%y\nget_ipython().system('z')\n"),
        ("1\n%%bash\nls", "1\nget_ipython().run_cell_magic('bash', '', None)\nls"),
        ("# it's\n!z", "# it's\nget_ipython().system('z')\n"),
        ("x = 1  # C:\\\n!z", "x = 1  # C:\\\nget_ipython().system('z')\n"),
        ("f(1,  # C:\\\n2)\n!z", "f(1,  # C:\\\n2)\nget_ipython().system('z')\n"),
    ],
)
def test_what_is_no_python_becomes_a_call(code: str, written: str) -> None:
    assert as_python(code) == written


@pytest.mark.parametrize(
    "code",
    [
        "def f(:",
        "x ==",
        "print 'hello'",
        "a = b % c d",
        "time = 3 +",
        "cat.x y",
        "x != y z",
        "'what?",
        "git = 1 +",
        "%",
    ],
)
def test_what_is_wrong_python_stays_wrong(code: str) -> None:
    assert as_python(code) == code


@pytest.mark.parametrize(
    "line",
    [
        "rm in names",
        "time - t0",
        "head - tail  # apart",
        "rm in (1,\n  2)",
        "cat if cat else \\\n  0",
        "env is None; run - 1",
        'assert "a = %d" in x',
        "x['a = !b']",
    ],
)
def test_python_beside_a_magic_stays(line: str) -> None:
    assert as_python(f"!ls\n{line}\n") == f"get_ipython().system('ls')\n{line}\n"


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_what_ends_a_line_of_python_ends_one(sign: str) -> None:
    assert as_python(f"x = 'a{sign}!b'\r\n!ls\r!pwd") == (
        f"x = 'a{sign}!b'\r\nget_ipython().system('ls')\nget_ipython().system('pwd')\n"
    )


def test_what_a_function_returns_is_no_assignment() -> None:
    code = 'def f(y):\n    return "x = %s" % y\n'
    assert as_python(f"{code}!ls") == f"{code}get_ipython().system('ls')\n"


@pytest.mark.parametrize(
    "binding", ["rm = 1", "import rm.x", "import a as rm", "for rm in a: pass", "def rm(): pass", "def f(rm): pass"]
)
def test_a_variable_of_the_cell_is_no_command(binding: str) -> None:
    assert as_python(f"{binding}\nrm in names x") == f"{binding}\nrm in names x"


def test_lines_keep_their_numbers() -> None:
    written = as_python("!a \\\n b \\\n c\n\n%%no\nx = 1\nlast = 1")
    tree = ast.parse(written)
    assert [statement.lineno for statement in tree.body] == [1, 5, 6, 7]
