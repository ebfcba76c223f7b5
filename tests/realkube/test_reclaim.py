"""Room that is taken back between queues on a real Kubernetes, within what disruption budgets permit."""

import json

from hekla.testing.components import Cluster, Component, gang

CONFIGURATION = """
actions: "enqueue, allocate, backfill, preempt, reclaim"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- plugins: [{name: overcommit}, {name: drf, enablePreemptable: false}, {name: predicates}, {name: capacity}, {name: nodeorder}]
"""
QUEUES = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: lends}
spec: {deserved: {cpu: "4"}, reclaimable: true}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: takes}
spec: {deserved: {cpu: "12"}, reclaimable: true}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: lent}
spec: {minAvailable: 2, selector: {matchLabels: {volcano.sh/job-name: lent}}}
"""


def test_a_queue_takes_back_what_it_lent_once_budgets_permit_it_and_nothing_flaps(
    cluster: Cluster, training: dict[str, Component], namespace: str
):
    configuration = json.dumps({"data": {"volcano-scheduler.conf": CONFIGURATION}})
    before = cluster.ours("get", "configmap", "volcano-scheduler-configmap", "-o", "json").json["data"]
    cluster.ours("patch", "configmap", "volcano-scheduler-configmap", "--type=merge", "-p", configuration)
    kubectl, scheduler = cluster.kubectl.within(namespace), training["scheduler"]
    try:
        scheduler.wait_for('event="scheduler configuration taken".*reclaim', timeout_s=60)
        kubectl("apply", "-f", "-", stdin=QUEUES)
        kubectl("apply", "-f", "-", stdin=gang("lent", cpu="7", seconds=1000, queue="lends"))
        cluster.wait(f"vcjob/lent -n {namespace}", "jsonpath={.status.running}=2")
        kubectl("wait", "pdb/lent", "--for=jsonpath={.status.currentHealthy}=2", "--timeout=60s")
        kubectl("apply", "-f", "-", stdin=gang("taken", cpu="5", seconds=1000, queue="takes"))
        cluster.wait(f"vcjob/taken -n {namespace}", "jsonpath={.status.pending}=2")
        kubectl("patch", "pdb", "lent", "--type=merge", "-p", '{"spec":{"minAvailable":0}}')
        cluster.wait(f"vcjob/taken -n {namespace}", "jsonpath={.status.running}=2")
        kubectl(
            "wait", "pods", "-l", "volcano.sh/job-name=lent", "--for=jsonpath={.status.phase}=Pending", "--timeout=60s"
        )
        evicted = scheduler.printed.count("event=evicted")
        assert evicted == 2, "the gang that lends goes whole, once"
        assert not scheduler.refusals
    finally:
        cluster.ours(
            "patch", "configmap", "volcano-scheduler-configmap", "--type=merge", "-p", json.dumps({"data": before})
        )
        kubectl("delete", "vcjob", "--all", "--cascade=foreground", "--timeout=60s")
        cluster.kubectl("delete", "queue", "lends", "takes")
