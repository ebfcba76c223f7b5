"""The files of `hekla monitoring`: what they name, and that nobody else's file is written."""

import os

import pytest
import yaml

from hekla.app.data_directory import DataDirectory, Running
from hekla.app.monitoring.files import write_monitoring

SECRET = "sk-hekla-0123456789"


@pytest.fixture
def platform(tmp_path):
    """A data directory with a router."""
    root = tmp_path / "platform"
    root.mkdir()
    (root / "router.url").write_text("http://127.0.0.1:8080\n")
    (root / "router.keys").write_text(f"# who may ask\nadmin: {SECRET}\nother: sk-other\n")
    return DataDirectory(root)


def running(**told):
    return Running(pid=1, start_ticks=1, url="https://127.0.0.1:6443", version="0.1.0", **told)


def test_prometheus_is_told_where_to_read_with_which_keys(platform, tmp_path):
    written = write_monitoring(platform, running(), tmp_path / "watch")
    assert all(path.is_file() for path in written)
    configuration = yaml.safe_load((tmp_path / "watch/prometheus.yml").read_text())
    api, router = configuration["scrape_configs"]
    assert api["static_configs"] == [{"targets": ["127.0.0.1:6443"]}]
    assert router["static_configs"] == [{"targets": ["127.0.0.1:8080"]}]
    key = tmp_path / "watch/router.key"
    assert router["authorization"]["credentials_file"] == str(key)
    assert key.read_text() == SECRET
    assert key.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "watch/rules.yml").stat().st_mode & 0o777 == 0o644


def test_a_platform_without_a_router_has_one_page(platform, tmp_path):
    platform.router_url.unlink()
    write_monitoring(platform, running(), tmp_path / "watch")
    assert len(yaml.safe_load((tmp_path / "watch/prometheus.yml").read_text())["scrape_configs"]) == 1
    assert not (tmp_path / "watch/router.key").exists()


def test_nobody_is_called_for_want_of_what_the_platform_goes_without(platform, tmp_path):
    write_monitoring(platform, running(without=["scheduler", "workloads"]), tmp_path / "watch")
    groups = yaml.safe_load((tmp_path / "watch/rules.yml").read_text())["groups"]
    assert [group["name"] for group in groups] == ["hekla-router", "hekla-agents"]


def test_a_link_in_the_directory_leads_nowhere(platform, tmp_path):
    watch, victim = tmp_path / "watch", tmp_path / "victim.rc"
    watch.mkdir()
    victim.write_text("mine")
    for name in ("router.key", "rules.yml"):
        (watch / name).symlink_to(victim)
    write_monitoring(platform, running(), watch)
    assert victim.read_text() == "mine"
    assert not (watch / "router.key").is_symlink()


def test_a_key_that_was_somebody_elses_file_becomes_ours_alone(platform, tmp_path):
    watch = tmp_path / "watch"
    watch.mkdir()
    (watch / "router.key").write_text("old")
    with open(watch / "router.key") as spy:
        write_monitoring(platform, running(), watch)
        assert SECRET not in spy.read()
    assert (watch / "router.key").stat().st_uid == os.getuid()


def test_writing_again_leaves_no_scraps(platform, tmp_path):
    first = write_monitoring(platform, running(), tmp_path / "watch")
    assert write_monitoring(platform, running(), tmp_path / "watch") == first
    assert sorted(path for path in (tmp_path / "watch").rglob("*") if path.is_file()) == sorted(first)
