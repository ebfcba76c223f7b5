"""Which volumes of a driver are attached where: a volume that several pods of a node mount is attached once."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class Attachments:
    """Who has each volume of one driver attached, by the node's domain."""

    __slots__ = ("_users",)

    def __init__(self) -> None:
        self._users: dict[str, Counter[int]] = {}

    def change(self, volumes: Iterable[str], domain: int, sign: int) -> int:
        """Somebody who mounts these came to a node, or with -1 left it: by how much the number of volumes there changes."""
        changed = 0
        for volume in volumes:
            users = self._users.setdefault(volume, Counter())
            before = users[domain]
            users[domain] += sign
            assert users[domain] >= 0, f"volume {volume} is attached less than never"
            changed += (users[domain] > 0) - (before > 0)
            if not users[domain]:
                del users[domain]
                if not users:
                    del self._users[volume]
        return changed

    def there(self, volumes: Iterable[str], domains: int) -> NDArray[np.int64]:
        """How many of these are attached already.  # [domain]"""
        count = np.zeros(domains, np.int64)
        for volume in volumes:
            for domain in self._users.get(volume, ()):
                count[domain] += 1
        return count
