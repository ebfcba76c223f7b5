"""Taste as tests: what HOUSE_STYLE asks for and a machine can check. A failure names the file and what to do."""

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "hekla"
MODULES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))

NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "base", "types", "manager", "impl"}
LONGEST_FUNCTION = 120


@cache
def tree(path):
    return ast.parse(path.read_text(), str(path))


def name_of(path):
    return str(path.relative_to(ROOT))


def functions(module):
    return [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_without_docstring(function):
    length = function.end_lineno - function.lineno + 1
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(getattr(first, "value", None), ast.Constant)
    return length - (first.end_lineno - first.lineno + 1 if is_docstring else 0)


def test_modules_are_named_for_what_they_hold():
    nameless = [name_of(p) for p in MODULES if p.stem in NAMES_THAT_SAY_NOTHING or p.stem.endswith("_impl")]
    assert not nameless, f"rename these for what they hold: {nameless}"


def test_every_module_says_what_it_is_for():
    silent = [name_of(p) for p in MODULES if not ast.get_docstring(tree(p))]
    assert not silent, f"open these with a sentence a user would understand: {silent}"


def test_every_public_name_is_documented():
    silent = []
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith(
                "_"
            ):
                if not ast.get_docstring(node):
                    silent.append(f"{name_of(path)}:{node.lineno} {node.name}")
                if isinstance(node, ast.ClassDef):
                    silent += [
                        f"{name_of(path)}:{one.lineno} {node.name}.{one.name}"
                        for one in node.body
                        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
                        and not one.name.startswith(("_", "test_"))
                        and not ast.get_docstring(one)
                        and not any(
                            ast.unparse(d).endswith((".setter", "overload", "override")) for d in one.decorator_list
                        )
                    ]
    assert not silent, "document what is public:\n" + "\n".join(silent)


def test_no_function_is_longer_than_a_screen_and_a_half():
    long = [
        f"{name_of(path)}:{function.lineno} {function.name} has {lines_without_docstring(function)} lines"
        for path in MODULES
        for function in functions(tree(path))
        if lines_without_docstring(function) > LONGEST_FUNCTION
    ]
    assert not long, "cut these into named steps:\n" + "\n".join(long)


def test_most_functions_are_short():
    lengths = sorted(lines_without_docstring(f) for path in MODULES for f in functions(tree(path)))
    assert lengths[len(lengths) // 2] <= 8
    assert lengths[len(lengths) * 9 // 10] <= 30


def test_nothing_in_the_tree_reads_the_shared_folder():
    readers = [
        name_of(path)
        for folder in ("src", "tests", "tools", "bench", "examples")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__).resolve() and re.search(r"""["'](\.\./|/work/)shared""", path.read_text())
    ]
    assert not readers, f"copy what these need into tests/ or bench/: {readers}"


def test_no_test_sleeps_to_wait():
    sleepers = []
    for path in TESTS:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "sleep"}:
                sleepers.append(f"{name_of(path)}:{node.lineno}")
    assert not sleepers, f"wait for the event, or use virtual time: {sleepers}"


SILENCED = re.compile(r"# (type: ignore|noqa)")
WITH_REASON = re.compile(r"# (type: ignore(\[[a-z, -]+\])?|noqa: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)*)\s+[#-]?\s*\S")
BROAD = re.compile(r"except (Exception|BaseException)\b|^\s*except:")


def test_broad_excepts_and_silenced_checks_give_a_reason():
    bare = []
    for path in MODULES:
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines, 1):
            is_silent = SILENCED.search(line) and not WITH_REASON.search(line)
            # the reason of a broad except stands on its line or the next; one that raises again needs none
            below = lines[number : number + 6]
            is_broad = (
                BROAD.search(line)
                and not any("#" in one for one in [line, *below[:1]])
                and not any(one.strip() == "raise" for one in below)
            )
            if is_silent or is_broad:
                bare.append(f"{name_of(path)}:{number} {line.strip()}")
    assert not bare, "say why, in a comment on the line:\n" + "\n".join(bare)


def test_no_except_group_raises_an_error_of_its_own():
    """Up to Python 3.11.3, Debian 12's among them, it comes out as a group of one: a router lost its replicas for good with its Redis."""
    raising = [
        f"{name_of(path)}:{inside.lineno}"
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.TryStar)
        for handler in node.handlers
        for inside in ast.walk(handler)
        if isinstance(inside, ast.Raise) and inside.exc is not None
    ]
    assert not raising


