"""Makes .venv from nothing but python3: the environment, pip, the locked wheels, and hekla itself.

    python3 tools/bootstrap.py [--dev]

Debian's python3 has neither pip nor ensurepip, so the environment is made without pip, and pip's wheel is
taken from the index that pip itself would use (PIP_INDEX_URL, pip.conf, else pypi.org), its hash checked
against the index page. Only wheels are installed: no compiler is needed. When the locks have not changed since
the last run nothing is done, so a second run works offline. Uses the standard library only.
"""

import argparse
import compileall
import configparser
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
OLDEST_PYTHON = (3, 11)
PIP_REQUIREMENT = (25, 0)
"""The oldest pip that reads our lock files; the newest on the index is taken."""


class BootstrapError(Exception):
    """A sentence for the person at the keyboard."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", action="store_true", help="also install what the tests and checks need")
    parser.add_argument("--this-python", action="store_true", help="even if the environment has another one")
    arguments = parser.parse_args()
    if not arguments.this_python and is_of_another_python():
        # made by `make PYTHON=...`; a plain `make` after it must not throw it away
        os.execv(ENVIRONMENT / "bin" / "python", ["python", *sys.argv, "--this-python"])
    try:
        prepare(dev=arguments.dev)
    except BootstrapError as error:
        print(f"bootstrap: {error}", file=sys.stderr)
        return 1
    return 0


def prepare(*, dev: bool) -> None:
    if sys.version_info < OLDEST_PYTHON:
        have = ".".join(map(str, sys.version_info[:3]))
        raise BootstrapError(f"hekla needs Python 3.11 or newer and this is {have}; run `make PYTHON=python3.12 ...`")
    lock = ROOT / ("requirements-dev.lock" if dev else "requirements.lock")
    stamp = ENVIRONMENT / f".installed-{'dev' if dev else 'run'}"
    wanted = fingerprint(lock)
    if is_current(stamp, wanted) or (not dev and is_current(ENVIRONMENT / ".installed-dev", None)):
        if not all((ENVIRONMENT / "bin" / name).exists() for name in programs()):
            link_ourselves()  # a later commit brought a program; the wheels are still right
        compile_ourselves()
        return
    print(f"preparing {ENVIRONMENT} from {lock.name} (wheels only; the first time takes a minute or two)", flush=True)
    make_environment()
    bring_pip()
    run_pip("install", "-qq", "--only-binary", ":all:", "--require-hashes", "-r", str(lock))
    link_ourselves()
    compile_ourselves()
    stamp.write_text(wanted)


def fingerprint(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()


def is_current(stamp: Path, wanted: str | None) -> bool:
    """Whether what `stamp` marks is installed; `wanted` None asks for the development lock as it is today."""
    if wanted is None:
        wanted = fingerprint(ROOT / "requirements-dev.lock")
    return stamp.exists() and stamp.read_text() == wanted and (ENVIRONMENT / "bin" / "hekla").exists()


def is_of_another_python() -> bool:
    """Whether an environment stands and works whose python is another than ours, and new enough."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        return False
    asked = f"import sys; sys.exit(sys.version == {sys.version!r} or sys.version_info < {OLDEST_PYTHON})"
    return subprocess.run([python, "-c", asked], capture_output=True, check=False).returncode == 0


def make_environment() -> None:
    """An environment whose python works; one that broke (python upgraded underneath) is made anew."""
    python = ENVIRONMENT / "bin" / "python"
    works = python.exists() and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if works and (ENVIRONMENT / "lib" / f"python{version}").is_dir():
        return
    venv.EnvBuilder(with_pip=False, clear=True, symlinks=True).create(ENVIRONMENT)


