"""Clusters thrown by dice for two schedulers to decide about: nodes, pods that run there, and pods that come.

Whatever kube-scheduler looks at when it filters and scores is there with some chance: requests of all kinds and none, selectors,
taints, affinities of nodes and pods, spreads, ports and images. Everything follows from the seed.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from hekla.api.meta import Document

NAMESPACES = {"near": {"team": "a"}, "far": {"team": "b"}, "other": {}}
LABELS = {
    "zone": ("a", "b", "c"), "disk": ("ssd", "hdd"), "generation": ("1", "5", "10", "x"),
    "topology.kubernetes.io/zone": ("a", "b"), "missing": ("1",),
}  # fmt: skip
TOPOLOGIES = ("kubernetes.io/hostname", "zone", "zone", "topology.kubernetes.io/zone", "missing")
TAINTS = (("k1", "v1"), ("k1", "v2"), ("k2", ""), ("k3", "7"))
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
IMAGES = {
    "small:1": 10_000_000,
    "usual:1": 300_000_000,
    "registry/large:latest": 900_000_000,
    "plain:latest": 50_000_000,
}
ASKED_IMAGES = ("small:1", "usual:1", "registry/large", "plain")
EVERYTHING = ({"operator": "Exists"},)


class Dice:
    """A world of its own for each seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def nodes(self) -> list[tuple[Document, Document]]:
        """Objects and statuses of two to six nodes."""
        return [self._node(f"n{number}") for number in range(self._random.randint(2, 6))]

    def running(self, nodes: Sequence[tuple[Document, Document]]) -> list[Document]:
        """Pods that are bound, and tolerate everything, or the controllers would evict them meanwhile."""
        found = []
        for number in range(self._random.randint(0, 10)):
            pod = self._pod(f"old-{number}")
            pod["spec"] |= {"nodeName": self._one_of(nodes)[0]["metadata"]["name"], "tolerations": list(EVERYTHING)}
            found.append(pod)
        return found

    def leaving(self, running: Sequence[Document]) -> list[Document]:
        """Some of those that run: they are on their way out, and take their time."""
        return [pod for pod in running if self._maybe(0.15)]

    def coming(self, count: int) -> list[Document]:
        """Pods that want a node, each for itself."""
        return [self._choosy(self._pod(f"new-{number}")) for number in range(count)]

    def _maybe(self, chance: float) -> bool:
        return self._random.random() < chance

    def _one_of(self, *choices: Any) -> Any:
        return self._random.choice(choices[0] if len(choices) == 1 else choices)

    def _node(self, name: str) -> tuple[Document, Document]:
        labels = {key: self._one_of(values) for key, values in LABELS.items() if key != "missing" and self._maybe(0.7)}
        spec: Document = {"unschedulable": self._maybe(0.1)}
        if self._maybe(0.5):
            chosen = self._random.sample(TAINTS, self._random.randint(1, 2))
            taints = [{"key": key, "value": value, "effect": self._one_of(EFFECTS)} for key, value in chosen]
            spec["taints"] = list({(one["key"], one["effect"]): one for one in taints}.values())
        amounts = {
            "cpu": self._one_of("4", "8", "3500m"), "memory": self._one_of("1Gi", "4Gi", "2000000000"),
            "pods": self._one_of("3", "6", "20"), "ephemeral-storage": self._one_of("1Gi", "10Gi"),
        }  # fmt: skip
        if self._maybe(0.5):
            amounts["example.com/gpu"] = self._one_of("0", "1", "4")
        status = {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
            "images": [{"names": [image], "sizeBytes": size} for image, size in IMAGES.items() if self._maybe(0.4)],
        }  # fmt: skip
        return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}, "spec": spec}, status

    def _pod(self, name: str) -> Document:
        labels = {"app": self._one_of("x", "y", "z")} if self._maybe(0.8) else {}
        if self._maybe(0.5):
            labels["tier"] = self._one_of("1", "2")
        spec: Document = {"terminationGracePeriodSeconds": 0}
        spec["containers"] = [self._container(f"c{number}") for number in range(self._one_of(1, 1, 2))]
        if self._maybe(0.15):
            first = self._container("first")
            spec["initContainers"] = [first | ({"restartPolicy": "Always"} if self._maybe(0.5) else {})]
        if self._maybe(0.3):
            spec["affinity"] = {
                kind: self._company() for kind in ("podAffinity", "podAntiAffinity") if self._maybe(0.6)
            }
        namespace = self._one_of("near", "near", "far", "other")
        return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}

    def _container(self, name: str) -> Document:
        requests: Document = {}
        if self._maybe(0.7):
            requests["cpu"] = self._one_of("50m", "100m", "500m", "1", "1500m", "0", "0.0001")
        if self._maybe(0.6):
            requests["memory"] = self._one_of("100Mi", "300Mi", "200M", "1Gi", "0", "1")
        if self._maybe(0.06):
            requests["ephemeral-storage"] = self._one_of("500Mi", "2Gi")
        limits = {"example.com/gpu": self._one_of("1", "2")} if self._maybe(0.06) else {}
        found = {
            "name": name,
            "image": self._one_of(ASKED_IMAGES),
            "resources": {"requests": requests, "limits": limits},
        }
        if self._maybe(0.12):
            found["ports"] = [{
                "containerPort": 80, "hostPort": self._one_of(80, 81), "protocol": self._one_of("TCP", "UDP"),
                "hostIP": self._one_of("", "0.0.0.0", "10.0.0.1", "10.0.0.2"),
            }]  # fmt: skip
        return found

    def _choosy(self, pod: Document) -> Document:
        spec = pod["spec"]
        if self._maybe(0.1):
            key = self._one_of(tuple(LABELS))
            spec["nodeSelector"] = {key: self._one_of(LABELS[key])}
        if self._maybe(0.25):
            required = {"nodeSelectorTerms": [self._node_term() for _ in range(self._one_of(1, 2))]}
            liked = [{"weight": self._random.randint(1, 100), "preference": self._node_term()} for _ in range(2)]
            spec.setdefault("affinity", {})["nodeAffinity"] = {
                **({"requiredDuringSchedulingIgnoredDuringExecution": required} if self._maybe(0.6) else {}),
                **({"preferredDuringSchedulingIgnoredDuringExecution": liked} if self._maybe(0.6) else {}),
            }
        if self._maybe(0.4):
            spec["tolerations"] = [self._toleration() for _ in range(self._one_of(1, 2))]
        if self._maybe(0.4):
            spreads = [self._spread() for _ in range(self._one_of(1, 2))]
            spec["topologySpreadConstraints"] = list(
                {(one["topologyKey"], one["whenUnsatisfiable"]): one for one in spreads}.values()
            )
        return pod

    def _node_term(self) -> Document:
        operator = self._one_of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
        key = "generation" if operator in {"Gt", "Lt"} else self._one_of(tuple(LABELS))
        values = {"In": LABELS[key][:2], "NotIn": LABELS[key][:1], "Gt": ("3",), "Lt": ("7",)}.get(operator, ())
        term: Document = {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}
        if self._maybe(0.15):
            term["matchFields"] = [
                {"key": "metadata.name", "operator": self._one_of("In", "NotIn"), "values": [self._one_of("n0", "n1")]}
            ]
        return term

    def _toleration(self) -> Document:
        key, value = self._one_of(TAINTS)
        found = dict(self._one_of(EVERYTHING[0], {"key": key, "operator": "Exists"}, {"key": key, "value": value}))
        return found | ({"effect": self._one_of(EFFECTS)} if self._maybe(0.5) else {})

    def _company(self) -> Document:
        liked = [{"weight": self._random.randint(1, 100), "podAffinityTerm": self._pod_term()} for _ in range(2)]
        required = [self._pod_term() for _ in range(self._one_of(1, 2))]
        return {
            **({"requiredDuringSchedulingIgnoredDuringExecution": required} if self._maybe(0.6) else {}),
            **({"preferredDuringSchedulingIgnoredDuringExecution": liked} if self._maybe(0.5) else {}),
        }

    def _pod_term(self) -> Document:
        term = {"topologyKey": self._one_of(TOPOLOGIES), "labelSelector": self._selector()}
        if self._maybe(0.2):
            term["namespaces"] = self._random.sample(tuple(NAMESPACES), 2)
        if self._maybe(0.2):
            term["namespaceSelector"] = self._one_of({}, {"matchLabels": {"team": "a"}}, {"matchLabels": {"team": "q"}})
        return term

    def _spread(self) -> Document:
        found = {
            "maxSkew": self._one_of(1, 1, 2), "topologyKey": self._one_of(TOPOLOGIES), "labelSelector": self._selector(),
            "whenUnsatisfiable": self._one_of("DoNotSchedule", "ScheduleAnyway"),
            "nodeAffinityPolicy": self._one_of("Honor", "Ignore"), "nodeTaintsPolicy": self._one_of("Honor", "Ignore"),
        }  # fmt: skip
        if self._maybe(0.25) and found["whenUnsatisfiable"] == "DoNotSchedule":
            found["minDomains"] = self._one_of(1, 3, 5)
        return found

    def _selector(self) -> Document:
        found: Document = {"matchLabels": {"app": self._one_of("x", "y", "z")}} if self._maybe(0.6) else {}
        if self._maybe(0.4):
            found["matchExpressions"] = [
                self._one_of(
                    {"key": "app", "operator": "In", "values": ["x", "y"]}, {"key": "tier", "operator": "Exists"},
                    {"key": "tier", "operator": "DoesNotExist"}, {"key": "app", "operator": "NotIn", "values": ["x"]},
                )
            ]  # fmt: skip
        return found


