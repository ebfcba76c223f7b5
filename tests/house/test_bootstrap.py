"""What `make` does with our own source once the wheels are there."""

import os
import subprocess
import sys


def test_a_process_finds_our_modules_compiled_where_python_itself_keeps_nothing(repository, tmp_path):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    subprocess.run([sys.executable, "tools/bootstrap.py"], cwd=repository, env=environment, check=True)
    kept = {path.name.split(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert kept >= {path.stem for path in (repository / "src" / "hekla").rglob("*.py")}
