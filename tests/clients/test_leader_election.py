import threading

import pytest
from kubernetes import config
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

PATIENCE_S = 60


class Candidate:
    """Leads until it is told to fail; its renewals end when it does."""

    def __init__(self, lock, lease_s=3):
        self.leads, self._fails = threading.Event(), threading.Event()
        election = electionconfig.Config(
            lock,
            lease_duration=lease_s,
            renew_deadline=2,
            retry_period=1,
            onstarted_leading=self._lead,
            onstopped_leading=None,
        )
        self._election = leaderelection.LeaderElection(election)
        self._thread = threading.Thread(target=self._election.run, daemon=True)

    def start(self):
        self._thread.start()
        return self

    def _lead(self):
        self.leads.set()
        self._fails.wait(PATIENCE_S)
        raise RuntimeError("the leader died")

    def die(self):
        self._fails.set()
        self._thread.join(PATIENCE_S)


@pytest.mark.slow
@pytest.mark.parametrize("lock", [ConfigMapLock, LeaseLock])
def test_one_leads_and_the_other_follows_when_it_dies(platform, namespace, lock, monkeypatch):
    config.load_kube_config(str(platform.kubeconfig))
    first = Candidate(lock("leader", namespace, "first")).start()
    assert first.leads.wait(PATIENCE_S)
    second = Candidate(lock("leader", namespace, "second")).start()
    assert not second.leads.is_set()
    first.die()
    assert second.leads.wait(PATIENCE_S)
    second.die()
