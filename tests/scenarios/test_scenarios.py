from pathlib import Path

import pytest

from hekla.testing.scenarios import expectations, load_scenario, rewritten, run_scenario

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*/*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_story_ends_as_it_is_told(path: Path, request: pytest.FixtureRequest) -> None:
    document = load_scenario(path)
    outcomes = run_scenario(document)
    if request.config.getoption("--rewrite"):
        path.write_text(rewritten(path.read_text(), outcomes))
        return
    for expected, outcome in zip(expectations(document), outcomes, strict=True):
        # Nobody is evicted, and nobody is promised anything, of whom the story says nothing.
        wanted = {"evicted": {}, "promised": {}, **expected}
        told = {key: outcome.get(key, {}) for key in wanted}
        assert told == wanted


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_story_begins_by_saying_what_it_claims(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# "), f"{path.name} should begin with a comment that says what it claims"
    assert first.endswith("."), f"{path.name}: the claim is a sentence"
