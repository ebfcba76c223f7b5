"""The reference page of plug-ins names what there is, and nothing else."""

import re
from pathlib import Path

from hekla.placement.framework import PLUGINS
from hekla.placement.registry import load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "scheduler-plugins.md"


def test_the_page_lists_every_plugin_once_in_order() -> None:
    load()
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text().partition("## ")[0], re.MULTILINE)
    assert rows == sorted(PLUGINS)
