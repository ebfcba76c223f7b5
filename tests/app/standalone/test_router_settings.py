import pytest

from hekla.app.standalone.router_process import RouterSettingsError, router_settings


@pytest.mark.parametrize("name", ["port", "metrics_port", "debug_port"])
def test_a_port_that_is_none_is_refused(name):
    with pytest.raises(RouterSettingsError, match=f"--{name.replace('_', '-')} is 65536; a port lies between"):
        router_settings({name: 65536}, {})


def test_metrics_and_debugging_may_do_without_a_port_and_requests_may_not():
    settings = router_settings({"metrics_port": -1, "debug_port": -1}, {})
    assert (settings.metrics_port, settings.debug_port) == (-1, -1)
    for name, least in (("port", -1), ("metrics_port", -2), ("debug_port", -2)):
        with pytest.raises(RouterSettingsError, match=f"is {least}; a port lies between 0 and 65535"):
            router_settings({name: least}, {})
