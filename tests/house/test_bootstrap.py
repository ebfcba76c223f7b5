"""What `make` does with our own source once the wheels are there."""

import os
import subprocess
import sys

_COMPILED = """
import pathlib, sys
sys.path.insert(0, "tools")
import bootstrap
bootstrap.ROOT = pathlib.Path(sys.argv[1])
bootstrap.compile_ourselves()
"""


def test_a_process_finds_our_modules_compiled_where_python_itself_keeps_nothing(repository, tmp_path):
    module = tmp_path / "src" / "hekla" / "one.py"
    module.parent.mkdir(parents=True)
    module.write_text("ONE = 1\n")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": ""}
    subprocess.run([sys.executable, "-c", _COMPILED, tmp_path], cwd=repository, env=environment, check=True)
    assert [path.name.split(".")[0] for path in tmp_path.rglob("*.pyc")] == ["one"]
