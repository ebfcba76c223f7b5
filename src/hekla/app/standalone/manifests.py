"""What `hekla install --render` prints and `make gen` writes to deploy/: everything that a cluster needs to run Hekla.

The rights are derived (`rights.py`), the webhooks' rules are those of the embedded server (`reviews.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import yaml

from hekla import __version__
from hekla.api.crd import CUSTOM_KINDS, crd_document
from hekla.api.foreign import FlowSchema
from hekla.api.meta import KINDS, Document
from hekla.apiserver.admission import Operation
from hekla.apiserver.validation.names import dns_subdomain
from hekla.apiserver.webhook_rule import WebhookRule
from hekla.app.monitoring.objects import objects as monitoring_objects
from hekla.app.standalone import agents_manifests, node_manifests
from hekla.app.standalone.answering import PORT_NAME as ANSWERS_PORT_NAME
from hekla.app.standalone.answering import unanswered
from hekla.app.standalone.answering_manifests import answers
from hekla.app.standalone.certificate_keeper import CONFIGURATION, SECRET, SERVICE
from hekla.app.standalone.labels import labels_of
from hekla.app.standalone.node_manifests import PROCESSES, SIMULATED_NODES
from hekla.app.standalone.reviews import path_of, rules_by_path
from hekla.app.standalone.rights import rights_of
from hekla.app.standalone.settings import (
    AGENTS,
    COMPONENTS,
    CONTROLLERS,
    DEFAULT_NAMESPACE,
    NODE,
    ROUTER,
    SCHEDULER,
    SERVING,
    WEBHOOKS,
    lease_of,
)
from hekla.app.standalone.user_manifests import user_roles
from hekla.scheduler.configuration import DEFAULT_TEXT
from hekla.scheduler.reload import CONFIG_MAP, KEY
from hekla.workloads.ours import USUAL

METRICS_PORT, WEBHOOK_PORT, ANSWERS_PORT = 8080, 8443, 8444
ROUTER_PORT, ROUTER_METRICS_PORT = 8080, 9090
ROUTER_DRAIN_S = 330
"""Kthena's DRAIN_TIMEOUT of five minutes, and a little."""
NOBODY = 65532
TIMEOUT_S = 10
KUBERNETES_OWN = "default-scheduler"
"""The scheduler that places us: ours cannot place itself."""
LEASES_PRECEDENCE = 200
"""As Kubernetes' own for leases of kube-system; whatever stands for service accounts at large has 9000."""
LEFT_OUT_BY_DEFAULT = frozenset({"/pods/mutate", "/pods/validate", "/podgroups/mutate"})
"""Asked for every pod or group of a cluster, so off unless wanted, as in Volcano's chart."""

USERS, SCHEDULER_CONFIGURATION = "user-roles", "scheduler-configuration"
MONITORING = "monitoring"

PARTS = (*COMPONENTS, ROUTER, AGENTS, USERS, SCHEDULER_CONFIGURATION, "crds", "namespace")
"""What `--without` can leave out."""

ALSO_PARTS = (NODE, PROCESSES, SIMULATED_NODES, MONITORING)
"""What `--with` can add."""

FAILURE_POLICIES = ("Fail", "Ignore")


class InstallError(Exception):
    """An option that cannot be; the sentence names it, its value and what would do."""


