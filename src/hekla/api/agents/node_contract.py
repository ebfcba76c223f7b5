"""What a node offers for the sandboxes that it runs: paths, and the bodies that go over them. Both sides read it here.

    POST   /sandboxes/{namespace}/{pod}/claim         Claim -> Claimed
    POST   /sandboxes/{namespace}/{pod}/freeze, thaw  StillnessOrder -> SandboxState
    POST   /sandboxes/{namespace}/{pod}/checkpoint    CheckpointOrder -> Checkpoint
    POST   /sandboxes/{namespace}/{pod}/fork          ForkOrder -> Forked
    POST   /sandboxes/{namespace}/{pod}/egress        EgressOrder -> SandboxState
    GET    /sandboxes/{namespace}/{pod}[/usage]       -> SandboxState, Usage
    any    /sandboxes/{namespace}/{pod}/ports/{port}/{path}   a server inside; port 0 and DAEMON_PORTS are the daemon
    POST   /sandboxes/{namespace}/{pod}/ports/{port}  with `Upgrade: hekla-tunnel`: 101, then the server's own bytes
    GET    /checkpoints/{id}                          -> Checkpoint; DELETE forgets it

A sandbox is a pod with `runtimeClassName: sandbox` (`names.py` has its annotations); `hekla.node` serves
these paths for a bearer of the node's token (`authorization`, or `x-hekla-node-token` where the former is meant for the server inside), and
`hekla.sandbox` asks through its link (in this process, or over HTTPS: `cluster_link.py`). Bodies are JSON with camelCase names. On a cluster the
token is one that the API server knows, for the audience `hekla-nodes`, of somebody who may `create nodes/proxy` (or get, or delete, by method; ports of sandboxes always create).
Refusals are a Kubernetes `Status` with a sentence: 404 no such pod here, 409 claimed by another session, or overtaken by a later order, 412 the runtime
cannot do it, 422 a body that makes no sense, 503 not running (yet).
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from hekla.api.agents.names import ISOLATION_STRENGTHS

DAEMON_MODULE: Final = "hekla.sandbox.daemon.parked"
"""What runs inside: standard library only; the zygote has it imported. `park(...)` is its entry."""

DAEMON_PORTS: Final = (49983, 49999)
"""envd and code interpreter: ports of the daemon, which listens on no port at all. A dial to one of them, or to port 0, reaches the daemon
over a unix socket of the node; code in the sandbox cannot take them from it. All other ports are servers inside."""

EGRESS_SECRETS: Final = "hekla.dev/egress-secrets"
"""Pod annotation: a JSON list of `SecretHeader`, added by the egress broker to requests to hosts that `hekla.dev/egress` allows."""

LINEAGE: Final = "hekla.dev/lineage"
"""Pod annotation, written by whoever creates forks: uids of its ancestors, the oldest first, with commas between."""

NODE_RUNTIMES: Final = "hekla.dev/sandbox-runtimes"
"""Node annotation: what sandbox runtimes the node has, with their features: `sandbox=process:freeze,checkpoint,fork`."""

TUNNEL: Final = "hekla-tunnel"
"""The protocol by which a port inside is reached: after 101 the connection is the server's, so that bodies of any size pass as they come."""

NODE_AUDIENCE: Final = "hekla-nodes"
"""Audience of the tokens that nodes take: one that is stolen from a node opens no API server."""

NODE_AUTHORITY: Final = "hekla.dev/node-authority"
"""Node annotation, PEM: who signs the certificate of the node's endpoint; made anew in each life of a node agent."""

NODE_ISOLATION_LABEL: Final = "hekla.dev/isolation."
"""Prefix of node labels: `hekla.dev/isolation.shared-kernel=true` for each strength (`ISOLATION_STRENGTHS`) that the node keeps;
a pod that demands one selects nodes by it, and the node refuses what it cannot keep (reason `Isolation`)."""


NODE_RUNTIME_LABEL: Final = "hekla.dev/runtime."
"""Prefix of node labels: `hekla.dev/runtime.microvm=true` for each sandbox runtime that can run there; the runtime class of that name selects
nodes by it."""


class CheckpointKind(StrEnum):
    """How much of a sandbox a checkpoint holds."""

    FILESYSTEM = "filesystem"
    INTERPRETER = "interpreter"
    """Files, and the variables of interpreter contexts as far as they can be written down."""

    MEMORY = "memory"
    """Everything; virtual machines only."""


