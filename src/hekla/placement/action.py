"""Declares actions: passes over the waiting jobs that yield decisions. The configuration file names them in order.

@action
def allocate(session: Session) -> Iterator[Decision]: ...
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hekla.placement.session import Session
    from hekla.placement.statement import Decision

Action = Callable[["Session"], Iterator["Decision"]]

ACTIONS: dict[str, Action] = {}
"""Every action by its name; filled as `registry.py` imports the folder."""


def action(function: Action) -> Action:
    """Declare the function below as an action under its own name."""
    ACTIONS[function.__name__] = function
    return function
