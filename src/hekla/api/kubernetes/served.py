"""Which of Kubernetes' own kinds are served, and what discovery says of them. `hekla.api.schema` has their fields.

One row a kind: version, kind, plural, N(amespaced) or C(luster), short names, categories, verbs, then subresources
as `name:kind:verbs`. Verbs are letters: c(reate) d(elete) x (deletecollection) g(et) l(ist) p(atch) u(pdate) w(atch).
"""

import base64
import hashlib
from dataclasses import dataclass

from hekla.api.meta import Kind, Scope

_VERBS = {
    "c": "create", "d": "delete", "x": "deletecollection", "g": "get", "l": "list", "p": "patch", "u": "update", "w": "watch",
}  # fmt: skip
_STORED_AS = {
    ("events.k8s.io", "Event"): ("", "v1"),
    ("autoscaling", "HorizontalPodAutoscaler"): ("autoscaling", "v2"),
}
"""Kinds that are stored in another group or version than they are served in."""

_ROWS = """
v1 Binding bindings N - - c
v1 ConfigMap configmaps N cm - cdxglpuw
v1 Endpoints endpoints N ep - cdxglpuw
v1 Event events N ev - cdxglpuw
v1 LimitRange limitranges N limits - cdxglpuw
v1 Namespace namespaces C ns - cdglpuw finalize:Namespace:u status:Namespace:gpu
v1 Node nodes C no - cdxglpuw proxy:NodeProxyOptions:cdgpu status:Node:gpu
v1 PersistentVolumeClaim persistentvolumeclaims N pvc - cdxglpuw status:PersistentVolumeClaim:gpu
v1 PersistentVolume persistentvolumes C pv - cdxglpuw status:PersistentVolume:gpu
v1 Pod pods N po all cdxglpuw attach:PodAttachOptions:cg binding:Binding:c ephemeralcontainers:Pod:gpu eviction:policy/v1/Eviction:c exec:PodExecOptions:cg log:Pod:g portforward:PodPortForwardOptions:cg proxy:PodProxyOptions:cdgpu resize:Pod:gpu status:Pod:gpu
v1 PodTemplate podtemplates N - - cdxglpuw
v1 ReplicationController replicationcontrollers N rc all cdxglpuw scale:autoscaling/v1/Scale:gpu status:ReplicationController:gpu
v1 ResourceQuota resourcequotas N quota - cdxglpuw status:ResourceQuota:gpu
v1 Secret secrets N - - cdxglpuw
v1 ServiceAccount serviceaccounts N sa - cdxglpuw token:authentication.k8s.io/v1/TokenRequest:c
v1 Service services N svc all cdxglpuw proxy:ServiceProxyOptions:cdgpu status:Service:gpu
apps/v1 ControllerRevision controllerrevisions N - - cdxglpuw
apps/v1 DaemonSet daemonsets N ds all cdxglpuw status:DaemonSet:gpu
apps/v1 Deployment deployments N deploy all cdxglpuw scale:autoscaling/v1/Scale:gpu status:Deployment:gpu
apps/v1 ReplicaSet replicasets N rs all cdxglpuw scale:autoscaling/v1/Scale:gpu status:ReplicaSet:gpu
apps/v1 StatefulSet statefulsets N sts all cdxglpuw scale:autoscaling/v1/Scale:gpu status:StatefulSet:gpu
events.k8s.io/v1 Event events N ev - cdxglpuw
authentication.k8s.io/v1 SelfSubjectReview selfsubjectreviews C - - c
authentication.k8s.io/v1 TokenReview tokenreviews C - - c
authorization.k8s.io/v1 LocalSubjectAccessReview localsubjectaccessreviews N - - c
authorization.k8s.io/v1 SelfSubjectAccessReview selfsubjectaccessreviews C - - c
authorization.k8s.io/v1 SelfSubjectRulesReview selfsubjectrulesreviews C - - c
authorization.k8s.io/v1 SubjectAccessReview subjectaccessreviews C - - c
autoscaling/v2 HorizontalPodAutoscaler horizontalpodautoscalers N hpa all cdxglpuw status:HorizontalPodAutoscaler:gpu
autoscaling/v1 HorizontalPodAutoscaler horizontalpodautoscalers N hpa all cdxglpuw status:HorizontalPodAutoscaler:gpu
batch/v1 CronJob cronjobs N cj all cdxglpuw status:CronJob:gpu
batch/v1 Job jobs N - all cdxglpuw status:Job:gpu
networking.k8s.io/v1 IngressClass ingressclasses C - - cdxglpuw
networking.k8s.io/v1 Ingress ingresses N ing - cdxglpuw status:Ingress:gpu
networking.k8s.io/v1 IPAddress ipaddresses C ip - cdxglpuw
networking.k8s.io/v1 NetworkPolicy networkpolicies N netpol - cdxglpuw
networking.k8s.io/v1 ServiceCIDR servicecidrs C - - cdxglpuw status:ServiceCIDR:gpu
policy/v1 PodDisruptionBudget poddisruptionbudgets N pdb - cdxglpuw status:PodDisruptionBudget:gpu
rbac.authorization.k8s.io/v1 ClusterRoleBinding clusterrolebindings C - - cdxglpuw
rbac.authorization.k8s.io/v1 ClusterRole clusterroles C - - cdxglpuw
rbac.authorization.k8s.io/v1 RoleBinding rolebindings N - - cdxglpuw
rbac.authorization.k8s.io/v1 Role roles N - - cdxglpuw
storage.k8s.io/v1 CSIDriver csidrivers C - - cdxglpuw
storage.k8s.io/v1 CSINode csinodes C - - cdxglpuw
storage.k8s.io/v1 CSIStorageCapacity csistoragecapacities N - - cdxglpuw
storage.k8s.io/v1 StorageClass storageclasses C sc - cdxglpuw
storage.k8s.io/v1 VolumeAttachment volumeattachments C - - cdxglpuw status:VolumeAttachment:gpu
storage.k8s.io/v1 VolumeAttributesClass volumeattributesclasses C vac - cdxglpuw
admissionregistration.k8s.io/v1 MutatingWebhookConfiguration mutatingwebhookconfigurations C - api-extensions cdxglpuw
admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration validatingwebhookconfigurations C - api-extensions cdxglpuw
apiextensions.k8s.io/v1 CustomResourceDefinition customresourcedefinitions C crd,crds api-extensions cdxglpuw status:CustomResourceDefinition:gpu
scheduling.k8s.io/v1 PriorityClass priorityclasses C pc - cdxglpuw
coordination.k8s.io/v1 Lease leases N - - cdxglpuw
node.k8s.io/v1 RuntimeClass runtimeclasses C - - cdxglpuw
discovery.k8s.io/v1 EndpointSlice endpointslices N - - cdxglpuw
resource.k8s.io/v1 DeviceClass deviceclasses C - - cdxglpuw
resource.k8s.io/v1 ResourceClaim resourceclaims N - - cdxglpuw status:ResourceClaim:gpu
resource.k8s.io/v1 ResourceClaimTemplate resourceclaimtemplates N - - cdxglpuw
resource.k8s.io/v1 ResourceSlice resourceslices C - - cdxglpuw
"""


