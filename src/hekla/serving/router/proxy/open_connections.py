"""How many connections to an engine are open or being opened, whoever holds them: counted before one is begun, so that all together keep to one bound."""

import asyncio
import ctypes
from collections.abc import Callable


class OpenConnections(ctypes.Structure):
    """To one address. The count is a word in memory, as the fast lane's code closes its connections by itself (`lane/`)."""

    _fields_ = (("count", ctypes.c_int64),)

    count: int

    async def take(self, bound: int, make_room: Callable[[], None]) -> bool:
        """Count one more, if that is within the bound; at the bound one that is kept unused gives way."""
        if self.count >= bound:
            make_room()
            await asyncio.sleep(0)  # a transport closes in the loop's next turn
        if self.count >= bound:
            return False
        self.count += 1
        return True

    def give_back(self) -> None:
        """One is closed, or was not opened."""
        self.count -= 1
        assert self.count >= 0, "a connection was given back twice"