class FullHouse(Dice):
    """Nodes that are full of pods of several priorities, and pods that come for which some of them may have to go."""

    PRIORITIES = {"low": 1, "middle": 10, "high": 100, "patient": 100, "highest": 1000}
    """Pods of `patient` have nobody make way for them."""

    def nodes(self) -> list[tuple[Document, Document]]:
        """Plain ones, of which all that differs is their size."""
        found = []
        for number in range(self._random.randint(2, 4)):
            amounts = {"cpu": self._one_of("2", "3", "4"), "memory": "8Gi", "pods": self._one_of("3", "10", "10")}
            node, status = self._node(f"n{number}")
            node["spec"] = {"taints": node["spec"].get("taints", [])[:1]} if self._maybe(0.2) else {}
            found.append((node, status | {"capacity": amounts, "allocatable": amounts, "images": []}))
        return found

    def running(self, nodes: Sequence[tuple[Document, Document]]) -> list[Document]:
        """On each node as many as it has room for."""
        found = list[Document]()
        for node, status in nodes:
            left, places = int(status["allocatable"]["cpu"]) * 2, int(status["allocatable"]["pods"])
            while left > 0 and places > 0 and not (self._maybe(0.08)):
                halves = min(left, self._one_of(1, 2, 2, 4))
                pod = self._of_priority(f"old-{len(found)}", halves, self._one_of("low", "low", "middle", "high"))
                pod["spec"] |= {"nodeName": node["metadata"]["name"], "tolerations": list(EVERYTHING)}
                found.append(pod)
                left, places = left - halves, places - 1
        return found

    def coming(self, count: int) -> list[Document]:
        """Pods of which most find no room."""
        found = []
        for number in range(count):
            pod = self._of_priority(f"new-{number}", self._one_of(1, 2, 2, 3, 4, 6), self._one_of(*self.PRIORITIES))
            if self._maybe(0.25):
                pod["spec"]["nodeSelector"] = {"zone": self._one_of(LABELS["zone"])}
            if self._maybe(0.3):
                pod["spec"]["topologySpreadConstraints"] = [self._spread()]
            found.append(pod)
        return found

    def _of_priority(self, name: str, halves: int, of: str) -> Document:
        labels = {"app": self._one_of("x", "y", "z")}
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": f"{halves * 500}m"}}}
        if self._maybe(0.12):
            container["ports"] = [{"containerPort": 80, "hostPort": 80}]
        spec: Document = {
            "terminationGracePeriodSeconds": 0, "containers": [container], "priorityClassName": of,
        }  # fmt: skip
        if self._maybe(0.2):
            spec["affinity"] = {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [self._pod_term()]}
            }
        return {"metadata": {"name": name, "namespace": "near", "labels": labels}, "spec": spec}


