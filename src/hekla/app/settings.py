"""Every setting of the embedded platform, read once, passed by value.

A field is a flag of `hekla up`, and its docstring is the flag's help: nothing is spelled twice.
"""

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path

from hekla.lib import quantity

COMPONENTS = ("scheduler", "workloads", "serving", "router", "agents", "controlplane", "node")
"""What `--without` can leave out; the API server always runs."""


class SettingsError(Exception):
    """A setting that cannot be; the sentence names it, its value and what would do."""


def default_data_dir() -> Path:
    """Where a platform keeps its state when nobody says: $HEKLA_DATA_DIR, else under the user's data directory."""
    chosen = os.environ.get("HEKLA_DATA_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "hekla"


def docstrings_of(cls: type) -> dict[str, str]:
    """The docstring of each field of a class: read from the source, so that a flag's help is written once."""
    import ast
    import inspect
    import textwrap

    [declaration] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(declaration, ast.ClassDef)
    found: dict[str, str] = {}
    for field_, text in itertools.pairwise(declaration.body):
        if isinstance(field_, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(field_.target)] = str(text.value.value)
    return found


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The embedded platform's settings."""

    data_dir: Path = field(default_factory=default_data_dir)
    """Directory of the state, the keys and the kubeconfig."""

    port: int = 6443
    """Port on 127.0.0.1; if it is taken, a free one is chosen."""

    router_port: int = 8080
    """Port on 127.0.0.1 of the router for models; if it is taken, a free one is chosen."""

    agents_port: int = 8090
    """Port on 127.0.0.1 of the gateway for sandboxes; if it is taken, a free one is chosen."""

    nodes: int = 1
    """How many virtual nodes run real processes on this machine."""

    gpus_per_node: int = 0
    """How many `nvidia.com/gpu` each of these nodes declares."""

    cpu_per_node: str = ""
    """CPU that each node declares; this machine's if empty."""

    memory_per_node: str = ""
    """Memory that each node declares; this machine's if empty."""

    simulated_nodes: int = 0
    """How many nodes pretend to run pods, for scale and what-if."""

    sandbox_grace_s: int = 60
    """For how many seconds sandboxes, and containers of other pods, of a platform that was killed wait for the next one to take them up;
    0: they end with it."""

    without: frozenset[str] = frozenset()
    """Components to leave out: scheduler, workloads, serving, router, agents, controlplane, node."""

    scheduler_conf: Path | None = None
    """Volcano's scheduler configuration file to decide by; followed while the platform runs."""

    engine_python: Path | None = None
    """Python of an environment that has vLLM, which starts engines on these nodes; hekla's own is looked at without it."""

    @classmethod
    def field_help(cls) -> dict[str, str]:
        """Each field's docstring, by its name."""
        return docstrings_of(cls)

    log_level: str = "info"
    """What is logged: debug, info, warning or error."""

    @property
    def all_nodes(self) -> int:
        """How many nodes a platform has once it is up."""
        return 0 if "node" in self.without else self.nodes + self.simulated_nodes

    @property
    def node_counts(self) -> dict[str, int]:
        """What its nodes are, by the flags that say so."""
        flags = {
            "--nodes": self.nodes,
            "--gpus-per-node": self.gpus_per_node,
            "--simulated-nodes": self.simulated_nodes,
        }
        return dict.fromkeys(flags, 0) if "node" in self.without else flags

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        unknown = sorted(self.without - set(COMPONENTS))
        if unknown:
            raise SettingsError(
                f'--without names "{unknown[0]}", which is no component; choose from {", ".join(COMPONENTS)}'
            )
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise SettingsError(f'--log-level is "{self.log_level}"; use debug, info, warning or error')
        for name in ("nodes", "gpus_per_node", "simulated_nodes", "sandbox_grace_s"):
            value = getattr(self, name)
            if value < 0:
                raise SettingsError(f"--{name.replace('_', '-')} is {value}; it must be 0 or more")
        for name in ("cpu_per_node", "memory_per_node"):
            amount = getattr(self, name)
            if amount and not (quantity.is_valid(amount) and quantity.to_milli(amount) > 0):
                raise SettingsError(
                    f'--{name.replace("_", "-")} is "{amount}"; it must be a quantity above 0, such as 4, 500m or 16Gi'
                )
        if self.nodes > 1_000:
            raise SettingsError(
                f"--nodes is {self.nodes}; at most 1000 nodes run real processes here, use --simulated-nodes for more"
            )
        for flag, port in (
            ("--port", self.port),
            ("--router-port", self.router_port),
            ("--agents-port", self.agents_port),
        ):
            if not 0 <= port <= 65_535:
                raise SettingsError(f"{flag} is {port}; a port lies between 0 (any) and 65535")