def test_every_dependency_has_its_reason():
    text = (ROOT / "pyproject.toml").read_text()
    declared = tomllib.loads(text)["project"]["dependencies"]
    silent = [one for one in declared if not re.search(re.escape(one) + r'",\s*#\s*\w', text)]
    assert not silent, f"write beside each why it is here: {silent}"


def test_every_plugin_and_action_has_a_file_and_a_scenario():
    for path in sorted((SOURCE / "placement" / "plugins").glob("[a-z]*.py")):
        found = [
            n
            for n in tree(path).body
            if isinstance(n, ast.ClassDef) and any(ast.unparse(d).startswith("plugin") for d in n.decorator_list)
        ]
        assert len(found) == 1, f"{name_of(path)} declares {len(found)} plug-ins; one file, one plug-in"
    scenarios = {p.parent.name for p in (ROOT / "tests" / "scenarios").rglob("*.yaml")}
    plugins = {p.stem for p in (SOURCE / "placement" / "plugins").glob("[a-z]*.py")}
    assert not plugins - scenarios, f"these plug-ins have no folder in tests/scenarios: {sorted(plugins - scenarios)}"


CALLED_BY_OTHERS = {
    # name: who calls it, where nothing in src/hekla does
    "command_paths": "tools/gen.py",
    "kustomization": "tools/gen.py",
    "configuration_of_cluster": "tools/gen.py",
    "archive_of": "images/microvm/build.py",
    "run_by_name": "pyproject.toml: vcctl, vsub and the other programs",
    "inflate": "bench/traces.py and tests/simulation, as all of hekla.simulation until there is a command for it",
    "HoldingSlo": "bench/serving_slo.py",
    "poisson": "bench/serving_slo.py",
    "read_nodes": "bench/traces.py",
    "read_pods": "bench/traces.py",
    "mix_of": "bench/traces.py",
    "Simulation": "bench/philly.py",
    "equal_nodes": "bench/philly.py",
    "queues_by_use": "bench/philly.py",
    "read_philly": "bench/philly.py",
    "client_in_cluster": "controllers that run as pods",
    "comment": "the router's side of server-sent events",
    "offered_subprotocols": "servers that stand on `wire` and choose a protocol",
    "reference_page": "tools/gen.py",
    "metric_rows": "tools/gen.py",
    "diagram": "tools/gen.py draws the tables of life cycles",
    "from_int": "the inverse of to_int, by which the property tests judge it",
    "FAMILIES": "keeps the imports that declare the kinds",
    "measure": "the property tests of evictions: it is why they end",
    "DEFAULT_QUEUES": "tests of the queues that are always there",
    "LADDER": "tests that climb down the rungs",
    "MemoryBuckets": "the fake of budgets that doors share",
    "MemoryBus": "the fake of the bus between replicas of the router",
    "MemoryRecords": "the fake of what side-cars record in Redis",
    "MemoryStore": "the fake of the store, for tests and for servers whose data may go with the process",
    "Admission": "bench/quota.py, and the dialects that bring trees of lenders (issue 3: one quota engine, dialects to come)",
    "divide_tree": "the dialect of queues whose over-quota is dealt out in rounds, to come",
    "turn_of": "the same dialect's order of queues",
    "may_take_back": "the same dialect's reclaim",
    "largest_part": "partial admission of workloads, by the dialect to come",
    "EmptySurroundings": "the fake of the surroundings, for tests and for what-if questions",
}
DECLARED_BY = {"resource", "plugin", "action", "reconciler", "numba.njit"}


@cache
def used_names(path):
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            names.add(node.value)  # an annotation in quotes, a name asked for with getattr
    return names


def modules_that_ship():
    return [path for path in MODULES if path.relative_to(SOURCE).parts[0] != "testing"]


