"""The labels by which everything of an installation is found."""

from hekla import __version__


def labels_of(component: str) -> dict[str, str]:
    """Those of one component, or of what belongs to all if it is empty."""
    shared = {"app.kubernetes.io/name": "hekla", "app.kubernetes.io/version": __version__}
    return {**shared, "app.kubernetes.io/component": component} if component else shared
