"""What the configuration's lint says of the arguments of `reservation` and `fair-share`."""

import pytest

from hekla.scheduler.configuration import check_text

TEXT = """\
actions: "allocate"
tiers:
- plugins:
  - name: gang
  - name: {name}
    arguments:
      {key}: {value}
"""

CASES = {
    ("reservation", "depth", "2"): "",
    ("reservation", "after", "10m"): "",
    ("reservation", "defaultEstimate", "1h"): "",
    ("reservation", "depth", "0"): "argument depth is 0; a whole number from 1 to 64 is expected",
    ("reservation", "depth", "1.5"): "argument depth is 1.5; a whole number from 1 to 64 is expected",
    ("reservation", "after", "soon"): "argument after is 'soon'",
    ("reservation", "deepth", "2"): "has no argument deepth; did you mean depth?",
    ("fair-share", "halfLife", "168h"): "",
    ("fair-share", "ahead", "0s"): "",
    ("fair-share", "halfLife", "-1h"): "argument halfLife is '-1h'",
    ("fair-share", "halflife", "1h"): "has no argument halflife; did you mean halfLife?",
}


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_lint_of_arguments(case: tuple[str, str, str]) -> None:
    name, key, value = case
    told = [str(finding) for finding in check_text(TEXT.format(name=name, key=key, value=value))]
    expected = CASES[case]
    assert (not told) if not expected else (len(told) == 1 and expected in told[0])
