"""The README's programs run as they stand there."""

import re
from pathlib import Path

import pytest

import hekla_sdk

README = Path(hekla_sdk.__file__).parents[2] / "README.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=[one.splitlines()[-2].strip()[:30] for one in PROGRAMS])
def test_a_program_of_the_readme_runs(program, environment):
    exec(compile(program, f"{README}", "exec"), {"__name__": "__main__"})
    assert len(PROGRAMS) == 4
