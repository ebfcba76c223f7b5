"""Run this bench alone: `python -m bench.placement`."""

from pathlib import Path

from bench.placement import run
from bench.report import Report, run_bench

run_bench("placement", run, Report(Path.cwd()))
