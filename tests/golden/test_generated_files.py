import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _outputs() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("gen", ROOT / "tools" / "gen.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.outputs())


OUTPUTS = _outputs()


@pytest.mark.parametrize("name", sorted(OUTPUTS))
def test_a_committed_file_is_what_make_gen_writes(name: str) -> None:
    path = ROOT / name
    assert path.exists(), f"{name} is missing; run `make gen` and commit it"
    assert path.read_text() == OUTPUTS[name], f"{name} differs from the code; run `make gen` and commit it"


def test_no_generated_file_is_left_of_a_kind_that_is_gone() -> None:
    for folder in ("deploy/crds", "docs/reference/kinds"):
        left = {str(path.relative_to(ROOT)) for path in (ROOT / folder).iterdir()} - set(OUTPUTS)
        assert not left, f"nothing generates {sorted(left)} any more; delete it"