@dataclass(frozen=True, kw_only=True)
class Installation:
    """What is to be installed, and how."""

    namespace: str = DEFAULT_NAMESPACE
    """Namespace to install into."""

    image: str = f"hekla:{__version__}"
    """Container image; deploy/Containerfile makes it."""

    replicas: int = 2
    """Replicas of each component; one leads, the others take over."""

    without: frozenset[str] = frozenset()
    """What to leave out: controllers, scheduler, webhooks, serving, router, agents, user-roles (what Kubernetes' roles view, edit
    and admin may do with the kinds), scheduler-configuration (so that yours stays as it is), crds, namespace (where it is
    another's, and must not go with ours); repeatable."""

    also: frozenset[str] = frozenset()
    """What to add: node (agents of virtual nodes that run sandboxes, on machines labelled hekla.dev/host=true),
    node-processes (these take pods that are plain processes of the machine, too), simulated-nodes, monitoring (a PodMonitor and
    alerts for the Prometheus Operator, dashboards for Grafana); repeatable."""

    failure_policy: str = "Fail"
    """What an API server does when no webhook answers: Fail or Ignore."""

    scheduler_names: tuple[str, ...] = USUAL.schedulers
    """Scheduler, controllers and webhooks are told that pods with this schedulerName are theirs, `volcano` by default; the
    scheduler has the rights of one of that name. A Job that names none gets the first; repeatable."""

    also_ask: frozenset[str] = frozenset()
    """Webhooks to register that are off by default, by path: /pods/validate, /pods/mutate, /podgroups/mutate."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if unknown := sorted(self.without - set(PARTS)):
            raise InstallError(f'--without names "{unknown[0]}"; choose from {", ".join(PARTS)}')
        if unknown := sorted(self.also - set(ALSO_PARTS)):
            raise InstallError(f'--with names "{unknown[0]}"; choose from {", ".join(ALSO_PARTS)}')
        if PROCESSES in self.also and NODE not in self.also:
            raise InstallError(f"--with {PROCESSES} is of the nodes that --with {NODE} adds; give both")
        if self.failure_policy not in FAILURE_POLICIES:
            raise InstallError(f'--failure-policy is "{self.failure_policy}"; use Fail or Ignore')
        if unknown := sorted(self.also_ask - LEFT_OUT_BY_DEFAULT):
            raise InstallError(f'--also-ask names "{unknown[0]}"; choose from {", ".join(sorted(LEFT_OUT_BY_DEFAULT))}')
        for name in self.scheduler_names:
            if dns_subdomain(name):
                hint = "a lease is called like it, so use small letters, digits, - and ., such as team-a"
                raise InstallError(f'--scheduler-name is "{name}"; {hint}')
            if name == KUBERNETES_OWN:
                hint = "give Hekla another, or each of the two would place all pods"
                raise InstallError(f'--scheduler-name is "{name}", which Kubernetes\' own scheduler has; {hint}')
        if not 1 <= self.replicas <= 100:
            raise InstallError(f"--replicas is {self.replicas}; it must lie between 1 and 100")

    @property
    def components(self) -> tuple[str, ...]:
        """The components that are not left out."""
        asked = tuple(name for name in ALSO_PARTS if name in self.also - {PROCESSES, MONITORING})
        return (*(name for name in (*COMPONENTS, ROUTER, AGENTS) if name not in self.without), *asked)


def rendered(installation: Installation) -> str:
    """All manifests as one stream of YAML."""
    groups = [crds()] if "crds" not in installation.without else []
    groups += files(installation).values()
    return "---\n".join(as_yaml(document) for group in groups for document in group)


def crds() -> list[Document]:
    """The kinds."""
    return [crd_document(kind) for kind in CUSTOM_KINDS]


def files(installation: Installation) -> Mapping[str, list[Document]]:
    """Manifests by the file of deploy/ that holds them."""
    home = [namespace(installation)] if "namespace" not in installation.without else []
    found = {"namespace.yaml": [*home, leases_first(installation)]}
    if USERS not in installation.without:
        found["users.yaml"] = list(user_roles(labels_of("")))
    for component in installation.components:
        found[f"{component}.yaml"] = list(_component(installation, component))
    if MONITORING in installation.also:
        found["monitoring.yaml"] = monitoring_objects(installation.namespace, labels_of(""), installation.without)
    return found


def kustomization(installation: Installation) -> Document:
    """The list of all files for `kubectl apply -k`."""
    kinds = [f"crds/{kind.kind_info.group}_{kind.kind_info.plural}.yaml" for kind in CUSTOM_KINDS]
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [*sorted(kinds), *files(installation)],
    }


class _Plain(yaml.CSafeDumper):
    """YAML without anchors, texts of several lines as such."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Plain.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def as_yaml(document: Document) -> str:
    """One document."""
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=120)


