import pytest

from hekla.app.standalone.router_process import RouterSettingsError, router_settings


@pytest.mark.parametrize("name", ["port", "metrics_port", "debug_port"])
def test_a_port_that_is_none_is_refused(name):
    with pytest.raises(RouterSettingsError, match=f"--{name.replace('_', '-')} is 65536; a port lies between"):
        router_settings({name: 65536}, {})
