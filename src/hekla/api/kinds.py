"""Every family of kinds, so that importing this module fills `hekla.api.meta.KINDS`."""

from hekla.api import (
    admissionregistration,
    apiextensions,
    apps,
    autoscaling,
    batch,
    coordination,
    core,
    csi,
    discovery,
    events,
    networking,
    nodes,
    pods,
    policy,
    rbac,
    scheduling,
    storage,
)

FAMILIES = (
    admissionregistration,
    apiextensions,
    apps,
    autoscaling,
    batch,
    coordination,
    core,
    csi,
    discovery,
    events,
    networking,
    nodes,
    pods,
    policy,
    rbac,
    scheduling,
    storage,
)
"""The modules that declare kinds."""