@dataclass(frozen=True, kw_only=True)
class Subresource:
    """A part of an object with a path of its own."""

    name: str
    group: str
    version: str
    kind: str
    """What it reads and writes; group and version are empty when they are the parent's."""

    verbs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Served:
    """One built-in resource as discovery lists it."""

    kind: Kind
    verbs: tuple[str, ...]
    subresources: tuple[Subresource, ...] = ()

    @property
    def is_stored(self) -> bool:
        """Whether objects of it are kept; a review is only answered."""
        return "get" in self.verbs

    @property
    def storage_version_hash(self) -> str:
        """What discovery says so that clients notice a change of the stored form."""
        if not self.is_stored:
            return ""
        group, version = _STORED_AS.get((self.kind.group, self.kind.kind), (self.kind.group, self.kind.version))
        digest = hashlib.sha256(f"{group}/{version}/{self.kind.kind}".encode()).digest()
        return base64.b64encode(digest[:8]).decode()


def _served(row: str) -> Served:
    api_version, kind, plural, scope, short, categories, verbs, *subresources = row.split()
    group, _, version = api_version.rpartition("/")
    parts = tuple(_subresource(one) for one in subresources)
    return Served(
        kind=Kind(
            group=group,
            version=version,
            kind=kind,
            plural=plural,
            singular=kind.lower(),
            scope=Scope.NAMESPACED if scope == "N" else Scope.CLUSTER,
            short_names=_names(short),
            categories=_names(categories),
            has_status=any(part.name == "status" for part in parts),
        ),
        verbs=_verbs(verbs),
        subresources=parts,
    )


def _subresource(text: str) -> Subresource:
    name, kind, verbs = text.split(":")
    *group_version, kind = kind.split("/")
    group, version = group_version or ("", "")
    return Subresource(name=name, group=group, version=version, kind=kind, verbs=_verbs(verbs))


def _names(text: str) -> tuple[str, ...]:
    return () if text == "-" else tuple(text.split(","))


def _verbs(letters: str) -> tuple[str, ...]:
    return tuple(sorted(_VERBS[letter] for letter in letters))


SERVED: tuple[Served, ...] = tuple(_served(row) for row in _ROWS.strip().splitlines())
"""Every built-in resource."""

BY_RESOURCE: dict[str, Served] = {f"{one.kind.resource}/{one.kind.version}": one for one in SERVED}
"""The same by `plural.group/version`."""