class Storeroom(Dice):
    """Nodes, and pods with claims to volumes of all kinds; every pod comes with volumes, claims and classes of its own."""

    def nodes(self) -> list[tuple[Document, Document]]:
        """Roomy ones, in zones."""
        found = []
        for number in range(self._random.randint(2, 4)):
            node, status = self._node(f"n{number}")
            node["spec"] = {}
            amounts = {"cpu": "8", "memory": "8Gi", "pods": "20"}
            found.append((node, status | {"capacity": amounts, "allocatable": amounts, "images": []}))
        return found

    def ask(self, nodes: Sequence[tuple[Document, Document]]) -> tuple[Document, dict[str, list[Document]]]:
        """A pod, and what it needs by kind; `NAME` stands where each ask puts its own."""
        around: dict[str, list[Document]] = {"StorageClass": [], "PersistentVolume": [], "PersistentVolumeClaim": []}
        spec: Document = {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [],
        }
        for number in range(self._one_of(1, 1, 2)):
            claim = f"NAME-{number}"
            self._claim(claim, nodes, around)
            spec["volumes"].append({"name": f"v{number}", "persistentVolumeClaim": {"claimName": claim}})
        if self._maybe(0.2):
            spec["nodeSelector"] = {"zone": self._one_of(LABELS["zone"])}
        return {"metadata": {"name": "NAME", "namespace": "near"}, "spec": spec}, around

    def _claim(self, name: str, nodes: Sequence[tuple[Document, Document]], around: dict[str, list[Document]]) -> None:
        mode = self._one_of("ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany")
        asked = {"accessModes": [mode], "resources": {"requests": {"storage": self._one_of("1Gi", "5Gi")}}}
        claim: Document = {"metadata": {"name": name, "namespace": "near"}, "spec": {**asked, "storageClassName": name}}
        kind = self._one_of(
            "bound",
            "free",
            "free",
            "made",
            "missing" if self._maybe(0.3) else "free",
            "immediate" if self._maybe(0.3) else "bound",
        )
        waits = "Immediate" if kind in {"bound", "immediate"} else "WaitForFirstConsumer"
        provider = "example.com/none" if kind == "made" else "kubernetes.io/no-provisioner"
        storage_class: Document = {"metadata": {"name": name}, "provisioner": provider, "volumeBindingMode": waits}
        if kind == "made" and self._maybe(0.6):
            values = self._random.sample(LABELS["zone"], self._random.randint(1, 2))
            storage_class["allowedTopologies"] = [{"matchLabelExpressions": [{"key": "zone", "values": values}]}]
        around["StorageClass"].append(storage_class)
        if kind == "missing":
            return
        around["PersistentVolumeClaim"].append(claim)
        for number in range({"bound": 1, "free": self._random.randint(0, 3)}.get(kind, 0)):
            volume = self._volume(f"{name}-{number}", name, nodes)
            if kind == "bound":
                volume["spec"] |= {"accessModes": [mode], "capacity": {"storage": "9Gi"}}
                volume["spec"]["claimRef"] = {"name": name, "namespace": "near"}
                claim["spec"]["volumeName"] = volume["metadata"]["name"]
            around["PersistentVolume"].append(volume)

    def _volume(self, name: str, of: str, nodes: Sequence[tuple[Document, Document]]) -> Document:
        spec: Document = {
            "capacity": {"storage": self._one_of("1Gi", "3Gi", "9Gi")}, "storageClassName": of, "hostPath": {"path": "/x"},
            "accessModes": self._one_of(["ReadWriteOnce"], ["ReadWriteOnce", "ReadWriteMany"], ["ReadOnlyMany"]),
            "persistentVolumeReclaimPolicy": "Retain",
        }  # fmt: skip
        if self._maybe(0.8):
            chosen = self._one_of(nodes)[0]["metadata"]["name"]
            term = self._one_of(
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [chosen]},
                {"key": "zone", "operator": self._one_of("In", "NotIn"), "values": [self._one_of(LABELS["zone"])]},
            )
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
        labels = {"topology.kubernetes.io/zone": self._one_of("a", "b")} if self._maybe(0.2) else {}
        return {"metadata": {"name": name, "labels": labels}, "spec": spec}


