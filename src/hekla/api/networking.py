"""Network policies, ingresses: carried and checked, not enforced by the embedded node."""

from msgspec import Struct, field

from hekla.api.meta import Resource, resource
from hekla.api.scalars import IntOrString, wire_names
from hekla.api.selectors import LabelSelector


class IPBlock(Struct, kw_only=True, frozen=True, rename=wire_names(except_="except"), gc=False):
    """A range of addresses with holes."""

    cidr: str = ""
    except_: list[str] = []


class NetworkPolicyPeer(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Pods, namespaces or addresses."""

    ip_block: IPBlock | None = None
    namespace_selector: LabelSelector | None = None
    pod_selector: LabelSelector | None = None


class NetworkPolicyPort(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Ports."""

    end_port: int = 0
    port: IntOrString | None = None
    protocol: str = ""


class NetworkPolicyIngressRule(Struct, kw_only=True, frozen=True, rename=wire_names(from_="from"), gc=False):
    """Who may come in where."""

    from_: list[NetworkPolicyPeer] = []
    ports: list[NetworkPolicyPort] = []


class NetworkPolicyEgressRule(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Who may be reached where."""

    ports: list[NetworkPolicyPort] = []
    to: list[NetworkPolicyPeer] = []


class NetworkPolicySpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Which pods are guarded, and how."""

    egress: list[NetworkPolicyEgressRule] = []
    ingress: list[NetworkPolicyIngressRule] = []
    pod_selector: LabelSelector | None = None
    policy_types: list[str] = []


@resource("networking.k8s.io/v1", plural="networkpolicies", short=("netpol",))
class NetworkPolicy(Resource, kw_only=True, frozen=True, rename="camel"):
    """Who may talk to some pods."""

    spec: NetworkPolicySpec = field(default_factory=NetworkPolicySpec)
