"""What `hekla run node` can be told. A field is a flag, and its docstring the flag's help."""

import ipaddress
import math
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hekla.app.standalone.settings import StandaloneSettingsError, host_and_port
from hekla.lib.quantity import QuantityError, to_milli
from hekla.node.runtimes.sandbox.runtime import GRACE_S

AS_NODE, AS_ACCOUNT = "node", "account"
PROCESS, SIMULATED = "process", "simulated"
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
NODE_KEY: Final = "hekla.dev/node"
"""Label of these nodes, and the key of their taint: who tolerates it by name may come."""
PROCESSES_LABEL: Final = "hekla.dev/processes"
"""Label of those that run pods as processes of the machine; the runtime class `process` leads to them."""
PORT: Final = 10260
"""Of the endpoint: beside a kubelet's 10250."""
NO_TAINT: Final = "none"
_TAINT = re.compile(r"([^=:]+)(?:=([^:]*))?:(\w+)")
MOST_NODES: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """Settings of virtual nodes in a cluster."""

    name: str = ""
    """Name of the node; `<hostname>-hekla` by default. Of several nodes each has its number behind it."""

    count: int = 1
    """How many nodes there are; more than one only of simulated ones."""

    runtime: str = PROCESS
    """What runs pods that name no runtimeClassName: process, or simulated (nothing runs; pods are what their annotations say)."""

    allows_processes: bool = False
    """Take pods that are processes of the machine too, with root's rights on its network and devices: for clusters whose tenants are
    trusted with the machine. Sandboxes are taken always."""

    cpu: str = ""
    """CPU of each node; by default what the machine has, and 64 of a simulated one."""

    memory: str = ""
    """Memory of each node; by default what the machine has, and 512Gi of a simulated one."""

    gpus: int = 0
    """GPUs of each node, numbered."""

    pods: int = 110
    """How many pods each node takes."""

    labels: tuple[str, ...] = ()
    """Label of each node beside the usual ones, as KEY=VALUE; repeatable."""

    taints: tuple[str, ...] = (f"{NODE_KEY}:NoSchedule",)
    """Taint of each node, as KEY[=VALUE]:EFFECT, repeatable; `hekla.dev/node:NoSchedule` by default, `none` for none. The node's
    runtime classes tolerate the default."""

    directory: Path = Path("hekla-node")
    """What a node keeps: files of its pods, checkpoints, registered images."""

    address: str = ""
    """IP address by which API servers and gateways reach this machine; by default the one by which it reaches the API server."""

    listen: str = f"0.0.0.0:{PORT}"
    """Where the node answers API servers and gateways, over TLS; port 0 picks one."""

    tls_cert: str = ""
    """File with the certificate chain of the endpoint, for API servers with --kubelet-certificate-authority; its own by default."""

    tls_key: str = ""
    """File with the certificate's key."""

    identity: str = ""
    """As whom the node speaks: node (a certificate as system:node:<name>, which the account asks for, as kubelets do), or account.
    By default node, and account for simulated nodes, whose one process is many."""

    sandbox_grace_s: float = GRACE_S
    """Seconds that sandboxes outlive an agent that ended or was killed, for the next one to take up."""

    pod_grace_s: float = math.inf
    """Seconds that containers of other pods outlive an agent that ended or was killed, for the next one to take up; for ever by default,
    as with a kubelet. 0: they end with their agent."""

    deletes_itself: bool = False
    """Delete the Node when told to end, and with it its pods; else it says that it is not ready, and is taken up by the next life."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        host_and_port("--node-listen", self.listen)
        if self.runtime not in (PROCESS, SIMULATED):
            raise StandaloneSettingsError(f'--runtime is "{self.runtime}"; use process or simulated')
        if bool(self.tls_cert) != bool(self.tls_key):
            raise StandaloneSettingsError("--tls-cert and --tls-key go together; give both or neither")
        for flag, text in (("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key)):
            try:
                if text:
                    Path(text).open("rb").close()
            except OSError as error:
                raise StandaloneSettingsError(f'{flag} is "{text}", and cannot be read: {error.strerror}') from None
        if self.identity not in ("", AS_NODE, AS_ACCOUNT):
            raise StandaloneSettingsError(f'--node-identity is "{self.identity}"; use node or account')
        if self.identity == AS_NODE and self.count > 1:
            raise StandaloneSettingsError("--node-identity node is of one node; use account, or --nodes 1")
        if not 1 <= self.count <= MOST_NODES:
            raise StandaloneSettingsError(f"--nodes is {self.count}; it must lie between 1 and {MOST_NODES}")
        if self.runtime == PROCESS and self.count > 1:
            raise StandaloneSettingsError(
                f"--nodes is {self.count}, and there is one machine to run processes on; use --nodes 1, or --runtime simulated"
            )
        for flag, seconds in (("--sandbox-grace-s", self.sandbox_grace_s), ("--pod-grace-s", self.pod_grace_s)):
            if not seconds >= 0:
                raise StandaloneSettingsError(f"{flag} is {seconds:g}; it must be 0 or more")
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", self.node_name) or len(self.node_name) > 240:
            raise StandaloneSettingsError(
                f'--node-name is "{self.node_name}"; use lower case letters, digits, "-" and "."'
            )
        for flag, text in (("--cpu-per-node", self.cpu), ("--memory-per-node", self.memory)):
            try:
                to_milli(text or "0")
            except QuantityError:
                raise StandaloneSettingsError(f'{flag} is "{text}"; write a quantity such as 8 or 64Gi') from None
        try:
            ipaddress.ip_address(self.address or "127.0.0.1")
        except ValueError:
            raise StandaloneSettingsError(f'--node-address is "{self.address}"; write an IP address') from None
        if wrong := [one for one in self.labels if "=" not in one]:
            raise StandaloneSettingsError(f'--node-label is "{wrong[0]}"; write KEY=VALUE')
        list(self.taints_of_nodes())

    @property
    def node_name(self) -> str:
        """The name that was given, or that of the machine."""
        return self.name or f"{socket.gethostname().partition('.')[0].lower()}-hekla"

    @property
    def speaks_as_node(self) -> bool:
        """Whether it has an identity of its own."""
        return (self.identity or (AS_NODE if self.runtime == PROCESS else AS_ACCOUNT)) == AS_NODE

    def names(self) -> Sequence[str]:
        """Of all nodes."""
        if self.count == 1:
            return [self.node_name]
        return [f"{self.node_name}-{number:05d}" for number in range(self.count)]

    def labels_of_nodes(self) -> Mapping[str, str]:
        """What was given, and what keeps those away who look for machines."""
        usual = {
            NODE_KEY: "true",
            "type": "virtual-kubelet",  # DaemonSets of clouds and networks leave these out
            "node.kubernetes.io/exclude-from-external-load-balancers": "true",
        }
        if self.allows_processes and self.runtime == PROCESS:
            usual[PROCESSES_LABEL] = "true"
        return usual | dict(one.split("=", 1) for one in self.labels)

    def taints_of_nodes(self) -> Iterator[dict[str, str]]:
        """As a Node has them."""
        for text in self.taints:
            if text == NO_TAINT:
                continue
            found = _TAINT.fullmatch(text)
            if found is None or found[3] not in EFFECTS:
                raise StandaloneSettingsError(
                    f'--node-taint is "{text}"; write KEY[=VALUE]:EFFECT, effect {" or ".join(EFFECTS)}'
                )
            yield {"key": found[1], **({"value": found[2]} if found[2] else {}), "effect": found[3]}
