"""Run this bench alone: `python -m bench.placement`."""

from bench.placement import run
from bench.report import run_alone

run_alone("placement", run)