class Workshop(Storeroom):
    """Nodes with devices of several models, and pods with claims to some of them; every pod's claims and classes are its own."""

    DRIVER = "devices.example.com"

    def slices(self, nodes: Sequence[tuple[Document, Document]]) -> list[Document]:
        """What the driver offers: up to four devices on a node, some of them tainted."""
        found = []
        for node, _ in nodes:
            name = node["metadata"]["name"]
            devices = [self._device(f"d{number}") for number in range(self._random.randint(0, 4))]
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": self.DRIVER, "nodeName": name, "pool": pool, "devices": devices}
            found.append({"metadata": {"name": f"slice-{name}"}, "spec": spec})
        return found

    def ask(self, nodes: Sequence[tuple[Document, Document]]) -> tuple[Document, dict[str, list[Document]]]:
        """A pod with one claim or two."""
        selectors = [self._selector_of_devices()] if self._maybe(0.3) else []
        driver = {"cel": {"expression": f'device.driver == "{self.DRIVER}"'}}
        classes = [{"metadata": {"name": "NAME"}, "spec": {"selectors": [driver, *selectors]}}]
        claims = [self._claim_to_devices(f"NAME-{number}") for number in range(self._one_of(1, 1, 2))]
        spec: Document = {
            "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": f"r{number}", "resourceClaimName": one["metadata"]["name"]} for number, one in enumerate(claims)],
        }  # fmt: skip
        if self._maybe(0.15):
            spec["nodeSelector"] = {"zone": self._one_of(LABELS["zone"])}
        pod = {"metadata": {"name": "NAME", "namespace": "near"}, "spec": spec}
        return pod, {"DeviceClass": classes, "ResourceClaim": claims}

    def _device(self, name: str) -> Document:
        found: Document = {
            "name": name,
            "attributes": {"model": {"string": self._one_of("a", "b")}, "index": {"int": self._random.randint(0, 2)}},
            "capacity": {"memory": {"value": self._one_of("10Gi", "40Gi")}},
        }
        if self._maybe(0.15):
            found["taints"] = [{"key": "worn", "effect": self._one_of("NoSchedule", "None")}]
        return found

    def _claim_to_devices(self, name: str) -> Document:
        requests = [self._request(f"q{number}") for number in range(self._one_of(1, 1, 2))]
        devices: Document = {"requests": requests}
        # kube-scheduler gives a pod up for all nodes where all devices of one do not agree
        takes_all = any(one.get("exactly", {}).get("allocationMode") == "All" for one in requests)
        if not takes_all and self._maybe(0.3):
            attribute = f"{self.DRIVER}/{self._one_of('model', 'index')}"
            # kube-scheduler keeps one value of a request, so that it takes a, b and a of one for three that differ
            counts = [
                each["count"]
                for one in requests
                for each in (one.get("exactly"), *one.get("firstAvailable", ()))
                if each
            ]
            rule = "matchAttribute" if max(counts) > 1 else self._one_of("matchAttribute", "distinctAttribute")
            devices["constraints"] = [{rule: attribute}]
        return {"metadata": {"name": name, "namespace": "near"}, "spec": {"devices": devices}}

    def _request(self, name: str) -> Document:
        if self._maybe(0.25):
            choices = [{"name": f"s{number}", **self._exactly(may_be_all=False)} for number in range(2)]
            return {"name": name, "firstAvailable": choices}
        return {"name": name, "exactly": self._exactly()}

    def _exactly(self, *, may_be_all: bool = True) -> Document:
        found: Document = {"deviceClassName": "NAME"}
        if may_be_all and self._maybe(0.15):
            found["allocationMode"] = "All"
        else:
            found |= {"allocationMode": "ExactCount", "count": self._one_of(1, 1, 2, 3)}
        if self._maybe(0.5):
            found["selectors"] = [self._selector_of_devices()]
        if self._maybe(0.2):
            found["tolerations"] = [{"key": "worn", "operator": "Exists"}]
        return found

    def _selector_of_devices(self) -> Document:
        of = f'"{self.DRIVER}"'
        expression = self._one_of(
            f'device.attributes[{of}].model == "a"', f"device.attributes[{of}].index > 0",
            f'device.capacity[{of}].memory.compareTo(quantity("20Gi")) >= 0', f"has(device.attributes[{of}].missing)",
        )  # fmt: skip
        return {"cel": {"expression": expression}}
