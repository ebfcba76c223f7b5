"""Amounts in base units as people read them: `1500m` cpu, `4Gi` of memory, 8 GPUs."""

from collections.abc import Mapping

from hekla.quota.amounts import told

__all__ = ["all_told", "told"]


def all_told(amounts: Mapping[str, int]) -> dict[str, str]:
    """Amounts by resource in order of name; what is zero is left out."""
    return {name: told(name, amount) for name, amount in sorted(amounts.items()) if amount}