def namespace(installation: Installation) -> Document:
    """The namespace, in which nothing may run as root."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": installation.namespace, "labels": {**labels_of(""), **labels}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def leases_first(installation: Installation) -> Document:
    """Renewals of our leases wait with those of Kubernetes' own components when an API server has more to answer than it can. With
    everything else of the same account, a scheduler's renewal stood behind hundreds of its own bindings, and it lost its lease by them.
    """
    accounts = {"name": "*", "namespace": installation.namespace}
    leases = {
        "verbs": ["get", "create", "update", "patch"],
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "namespaces": [installation.namespace],
    }
    rule = {"subjects": [{"kind": "ServiceAccount", "serviceAccount": accounts}], "resourceRules": [leases]}
    info = FlowSchema.kind_info
    return {
        "apiVersion": info.api_version,
        "kind": info.kind,
        "metadata": {"name": "hekla-leader-election", "labels": labels_of("")},
        "spec": {
            "priorityLevelConfiguration": {"name": "leader-election"},
            "matchingPrecedence": LEASES_PRECEDENCE,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [rule],
        },
    }


def _component(installation: Installation, name: str) -> Iterator[Document]:
    if name == NODE:
        yield from _node(installation)
        return
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(installation, name)}
    yield from _roles(installation, name)
    if name == SCHEDULER and SCHEDULER_CONFIGURATION not in installation.without:
        metadata = {**_metadata(installation, name), "name": CONFIG_MAP}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: DEFAULT_TEXT}}
    if name == ROUTER:
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(installation, name), "data": ROUTER_DATA}
    if name == WEBHOOKS:
        metadata = {**_metadata(installation, name), "name": SECRET}
        yield {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}
    if name == AGENTS:
        yield agents_manifests.claim(_metadata(installation, name))
        yield agents_manifests.idle_class(labels_of(name))
    if name == SIMULATED_NODES:
        account = f"hekla-{name}"
        yield node_manifests.may_ask_whom_to_believe(account, installation.namespace, labels_of(name))
        yield from node_manifests.lease_roles(account, installation.namespace, labels_of(name))
        yield from node_manifests.runtime_classes(labels_of(name), simulated=True)
        yield _deployment(installation, name)
        return
    yield _service(installation, name)
    if name == SCHEDULER:
        lease = lease_of(installation.scheduler_names)
        yield from answers(installation.namespace, labels_of(SCHEDULER), ANSWERS_PORT, lease)
    yield _deployment(installation, name)
    if name == SCHEDULER:
        yield unanswered()
    if name != AGENTS:  # alone with its file of sessions, it would keep its node from ever being drained
        yield _budget(installation, name)
    if name == WEBHOOKS:
        yield from _registrations(installation)


def _node(installation: Installation) -> Iterator[Document]:
    home = replace(installation, namespace=node_manifests.home_of(installation.namespace))
    metadata = _metadata(home, NODE)
    yield node_manifests.place(installation.namespace, labels_of(NODE))
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    yield from _roles(home, NODE)
    yield node_manifests.may_ask_whom_to_believe(metadata["name"], home.namespace, labels_of(NODE))
    yield from node_manifests.runtime_classes(labels_of(NODE), processes=PROCESSES in installation.also)
    yield node_manifests.daemon_set(
        metadata, _selector(NODE), installation.image, processes=PROCESSES in installation.also
    )


def _roles(installation: Installation, name: str) -> Iterator[Document]:
    group = "rbac.authorization.k8s.io"
    rights = rights_of(name, lease_of(installation.scheduler_names))
    metadata = _metadata(installation, name)
    everywhere = {"name": metadata["name"], "labels": metadata["labels"]}
    subject = {"kind": "ServiceAccount", "name": metadata["name"], "namespace": installation.namespace}
    for scope, place, rules in (("Cluster", everywhere, rights.everywhere), ("", metadata, rights.at_home)):
        if not rules:
            continue
        role = f"{scope}Role"
        yield {"apiVersion": f"{group}/v1", "kind": role, "metadata": place, "rules": rules}
        reference = {"apiGroup": group, "kind": role, "name": metadata["name"]}
        binding = {"apiVersion": f"{group}/v1", "kind": f"{role}Binding", "metadata": place}
        yield {**binding, "roleRef": reference, "subjects": [subject]}


ROUTER_DATA = {"routerConfiguration.yaml": "scheduler: {}  # the default policy; Kthena's plugins may stand here\n"}


def _service(installation: Installation, name: str) -> Document:
    ports = [{"name": "metrics", "port": _metrics_port(name), "targetPort": "metrics"}]
    if name == ROUTER:
        ports.insert(0, {"name": "http", "port": 80, "targetPort": "http"})
    if name == AGENTS:
        ports.insert(0, {"name": "gateway", "port": 80, "targetPort": "gateway"})
    if name == WEBHOOKS:
        ports.insert(0, {"name": "webhooks", "port": 443, "targetPort": "webhooks"})
    metadata = {**_metadata(installation, name), "name": SERVICE if name == WEBHOOKS else f"hekla-{name}"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"selector": _selector(name), "ports": ports},
    }


def _deployment(installation: Installation, name: str) -> Document:
    template = {"metadata": {"labels": labels_of(name)}, "spec": _pod_spec(installation, name)}
    spec = {
        "replicas": installation.replicas,
        "selector": {"matchLabels": _selector(name)},
        # the new replica waits for the lease beside the old one: nobody is without a scheduler meanwhile
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": template,
        **(agents_manifests.rollout() if name in (AGENTS, SIMULATED_NODES) else {}),
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(installation, name), "spec": spec}


def _pod_spec(installation: Installation, name: str) -> Document:
    apart = {"labelSelector": {"matchLabels": _selector(name)}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "serviceAccountName": f"hekla-{name}",
        "priorityClassName": "system-cluster-critical",
        "schedulerName": KUBERNETES_OWN,
        "terminationGracePeriodSeconds": ROUTER_DRAIN_S if name == ROUTER else 30,
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]
            }
        },
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": NOBODY, "runAsGroup": NOBODY, "fsGroup": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(installation, name)],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "256Mi"}}, *_configuration_volume(name)],
    }  # fmt: skip


def _configuration_volume(name: str) -> list[Document]:
    if name == AGENTS:
        return agents_manifests.volumes(f"hekla-{name}")
    return [{"name": "configuration", "configMap": {"name": f"hekla-{name}"}}] if name == ROUTER else []


def _metrics_port(name: str) -> int:
    return ROUTER_METRICS_PORT if name == ROUTER else METRICS_PORT


def _container(installation: Installation, name: str) -> Document:
    arguments = ["run", name, f"--namespace={installation.namespace}", f"--metrics-address=0.0.0.0:{METRICS_PORT}"]
    ports = [{"name": "metrics", "containerPort": _metrics_port(name)}]
    mounts: list[Document] = [{"name": "scratch", "mountPath": "/tmp"}]
    if name == ROUTER:
        arguments = ["run", name, f"--port={ROUTER_PORT}", f"--metrics-port={ROUTER_METRICS_PORT}"]
        ports.append({"name": "http", "containerPort": ROUTER_PORT})
        mounts.append({"name": "configuration", "mountPath": "/etc/config"})
    if name == AGENTS:
        arguments += agents_manifests.arguments()
        ports.append({"name": "gateway", "containerPort": agents_manifests.PORT})
        mounts += agents_manifests.mounts()
    if name == SIMULATED_NODES:
        arguments = [
            "run", NODE, "--runtime=simulated", "--nodes=100", "--node-name=simulated", "--node-address=$(POD_IP)",
            "--node-directory=/tmp/node", f"--metrics-address=0.0.0.0:{METRICS_PORT}",
        ]  # fmt: skip
    if name == SCHEDULER:
        arguments.append(f"--answers-address=0.0.0.0:{ANSWERS_PORT}")
        ports.append({"name": ANSWERS_PORT_NAME, "containerPort": ANSWERS_PORT})
    if name in (SCHEDULER, CONTROLLERS, WEBHOOKS) and installation.scheduler_names != USUAL.schedulers:
        arguments += [f"--scheduler-name={one}" for one in installation.scheduler_names]
    answers = "http" if name == ROUTER else "metrics"
    if name == WEBHOOKS:
        arguments.append(f"--webhook-address=0.0.0.0:{WEBHOOK_PORT}")
        ports.append({"name": "webhooks", "containerPort": WEBHOOK_PORT})
    return {
        "name": name,
        "image": installation.image,
        "command": ["hekla"],
        "args": arguments,
        # numba's cache and the moments when OpenSSL wants a file
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "NUMBA_CACHE_DIR", "value": "/tmp/numba"},
            *([{"name": "POD_NAMESPACE", "value": installation.namespace}] if name == ROUTER else []),
            *(
                [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
                if name in (SCHEDULER, SIMULATED_NODES)
                else []
            ),
        ],
        "ports": ports,
        "livenessProbe": _probe("/healthz", answers, periodSeconds=10, failureThreshold=6, timeoutSeconds=5),
        "readinessProbe": _probe("/readyz", answers, periodSeconds=5, failureThreshold=2, timeoutSeconds=5),
        "startupProbe": _probe("/healthz", answers, periodSeconds=2, failureThreshold=30),
        "resources": _resources(name),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _probe(path: str, port: str, **times: int) -> Document:
    return {"httpGet": {"path": path, "port": port}, **times}


def _resources(name: str) -> Document:
    """No limit on CPU: a scheduler that is throttled decides late for everybody."""
    asked = {
        CONTROLLERS: ("200m", "256Mi", "4Gi"),
        SCHEDULER: ("500m", "512Mi", "8Gi"),
        WEBHOOKS: ("100m", "128Mi", "1Gi"),
        SERVING: ("100m", "192Mi", "2Gi"),
        ROUTER: ("1", "256Mi", "2Gi"),
        AGENTS: ("500m", "256Mi", "2Gi"),
        SIMULATED_NODES: ("500m", "256Mi", "2Gi"),
    }
    cpu, memory, most = asked[name]
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": most}}


def _budget(installation: Installation, name: str) -> Document:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": _selector(name)}}
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": _metadata(installation, name), "spec": spec
    }  # fmt: skip


def _registrations(installation: Installation) -> Iterator[Document]:
    """Whom API servers ask. Their caBundle is filled in by the webhooks themselves."""
    rules = {path: rule for path, rule in rules_by_path().items() if _is_registered(installation, path)}
    for kind in ("Mutating", "Validating"):
        webhooks = [
            _webhook(installation, rule, kind)
            for rule in rules.values()
            if (rule.change is not None) == (kind == "Mutating")
        ]
        yield {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": CONFIGURATION, "labels": labels_of(WEBHOOKS)},
            "webhooks": webhooks,
        }


def _is_registered(installation: Installation, path: str) -> bool:
    return path not in LEFT_OUT_BY_DEFAULT or path in installation.also_ask


def _webhook(installation: Installation, rule: WebhookRule, kind: str) -> Document:
    plural, _, group = rule.resource.partition(".")
    version = next(one.kind_info.version for one in KINDS.values() if one.kind_info.resource == rule.resource)
    service = {"name": SERVICE, "namespace": installation.namespace, "path": path_of(rule), "port": 443}
    # as in Volcano: what keeps the cluster alive must not wait for us
    spared = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": sorted({installation.namespace, "kube-system"}),
    }
    webhook: Document = {
        "name": rule.name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": service},
        "rules": [
            {
                "apiGroups": [group], "apiVersions": [version], "resources": [plural],
                "operations": sorted(str(one) for one in rule.operations), "scope": "*",
            }
        ],
        "namespaceSelector": {"matchExpressions": [spared]},
        "failurePolicy": installation.failure_policy,
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_S,
    }  # fmt: skip
    if Operation.UPDATE in rule.operations:
        webhook["matchConditions"] = [{"name": "what-is-checked-changes", "expression": _changes(rule)}]
    return {**webhook, "reinvocationPolicy": "Never"} if kind == "Mutating" else webhook


def _changes(rule: WebhookRule) -> str:
    """CEL that lets an update pass unasked which touches nothing that the rule looks at. Statuses that are written with the
    whole object (PodGroups), finalizers, labels: they must not wait for us, and jobs must be deletable while we are away.
    """
    paths = ("spec", "metadata.annotations") if rule.reads_annotations else ("spec",)
    return " || ".join((f"request.operation != '{Operation.UPDATE}'", *(_differs(path) for path in paths)))


def _differs(path: str) -> str:
    new, old = f"object.{path}", f"oldObject.{path}"
    return f"has({new}) != has({old}) || (has({new}) && {new} != {old})"


def _metadata(installation: Installation, component: str) -> Document:
    return {"name": f"hekla-{component}", "namespace": installation.namespace, "labels": labels_of(component)}


def _selector(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "hekla", "app.kubernetes.io/component": component}
