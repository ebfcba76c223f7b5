"""Whoever breaks a formula breaks a story: each line of `mutations.yaml` must make a scenario of its folder end otherwise.

.venv/bin/python -m pytest -q -n auto -m storm tests/mutation
"""

from pathlib import Path

import pytest

from hekla.testing.scenarios import expectations, load_scenario, run_scenario
from mutation.mutants import SOURCE, Mutation, broken, read_table

STORIES = Path(__file__).parents[1] / "scenarios"
TABLE = read_table()


def first_story_that_ends_otherwise(folders: tuple[str, ...]) -> str | None:
    for folder in folders:
        for path in sorted((STORIES / folder).glob("*.yaml")):
            document = load_scenario(path)
            try:
                outcomes = run_scenario(document)
            except Exception as error:  # noqa: BLE001 - a mutant that stumbles is found out, too
                return f"{path.stem}: {type(error).__name__}"
            for expected, outcome in zip(expectations(document), outcomes, strict=True):
                wanted = {"evicted": {}, "promised": {}, **expected}
                if {key: outcome.get(key, {}) for key in wanted} != wanted:
                    return path.stem
    return None


@pytest.mark.storm
@pytest.mark.parametrize("mutation", TABLE, ids=str)
def test_a_broken_formula_breaks_a_story(mutation: Mutation) -> None:
    with broken(mutation):
        assert first_story_that_ends_otherwise(mutation.folders) is not None, (
            f"in {mutation.file} {mutation.was!r} may become {mutation.now!r}, and no story of "
            f"{', '.join(mutation.folders)} ends otherwise"
        )


def test_the_table_names_words_that_are_there() -> None:
    gone = [f"{one.file}: {one.was}" for one in TABLE if one.source.count(one.was) != 1]
    assert not gone, "bring tests/mutation/mutations.yaml up to date: " + "; ".join(gone)


def test_every_plug_in_and_action_is_broken_at_least_once() -> None:
    for kind in ("plugins", "actions"):
        there = {path.stem for path in (SOURCE / "placement" / kind).glob("[a-z]*.py")}
        missing = there - {mutation.of for mutation in TABLE}
        assert not missing, f"tests/mutation/mutations.yaml breaks nothing of the {kind} {sorted(missing)}"


def test_what_was_broken_is_mended() -> None:
    mutation = next(one for one in TABLE if one.of == "binpack")
    with broken(mutation):
        assert first_story_that_ends_otherwise(mutation.folders) is not None
    assert first_story_that_ends_otherwise(mutation.folders) is None
