"""Volcano's programs: `vcctl`, `vsub` and the others are installed beside `hekla` and are the same program.

pyproject.toml lists them; each is `hekla NAME` under a name of its own.
"""

import sys
from pathlib import Path

from hekla.cli.main import main


def run_by_name() -> int:
    """Run the command whose name this process was called by."""
    return main(program=Path(sys.argv[0]).stem)
