"""Cells as data scientists write them, in the interpreter of a sandbox that has the standard library only, and with their libraries."""

import base64
import importlib.util
import os
import tempfile

import pytest
from tests.sandbox.daemon.test_contexts import run, tell, texts

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""One pixel."""


def results(messages):
    return [message for message in messages if message["type"] == "result"]


def error(messages):
    [found] = [message for message in messages if message["type"] == "error"]
    return found


def plays(*cells, preload=()):
    """Run cells one after another; what each told."""
    told = []

    async def story(one):
        with tempfile.TemporaryDirectory() as place:
            context = one.create(cwd=place)
            for cell in cells:
                told.append(await run(one, cell, context))

    tell(story, preload)
    return told


def needs(*modules):
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed beside the tests")


def test_commands_of_the_shell_print_and_hand_on_their_lines():
    told = plays(
        "!echo one; echo two >&2; exit 3",
        "_exit_code",
        "name = 'x'\nlines = !printf '%s\\n' {name}1 $name $HOME_ {{a}}; awk 'BEGIN {print 5}'",
        "lines, lines.n",
        "def f(where):\n    found = !echo {where}\n    return found\nf('here')",
    )
    assert texts(told[0], "stdout") == "one\ntwo\n"
    assert results(told[1])[0]["text"] == "3"
    assert results(told[3])[0]["text"] == "(['x1', 'x', '{a}', '5'], 'x1\\nx\\n{a}\\n5')"
    assert results(told[4])[0]["text"] == "['here']"


def test_a_command_that_would_run_on_is_refused_with_what_to_write():
    [told] = plays("!sleep 60 &")
    assert error(told)["value"].startswith("a command that ends with & has nobody who reads")
    assert "subprocess.Popen" in error(told)["value"]


def test_a_command_whose_child_runs_on_does_not_keep_its_cell():
    [told] = plays("!(sleep 60 & ) ; echo done")
    assert texts(told, "stdout") == "done\n"


def test_a_line_of_python_beside_a_command_removes_no_file():
    told = plays(
        "open('in', 'w').close(); open('names', 'w').close(); names = {1}",
        "rm = 1\n!true\nrm in names",
        "!true\nrm in names 2",
        "!ls",
        "del rm",
        "rm in names\n!ls",
        "!true\nrm -f in names\n!ls",
    )
    assert results(told[1])[0]["text"] == "True"
    assert (error(told[2])["name"], "write %rm" in error(told[2])["value"]) == ("SyntaxError", True)
    assert texts(told[3], "stdout") == "in\nnames\n"
    assert error(told[5])["name"] == "NameError"
    assert texts(told[6], "stdout") == ""


def test_an_interrupt_ends_the_command_of_a_cell():
    async def story(one):
        context = one.default()
        cell = one.run(context, "!echo $$; exec sleep 600")
        pid = int((await cell.__anext__())["text"])
        one.interrupt(context.id)
        told = [message async for message in cell]
        assert error(told)["name"] == "KeyboardInterrupt"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    tell(story)


def test_scripts_run_in_their_own_language_and_their_failure_is_the_cells():
    told = plays("%%bash\nx=1\necho $x {x}\nfalse", "%%sh\necho hi >&2", "%%python\nprint(6 * 7)", "%%perl6\nsay 1")
    assert texts(told[0], "stdout") == "1 {x}\n"
    assert (error(told[0])["name"], "exit status 1" in error(told[0])["value"]) == ("CalledProcessError", True)
    assert texts(told[1], "stderr") == "hi\n"
    assert texts(told[2], "stdout") == "42\n"
    assert error(told[3])["value"].startswith("there is no %%perl6 here; %%perl is near")


def test_files_directories_and_variables_of_the_environment():
    told = plays(
        "%%writefile a.py\nimport sys\nx = len(sys.argv)\n", "%run a.py 1 2", "x", "%mkdir d\n%cd d\n!pwd", "%cd -",
        "%pwd", "%env A=b\n!echo $A", "%%writefile -a a.py\ny = 1\n", "!cat a.py", "%who", "%reset -f", "x",
    )  # fmt: skip
    assert texts(told[0], "stdout") == "Writing a.py\n"
    assert results(told[2])[0]["text"] == "3"
    assert texts(told[3], "stdout").splitlines()[0].endswith("/d")
    assert results(told[5])[0]["text"].count("/") == 2
    assert texts(told[6], "stdout") == "env: A=b\nb\n"
    assert texts(told[8], "stdout") == "import sys\nx = len(sys.argv)\ny = 1\n"
    assert texts(told[9], "stdout") == "x\n"
    assert error(told[11])["name"] == "NameError"


def test_values_are_filled_into_commands_with_their_format():
    told = plays(
        "i, x, s, d = 7, 1.256, 'a b', {'k:v': 5}\n!echo {i:03d} {x:.2f} {s!r} {s!r:>7}. {d['k:v']:02d} {i:%H%M}",
        "!echo {i:zz} {nobody:03d} ${s:-x} {i} {len:3} {i::1}",
    )
    assert texts(told[0], "stdout") == "007 1.26 a b a b. 05 {i:%H%M}\n"
    assert texts(told[1], "stdout") == "{i:zz} {nobody:03d} x 7 {len:3} {i::1}\n"


def test_a_script_of_python_imports_what_lies_beside_it():
    told = plays(
        "open('beside.py', 'w').write('x = 5')",
        "%%python\nimport beside, sys\nprint(beside.x, repr(sys.stdin.read()))",
        "%%script python3 -u\nimport beside\nprint(beside.x)",
    )
    assert [texts(one, "stdout") for one in told[1:]] == ["5 ''\n", "5\n"]


def test_a_file_that_is_run_finds_what_lies_beside_it():
    told = plays(
        "import os, sys\nos.mkdir('d')\nopen('d/beside.py', 'w').write('x = 5')\nbefore = list(sys.path)",
        "open('d/a.py', 'w').write('import beside\\ny = beside.x')\nopen('b.py', 'w').write('z = y + 1\\nf = lambda: y')",
        "%run d/a.py",
        "y, sys.path == before",
        "%run b.py",
        "%run -i b.py",
        "y = 7\nz, f(), '__file__' in globals()",
        "%run -d b.py",
    )
    assert results(told[3])[0]["text"] == "(5, True)"
    assert error(told[4])["name"] == "NameError"
    assert results(told[6])[0]["text"] == "(6, 7, False)"
    assert error(told[7])["value"].startswith("%run -d is not here")


def test_time_is_told_as_ipython_tells_it():
    told = plays(
        "%time 6 * 7", "%%time\nx = 1\nx + 1", "%timeit -n 2 -r 3 pass", "%%timeit -n 1 -r 1 y = 2\ny + 1", "%time 1/0"
    )
    assert texts(told[0], "stdout").startswith("CPU times: user ")
    assert "\nWall time: " in texts(told[0], "stdout")
    assert [results(one)[0]["text"] for one in told[:2]] == ["42", "2"]
    assert texts(told[2], "stdout").endswith(" per loop (mean ± std. dev. of 3 runs, 2 loops each)\n")
    assert texts(told[3], "stdout").endswith("of 1 run, 1 loop each)\n")
    assert error(told[4])["name"] == "ZeroDivisionError"


def test_time_within_a_function_sees_its_variables():
    told = plays(
        "def g(n):\n    x = %time n + k\n    %timeit -n 1 -r 1 n + x\n    %prun n + x\n    return x",
        "k = 2\ng(5)",
        "%prun z = k",
        "z",
    )
    assert results(told[1])[0]["text"] == "7"
    assert "of 1 run, 1 loop each)" in texts(told[1], "stdout")
    assert results(told[3])[0]["text"] == "2"


def test_what_is_known_of_an_object_is_told():
    told = plays('def f(a, b=1):\n    "Adds."\n    return a + b', "?f", "f??", "nothing?", "len?")
    assert (
        texts(told[1], "stdout")
        == "Signature: f(a, b=1)\nType:      function\nFile:      <cell 1>\nDocstring:\nAdds.\n"
    )
    assert 'Source:\ndef f(a, b=1):\n    "Adds."' in texts(told[2], "stdout")
    assert error(told[3])["value"].startswith("nothing is nothing here")
    assert "Return the number of items" in texts(told[4], "stdout")


def test_a_pip_that_reaches_nobody_says_who_lets_it():
    heard = "NameResolutionError(... Failed to resolve 'pypi.org' ([Errno -2] Name or service not known)"
    told = plays(
        f"import os\nopen('pip.py', 'w').write({f'print({heard!r}); raise SystemExit(1)'!r})\nos.environ['PYTHONPATH'] = os.getcwd()",
        "%pip install x",
    )
    assert "its template allows by the annotation hekla.dev/egress" in texts(told[1], "stderr")


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("%nosuch", "there is no %nosuch here; %lsmagic lists what there is, and Python or a command behind ! does the rest"),
        ("%tiemit x", "there is no %tiemit here; %timeit or %time is near; %lsmagic lists"),
        ("%bash ls", "%%bash begins a cell with two signs, and its text follows in the next lines"),
        ("%%cd x\ny", "%cd is about one line: write it with one sign"),
        ("1\n%%bash\nls", "%%bash must stand in the first line of its cell, for it is about all that follows"),
        ("%debug", "%debug is not here: nobody can type here"),
        ("%conda install x", "%conda is not here: there is no conda here; use %pip"),
        ("get_ipython().kernel", "get_ipython() has no kernel here; it has system, getoutput"),
    ],
)  # fmt: skip
def test_what_is_not_here_says_what_to_write_instead(cell, sentence):
    [told] = plays(cell)
    assert error(told)["value"].startswith(sentence)


def test_what_only_changes_how_things_look_lets_the_cell_go_on():
    cell = "%matplotlib inline\n%config InlineBackend.figure_format = 'retina'\n%load_ext autoreload\n%autoreload 2\n7"
    [told] = plays(cell)
    assert results(told)[0]["text"] == "7"
    assert "importlib.reload" in texts(told, "stderr")
    assert "error" not in [message["type"] for message in told]


def test_earlier_results_are_kept():
    told = plays("6 * 7", "_ + 1", "_, __, Out[1], In[1]", "7;", "Out[4]")
    assert [results(one)[0]["text"] for one in told[:3]] == ["42", "43", "(43, 42, 42, '6 * 7')"]
    assert results(told[3]) == []
    assert results(told[4])[0]["text"] == "7"


def test_a_cell_that_is_captured_tells_nothing_until_it_is_asked():
    told = plays("%%capture kept\nprint('a')\ndisplay(1)\n2", "kept.stdout, len(kept.outputs)", "kept.show()")
    assert told[0] == [{"type": "end", "count": 1}] or [one["type"] for one in told[0]] == []
    assert results(told[1])[0]["text"] == "('a\\n', 1)"
    assert (texts(told[2], "stdout"), results(told[2])[0]["text"]) == ("a\n", "1")


def test_ipythons_displays_show_in_the_cell():
    told = plays(
        "from IPython.display import HTML, JSON, SVG, Image, Latex, Markdown, Math, clear_output, display, update_display\n"
        "display(HTML('<b>x</b>'), Markdown('# x'), Latex('$x$'), Math('x'), SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'), JSON({'a': [1]}))\n"
        "handle = display(1, display_id=True)\nhandle.update(2)\nclear_output()\ndisplay({'text/plain': 'raw'}, raw=True)\n"
        f"Image(bytes.fromhex('{PICTURE.hex()}'))",
        "from IPython import get_ipython\nget_ipython().run_line_magic('pwd', '')",
        "%%html\n<i>y</i>",
        "class Own:\n    def _ipython_display_(self):\n        print('mine')\nOwn()",
        "import types, sys\nlibrary = types.ModuleType('library')\n"
        "exec('import IPython\\nfound = IPython.get_ipython()', library.__dict__)\nlibrary.found is None",
    )
    shown = results(told[0])
    kinds = ["html", "markdown", "latex", "latex", "svg", "json"]
    assert [next(key for key in one if key in kinds) for one in shown[:6]] == kinds
    assert [one["text"] for one in shown[6:9]] == ["1", "2", "raw"]
    assert (base64.b64decode(shown[9]["png"]), shown[9]["is_main_result"]) == (PICTURE, True)
    assert "tmp" in results(told[1])[0]["text"]
    assert results(told[2])[0]["html"] == "<i>y</i>"
    assert (texts(told[3], "stdout"), results(told[3])) == ("mine\n", [])
    assert results(told[4])[0]["text"] == "True"


@pytest.mark.skipif(importlib.util.find_spec("IPython") is not None, reason="IPython is installed beside the tests")
def test_what_only_ipython_has_is_told_with_where_it_comes_from():
    told = plays(
        "from IPython.display import Audio", "import IPython.display\nIPython.display.Audio", "import IPython.parallel"
    )
    assert "cannot import name 'Audio'" in error(told[0])["value"]
    assert error(told[1])["value"].startswith("IPython.display has no Audio here")
    assert "install ipython into the image" in error(told[2])["value"]


def test_what_no_client_has_a_name_for_is_among_the_extra():
    [told] = plays("display({'application/vnd.vega+json': {'a': 1}}, raw=True)")
    assert results(told)[0]["extra"] == {"application/vnd.vega+json": {"a": 1}}


def test_an_error_in_the_writing_shows_the_cell_alone():
    told = plays("x = (1", "!ls\nx = = 1")
    assert [error(one)["name"] for one in told] == ["SyntaxError"] * 2
    assert all("ast.py" not in error(one)["traceback"] for one in told)
    assert "line 2" in error(told[1])["traceback"]


def test_help_input_and_exit():
    told = plays("help(len)", "input('name? ')", "exit()", "x = 1")
    assert "Return the number of items" in texts(told[0], "stdout")
    assert "has nobody to ask" in error(told[1])["value"]
    assert "kernel.py" not in error(told[1])["traceback"]
    assert error(told[2])["name"] == "SystemExit"
    assert told[3] == [] or told[3][-1]["type"] != "error"


def test_pip_is_the_interpreters_own_and_installs_where_it_looks():
    setup = (
        "import os, sys, zipfile, sysconfig\nos.environ['HOME'] = os.getcwd()\n"
        "os.access = lambda path, mode: False\n"
        "with zipfile.ZipFile('own-1-py3-none-any.whl', 'w') as wheel:\n"
        "    wheel.writestr('own.py', 'x = 7')\n"
        "    wheel.writestr('own-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: own\\nVersion: 1\\n')\n"
        "    wheel.writestr('own-1.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "    wheel.writestr('own-1.dist-info/RECORD', '')\n"
        "sys.path.append(f'{os.getcwd()}/.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages')"
    )
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this Python has no pip")
    told = plays(
        setup, "!pip install --no-index ./own-1-py3-none-any.whl", "import own; own.x", "%pip install --no-index nosuch"
    )
    assert "Successfully installed own-1" in texts(told[1], "stdout")
    assert results(told[2])[0]["text"] == "7"
    assert error(told[3])["value"] == "pip did not do it; what it printed says why"


@needs("pandas")
def test_a_table_is_text_html_and_data():
    [told] = plays(
        "import pandas as pd\npd.DataFrame({'a': [1, None], 'when': pd.to_datetime(['2026-01-01', '2026-01-02'])})"
    )
    [shown] = results(told)
    assert shown["html"].lstrip().startswith("<div>")
    assert "2026-01-02" in shown["text"]
    assert shown["data"] == {"a": [1.0, None], "when": ["2026-01-01T00:00:00", "2026-01-02T00:00:00"]}


@needs("matplotlib")
@pytest.mark.parametrize(
    ("draw", "kind", "elements"),
    [
        ("plt.plot([1, 2], [3, 4], label='l')", "line", [{"label": "l", "points": [[1, 3], [2, 4]]}]),
        ("plt.scatter([1, 2], [3, 4])", "scatter", [{"label": "", "points": [[1.0, 3.0], [2.0, 4.0]]}]),
        ("plt.bar(['a', 'b'], [3, 4], label='g')", "bar",
         [{"label": "a", "group": "g", "value": 3}, {"label": "b", "group": "g", "value": 4}]),
        ("plt.barh(['a'], [3])", "bar", [{"label": "a", "group": "", "value": 3}]),
        ("plt.pie([1, 1], labels=['a', 'b'])", "pie",
         [{"label": "a", "angle": 180.0, "radius": 1}, {"label": "b", "angle": 180.0, "radius": 1}]),
        ("plt.boxplot([[1, 2, 3, 4, 5, 20]])", "box_and_whisker",
         [{"label": "1", "min": 1, "first_quartile": 2.25, "median": 3.5, "third_quartile": 4.75, "max": 5, "outliers": [20]}]),
    ],
)  # fmt: skip
def test_figures_are_pictures_with_their_numbers(draw, kind, elements):
    [told] = plays(
        f"import matplotlib.pyplot as plt\nplt.title('t'); plt.xlabel('time (s)')\n_ = {draw}\nplt.show()\nprint('shown')"
    )
    [shown] = results(told)
    assert base64.b64decode(shown["png"]).startswith(b"\x89PNG")
    assert (shown["chart"]["type"], shown["chart"]["title"]) == (kind, "t")
    assert shown["chart"]["elements"] == elements
    assert shown["text"].startswith("<Figure size 640x480")
    assert texts(told, "stderr") == ""
    assert told.index(shown) < [one["type"] for one in told].index("stdout")


@needs("matplotlib", "pandas")
def test_several_axes_are_one_chart_and_dates_are_told_as_such():
    code = (
        "import datetime, matplotlib.pyplot as plt\nfigure, (a, b) = plt.subplots(1, 2)\n"
        "_ = a.plot([datetime.date(2026, 1, day) for day in (1, 2)], [1, 2]), b.bar(['x'], [1])\nfigure"
    )
    [told] = plays(code)
    main, at_the_end = results(told)
    assert main["is_main_result"]
    assert at_the_end["chart"]["type"] == "superchart"
    first, second = main["chart"]["elements"]
    assert (first["x_scale"], first["elements"][0]["points"]) == ("datetime", [["2026-01-01", 1], ["2026-01-02", 2]])
    assert second["type"] == "bar"


def test_an_error_whose_text_raises_leaves_the_variables():
    broken = "class E(Exception):\n    def __str__(self):\n        raise ValueError('no')\nkept = 5\nraise E()"
    told = plays(broken, "kept")
    assert error(told[0])["value"] == "<E, whose str raised ValueError>"
    assert results(told[1])[0]["text"] == "5"


def test_what_answers_every_attribute_is_shown_as_its_repr():
    proxy = "class P:\n    def __getattr__(self, name):\n        return lambda *a: 'asked'\n    def __repr__(self):\n        return 'a P'\nP()"
    told = plays("from unittest.mock import MagicMock\nMagicMock(name='m')", proxy)
    assert results(told[0])[0]["text"].startswith("<MagicMock name='m'")
    [shown] = results(told[1])
    assert shown["text"] == "a P"
    assert "html" not in shown


def test_a_picture_elsewhere_is_named_as_notebooks_name_it():
    [told] = plays("from IPython.display import Image\nImage('https://example.com/a.png?x=\"1')")
    assert results(told)[0]["html"] == '<img src="https://example.com/a.png?x=&quot;1"/>'
