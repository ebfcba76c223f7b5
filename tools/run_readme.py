"""Runs the README's commands as they stand, in a clean home, and fails where one of them does.

    python tools/run_readme.py [FILE]

Blocks fenced as `sh` are run line by line in one shell with `set -e`. The home directory is a fresh one, so that
nothing of the user's is touched and `hekla up` finds no platform; it is stopped at the end whatever happens.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "README.md"
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    if not blocks:
        print(f"{page} has no block fenced as sh; nothing was run", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="hekla-readme-") as home:
        environment = {**os.environ, "HOME": home, "XDG_DATA_HOME": f"{home}/data"}
        environment.pop("KUBECONFIG", None)
        environment.pop("HEKLA_DATA_DIR", None)
        try:
            for block in blocks:
                subprocess.run(["sh", "-exc", block], cwd=ROOT, env=environment, check=True, timeout=300)
        except subprocess.CalledProcessError as error:
            print(f"a command of {page.name} failed with status {error.returncode}", file=sys.stderr)
            return 1
        finally:
            hekla = ROOT / ".venv" / "bin" / "hekla"
            subprocess.run([hekla, "down"], env=environment, check=False, capture_output=True, timeout=60)
    print(f"every command of {page.name} works as it stands")
    return 0


if __name__ == "__main__":
    sys.exit(main())
