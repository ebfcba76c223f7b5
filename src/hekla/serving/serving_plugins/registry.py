"""The plug-ins of ModelServings by name."""

from collections.abc import Callable, Mapping, Sequence

from hekla.api.kthena.serving import Plugin, PluginScope
from hekla.api.meta import Document
from hekla.serving.serving_plugins.demo import PodTweaks
from hekla.serving.serving_plugins.lws_standard_labels import LwsLabels
from hekla.serving.serving_plugins.plugin import Decorator, PluginError, ServingPlugin

LWS_LABELS = "lws-standard-labels"

FACTORIES: Mapping[str, Callable[[Document], Decorator]] = {
    "demo-pod-tweaks": PodTweaks.of,
    LWS_LABELS: LwsLabels.of,
}


def plugins_of(wanted: Sequence[Plugin]) -> Sequence[ServingPlugin]:
    """The plug-ins that a ModelServing names, in its order; raises PluginError."""
    return [_plugin(one) for one in wanted]


def _plugin(wanted: Plugin) -> ServingPlugin:
    if wanted.type not in ("", "BuiltIn"):
        raise PluginError(f"plugin {wanted.name} has unsupported type {wanted.type}")
    factory = FACTORIES.get(wanted.name)
    if factory is None:
        raise PluginError(f"plugin {wanted.name} not registered; there are {', '.join(FACTORIES)}")
    try:
        return ServingPlugin(wanted.name, factory(wanted.config or {}), wanted.scope or PluginScope())
    except PluginError as error:
        raise PluginError(f"build plugin {wanted.name}: {error}") from None
