"""What the configuration's lint says of arguments of plug-ins: what cannot be meant is told in a sentence, whatever its type."""

import pytest

from hekla.scheduler.configuration import check_text

TEXT = """\
actions: "allocate, backfill"
tiers:
- plugins:
  - name: gang
  - name: predicates
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
    ("sla", "sla-waiting-time", "0s"): "argument sla-waiting-time is '0s'; a duration above 0 is expected",
    ("cdp", "cooldown-time", "long"): "argument cooldown-time is 'long'",
    (
        "resource-strategy-fit",
        "resources",
        "{cpu: {type: [MostAllocated]}}",
    ): "argument resources.cpu.type is ['MostAllocated']",
    ("resource-strategy-fit", "sra", "{enable: true, resources: gpu, resourceWeight: [1]}"): (
        "argument sra.resourceWeight is [1]; a mapping is expected"
    ),
    ("resource-strategy-fit", "proportional", "4"): "argument proportional is 4; a mapping is expected",
    ("fgd", "fgd.workload", "[{share: 1, models: 3}]"): "models 3; a name, or a list of them, is expected",
}


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_lint_of_arguments(case: tuple[str, str, str]) -> None:
    name, key, value = case
    told = [str(finding) for finding in check_text(TEXT.format(name=name, key=key, value=value))]
    expected = CASES[case]
    assert (not told) if not expected else (len(told) == 1 and expected in told[0])