def bring_pip() -> None:
    """Installs pip's own wheel with pip's own wheel: a wheel is a zip that Python can run."""
    python = ENVIRONMENT / "bin" / "python"
    if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
        return
    name, address, digest = newest_pip_wheel()
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder) / name
        wheel.write_bytes(fetch(address))
        if digest and hashlib.sha256(wheel.read_bytes()).hexdigest() != digest:
            raise BootstrapError(
                f"{address} does not have the hash that the index promises; try again, or check the index"
            )
        command = [str(python), f"{wheel}/pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
        if subprocess.run(command, check=False).returncode != 0:
            raise BootstrapError(f"pip could not install itself from {address}; its own words are above")


def newest_pip_wheel() -> tuple[str, str, str]:
    """Name, address and sha256 of the newest pip wheel on the configured index."""
    index = configured_index()
    page = f"{index.rstrip('/')}/pip/"
    wheels = []
    for link in re.findall(r'href="([^"]*pip-[^"]*-py3-none-any\.whl[^"]*)"', fetch(page).decode()):
        address = urllib.parse.urljoin(page, link.replace("&amp;", "&"))
        location, _, fragment = address.partition("#")
        name = urllib.parse.unquote(location.rsplit("/", 1)[-1])
        version = tuple(int(part) for part in re.findall(r"\d+", name.split("-")[1])[:3])
        if re.fullmatch(r"[\d.]+", name.split("-")[1]) and version >= PIP_REQUIREMENT:
            wheels.append((version, name, location, fragment.removeprefix("sha256=")))
    if not wheels:
        raise BootstrapError(f"{page} lists no pip wheel; point PIP_INDEX_URL at a package index")
    _, name, location, digest = max(wheels)
    return name, location, digest


def configured_index() -> str:
    """The index that pip would use, found the way pip finds it."""
    if os.environ.get("PIP_INDEX_URL"):
        return os.environ["PIP_INDEX_URL"]
    home = Path.home()
    places = [
        "/etc/pip.conf",
        home / ".pip/pip.conf",
        home / ".config/pip/pip.conf",
        os.environ.get("PIP_CONFIG_FILE", ""),
    ]
    index = "https://pypi.org/simple"
    for place in filter(None, places):
        parser = configparser.RawConfigParser()
        try:
            parser.read(place)
        except configparser.Error as error:
            raise BootstrapError(f"{place} is no pip configuration: {error}") from None
        for section in ("global", "install"):
            index = parser.get(section, "index-url", fallback=index)
    return index


def fetch(address: str) -> bytes:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, headers={"Accept": "text/html"}), timeout=60
        ) as answer:
            return answer.read()
    except (urllib.error.URLError, OSError, ValueError) as error:
        hint = "a package index is needed once; set PIP_INDEX_URL (and PIP_CERT, https_proxy) if yours is elsewhere"
        raise BootstrapError(f"{address} cannot be read ({error}); {hint}") from None


def run_pip(*arguments: str) -> None:
    command = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", *arguments]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    environment.pop("PIP_USER", None)
    if subprocess.run(command, check=False, env=environment).returncode != 0:
        raise BootstrapError("the locked packages could not be installed; pip's own words are above")


def link_ourselves() -> None:
    """Puts src on the environment's path and our programs into .venv/bin, without building anything."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (ENVIRONMENT / "lib" / version / "site-packages" / "hekla.pth").write_text(f"{ROOT / 'src'}\n")
    for name, entry in programs().items():
        module, _, function = entry.partition(":")
        command = ENVIRONMENT / "bin" / name
        # sh finds python beside itself, so that neither a space nor a long path breaks the first line
        lines = ["#!/bin/sh", '\'\'\'exec\' "$(dirname -- "$(readlink -f -- "$0")")/python" "$0" "$@"', "' '''"]
        lines += ["import sys", f"from {module} import {function}", f"sys.exit({function}())", ""]
        command.write_text("\n".join(lines))
        command.chmod(0o755)


def compile_ourselves() -> None:
    """Compiles what has changed in src where Python itself may not (PYTHONDONTWRITEBYTECODE, as many images set it).

    pip does the same for what it installs. Without it each process of a platform compiles its modules anew: 2 s of 3.
    A tree that cannot be written is left as it is.
    """
    if sys.dont_write_bytecode:
        compileall.compile_dir(ROOT / "src", quiet=2)


def programs() -> dict[str, str]:
    """What pyproject.toml lists under [project.scripts], as pip would install it."""
    import tomllib  # Python 3.10 lacks it, and shall read above which one is needed

    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])


if __name__ == "__main__":
    sys.exit(main())
