"""The runner: `python -m bench` runs all benches, `python -m bench store` one; `--quick` a tenth of each."""

import argparse
import importlib
import json
import pkgutil
import sys
from dataclasses import asdict
from pathlib import Path

import bench
from bench.report import Report, machine_lines, run_bench

NOT_BENCHES = {"__main__", "report"}


def names() -> list[str]:
    found = [module.name for module in pkgutil.iter_modules(bench.__path__) if module.name not in NOT_BENCHES]
    return [name for name in found if hasattr(importlib.import_module(f"bench.{name}"), "run")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="benches to run; all of them if none is named")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: does it run, not how fast")
    parser.add_argument("--all", action="store_true", help="every size, the ones that take long too")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORDS",
        help="only work with these words in its name (serving_proxy)",
    )
    parser.add_argument("--list", action="store_true", help="name the benches and stop")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="on the disk to measure (default: here)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    known = names()
    if options.list:
        print("\n".join(known))
        return 0
    if unknown := set(options.names) - set(known):
        print(f"no bench is called {', '.join(sorted(unknown))}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    results = {}
    for name in options.names or known:
        report = Report(options.directory, options.quick, options.all, only=tuple(options.only))
        run_bench(name, importlib.import_module(f"bench.{name}").run, report)
        results[name] = [asdict(figure) for figure in report.figures]
    if options.json:
        document = {"machine": machine_lines(options.directory), "benches": results}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
