"""How many files a long-running process may have open: as many as the system lets it. Containers keep the number that it was started with.

Shells and systemd give 1,024, for programs that still call `select`; a platform has a descriptor for each client, watch and container.
"""

import resource
from typing import Final

MOST: Final = 1 << 20
"""Where the system sets no bound: Linux itself has this for one process unless it is told otherwise."""
FOUND: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""What this process was started with; `resource.RLIM_INFINITY` for no bound."""


def raise_open_files() -> None:
    """Have the soft limit be the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
