"""Runs what failed in pytest's last run once more, one after the other, and says which of it was flaky. `make test` calls it.

A test that fails among two thousand others and passes alone is a defect to mend, but not one that the change under test made:
it is told and stops nothing.

More than AT_MOST failures are no accident: they are not tried again.
"""

import json
import subprocess
import sys
from pathlib import Path

AT_MOST = 5
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    """Exit status 0 if all that failed passes alone."""
    failed = sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if not failed:
        print("the run failed, and no test did: see its output above")
        return 1
    if len(failed) > AT_MOST:
        print(f"{len(failed)} tests failed, more than {AT_MOST}: no accident")
        return 1
    again = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", sys.argv[1], *failed], check=False
    ).returncode
    if again == 0:
        print("FLAKY, to be mended:", *failed, sep="\n  ")
    return again


if __name__ == "__main__":
    sys.exit(main())