def declared_names(module):
    """Top-level functions, classes and constants that no registry has taken."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            takers = {ast.unparse(one).partition("(")[0] for one in node.decorator_list}
            if not takers & DECLARED_BY:
                yield node.lineno, node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((node.lineno, one.id) for one in targets if isinstance(one, ast.Name))


def test_nothing_is_left_that_nobody_uses():
    """Code that only its tests call is dead, or was never wired in: a provisioner was, and its directories stayed."""
    used = {name for path in modules_that_ship() for name in used_names(path)}
    idle = {
        name: f"{name_of(path)}:{line} {name}"
        for path in modules_that_ship()
        for line, name in declared_names(tree(path))
        if name not in used and not name.startswith("__")
    }
    unused = [place for name, place in idle.items() if name not in CALLED_BY_OTHERS]
    assert not CALLED_BY_OTHERS.keys() - idle.keys(), "these are gone, or in use: take them off CALLED_BY_OTHERS"
    assert not unused, "wire these in, delete them, or say in CALLED_BY_OTHERS who calls them:\n" + "\n".join(unused)


def test_every_reconciler_is_run():
    users = Counter(name for path in modules_that_ship() for name in used_names(path))
    idle = [
        f"{name_of(path)}:{function.lineno} {function.name}"
        for path in modules_that_ship()
        for function in tree(path).body  # one that a factory returns is held by the factory's name
        if isinstance(function, ast.FunctionDef)
        and any(ast.unparse(one).startswith("reconciler(") for one in function.decorator_list)
        and users[function.name] == (function.name in used_names(path))
    ]
    assert not idle, "list these where their feature is put together:\n" + "\n".join(idle)


def test_every_command_shows_examples():
    commands = sorted((SOURCE / "cli" / "commands").glob("[a-z]*.py"))
    silent = [name_of(p) for p in commands if "Examples:" not in (ast.get_docstring(tree(p)) or "")]
    assert not silent, f"show examples in the docstring, which is the --help: {silent}"


def test_packages_are_in_the_architecture():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    missing = [p.name for p in sorted(SOURCE.iterdir()) if (p / "__init__.py").exists() and f"`{p.name}`" not in text]
    assert not missing, f"ARCHITECTURE.md does not say what these are for: {missing}"


def test_links_between_documents_lead_somewhere():
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", re.sub(r"`[^`]*`", "", page.read_text())):
            if not (page.parent / link).exists():
                broken.append(f"{name_of(page)}: {link}")
    assert not broken, "mend these links:\n" + "\n".join(broken)


def test_files_that_documents_name_are_there():
    """`tests/kube/`, `placement/columns.py`: whoever follows a claim must find its file."""
    missing = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for path in re.findall(r"`((?:src|tests|docs|tools|bench|examples|deploy)/[\w/.-]+)`", page.read_text()):
            if not (ROOT / path).exists():
                missing.append(f"{name_of(page)}: {path}")
    assert not missing, "name the file where it is now:\n" + "\n".join(missing)


def test_neighbours_that_docstrings_and_documents_name_are_there():
    """`turns.py`, `placement/columns.py`: a module opens with its neighbour's name, and a rename must not leave it behind."""
    there = {
        "/".join(path.relative_to(ROOT).parts[at:])
        for folder in ("src", "tests", "tools", "bench", "sdk", "examples", "images")
        for path in (ROOT / folder).rglob("*.py")
        for at in range(len(path.relative_to(ROOT).parts))
    }
    missing = []
    for page in [*SOURCE.rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if page.name != "CHANGELOG.md":
            named = re.findall(r"`([\w./-]+\.py)`", page.read_text())
            missing += [f"{name_of(page)}: {path}" for path in named if path not in there]
    assert not missing, "name the file where it is now:\n" + "\n".join(missing)


def test_fragments_of_the_changelog_have_a_kind_and_say_something():
    named = re.compile(r"\+[a-z0-9-]+\.(added|changed|fixed|removed|security)\.md")
    fragments = sorted((ROOT / "changes").iterdir())
    odd = [name_of(p) for p in fragments if not named.fullmatch(p.name) or not p.read_text().strip()]
    assert not odd, f"name these changes/+<slug>.<added|changed|fixed|removed|security>.md, and write a sentence: {odd}"


@pytest.mark.parametrize("word", ["simply", "obviously", "just run"])
def test_documents_do_not_belittle(word):
    found = [
        name_of(p)
        for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        if re.search(rf"\b{word}\b", p.read_text())
    ]
    assert not found, f'"{word}" helps nobody: {found}'


def test_the_import_contracts_hold(monkeypatch):
    import importlinter.cli
    from importlinter.cli import lint_imports

    # it sets up logging for a process of its own, and mutes all loggers there are: asyncio told later tests nothing
    monkeypatch.setattr(importlinter.cli, "_configure_logging", lambda verbose: None)
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0