class Claim(Struct, kw_only=True, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Binds a warm sandbox to a session, once. The same session may ask again and gets the same answer."""

    session: str
    """The session's id. Another one's claim is refused (409)."""

    owner: str = ""
    """Whose it is, for the node's audit."""

    env: dict[str, str] = {}
    """Added to the environment of every command and interpreter."""

    access_token: str = ""
    """What E2B's dialect must present (X-Access-Token); empty: nobody is asked, the gateway stands before it."""

    traffic_token: str = ""
    """Kept by the gateway; the sandbox never sees it. Here for the node's door only."""

    public_key: str = ""
    """PEM, RSA: AgentCube's dialect believes tokens that it signed."""

    audience: str = ""
    """`aud` of those tokens: this sandbox's own."""

    token_key: str = ""
    """A secret of this claim alone, of 256 bits: tokens are believed that are signed with it (HS256), too. Sent only to a node of the same
    version, as an older one refuses what it does not know; whether the daemon took it, `Claimed` says."""

    hostname: str = ""
    """Of the sandbox from now on; empty: stays the pod's."""

    random_seed: str = ""
    """Hex, mixed into the sandbox's random state; the node adds its own in any case."""

    default_user: str = ""
    """Whom commands run as that name nobody; empty: `user`."""


class Claimed(Struct, kw_only=True, frozen=True, rename="camel"):
    """The answer to a claim."""

    pod_uid: str
    session: str
    was_claimed: bool = False
    """It had this session already: nothing was changed."""

    claim_us: int = 0
    """Microseconds that it took on the node."""

    takes_key: bool = False
    """The daemon believes what the claim's `token_key` has signed: one of an earlier version does not."""


class StillnessOrder(Struct, kw_only=True, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Let a sandbox stand still, or go on. Without a body it is an order without a number."""

    order: int = 0
    """Greater than that of every order which this one follows: one that comes after a greater one is refused (409). 0: it has no
    number and is always obeyed."""


class CheckpointOrder(Struct, kw_only=True, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Write a checkpoint of a sandbox, which goes on."""

    checkpoint: str
    """Its id: 1 to 128 of `a-z A-Z 0-9 . _ -`, not beginning with a dot; made once, never written over (409)."""

    kind: CheckpointKind = CheckpointKind.FILESYSTEM
    owner: str = ""
    """Whose it is; a pod of another owner cannot be restored from it."""


class Checkpoint(Struct, kw_only=True, frozen=True, rename="camel"):
    """What is known of a checkpoint: the answer to the order, and to GET /checkpoints/{id}."""

    checkpoint: str
    kind: CheckpointKind
    size_bytes: int
    sha256: str
    """Of the archive; compared before anything of it is unpacked."""

    owner: str = ""
    created_at: float = 0.0
    """Seconds since 1970."""

    pod_uid: str = ""
    """Of the sandbox that it was made of."""

    left_out: list[str] = []
    """Interpreter variables that could not be written down, as `context: name: why`; bounded to 100."""


class Child(Struct, kw_only=True, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One pod that becomes a copy of the forked sandbox: bound to this node, annotated `fork-of`, waiting."""

    namespace: str
    pod: str
    uid: str
    claim: Claim
    """Its own session, tokens and variables: nothing of the parent's is kept."""


class ForkOrder(Struct, kw_only=True, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Copy a running sandbox into pods that wait for it."""

    children: list[Child]


class ForkedChild(Struct, kw_only=True, frozen=True, rename="camel"):
    """What became of one child."""

    uid: str
    error: str = ""
    """Why not; empty: it runs and is claimed."""


class Forked(Struct, kw_only=True, frozen=True, rename="camel"):
    """The answer to a fork."""

    children: list[ForkedChild]
    paused_us: int = 0
    """Microseconds for which the parent stood still."""

    left_out: list[str] = []
    """Interpreter variables that did not come along, as in `Checkpoint`."""


class EgressOrder(Struct, kw_only=True, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Whom a sandbox may reach from now on; connections that this does not allow are cut."""

    allow: str
    """As `hekla.dev/egress`. A sandbox that began without any way out gets none: 412."""


class Usage(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a sandbox has used since it was started; counters never go back."""

    at: float = 0.0
    """When, in seconds since 1970."""

    cpu_us: int = 0
    """Processor time, microseconds, user and system."""

    memory_bytes: int = 0
    """Now, and not shared with other sandboxes."""

    memory_byte_s: float = 0.0
    """The same added up over time: bytes times seconds."""

    storage_bytes: int = 0
    """Files that it wrote and still has."""

    read_bytes: int = 0
    """From disks."""

    written_bytes: int = 0
    """To disks."""

    network_sent_bytes: int = 0
    """Through the egress broker."""

    network_received_bytes: int = 0
    wall_s: float = 0.0
    """Since it was started."""

    frozen_s: float = 0.0
    """Of which it stood still."""

    source: str = ""
    """`cgroup`, or `proc`: added up over its processes, and blind to those that came and went between two looks."""


class SandboxState(Struct, kw_only=True, frozen=True, rename="camel"):
    """The answer to freeze, thaw and GET of a sandbox."""

    pod_uid: str
    session: str = ""
    """Empty: warm, nobody's."""

    is_frozen: bool = False
    isolation: str = ISOLATION_STRENGTHS[0]
    """One of `ISOLATION_STRENGTHS`."""

    features: list[str] = []
    """Of its runtime: `freeze`, `checkpoint.filesystem`, `checkpoint.interpreter`, `checkpoint.memory`, `fork`, `usage`, `egress`."""


class SecretHeader(Struct, kw_only=True, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A header that the broker adds on the way out; the sandbox never sees its value.

    Nobody can look into a CONNECT tunnel, so the sandbox asks `http://host/...` through the proxy, and the broker goes on over TLS.
    """

    host: str
    """Which destination: as `hekla.dev/egress` names it. The request goes on over TLS, to port 443 unless `port` says another."""

    port: int = 443
    header: str = "Authorization"
    secret: str
    """Name of a Secret in the pod's namespace."""

    key: str
    format: str = "{}"
    """Where the value goes: `Bearer {}`."""


def keeps(offered: str, demanded: str) -> bool:
    """Whether a runtime that isolates as `offered` may run what demands `demanded` (empty: anything); what is unknown nobody keeps."""
    if not demanded:
        return True
    order = ISOLATION_STRENGTHS
    return demanded in order and order.index(offered) >= order.index(demanded)
