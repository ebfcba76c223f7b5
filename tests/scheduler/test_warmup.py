import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hekla.placement import kernels
from hekla.placement.kernels import twin
from hekla.scheduler.warmup import warm_up


@pytest.mark.slow
@pytest.mark.timeout(600)  # compiling takes 20 s alone, and several times as long on a machine that tests at full load
def test_a_cold_cache_is_filled_by_a_child_and_then_loaded(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from hekla.placement import kernels\n"
        "from hekla.scheduler.warmup import warm_up\n"
        "assert 'numba' not in sys.modules\n"
        "assert asyncio.run(warm_up())\n"
        "assert kernels.active().__name__.endswith('compiled')\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=590)
    assert list(tmp_path.rglob("*.nbi")), "the child left no compiled kernels in the cache"


def test_the_plain_form_stays_where_numba_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    kernels.use(twin)
    assert not asyncio.run(warm_up())
    assert kernels.active() is twin


def test_the_scheduler_does_not_import_numba() -> None:
    script = "import sys, hekla.scheduler.batch; sys.exit('numba' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=110)
