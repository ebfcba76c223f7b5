"""The headers of a request as a mapping that is made when somebody first looks: most requests are routed by their body."""

from collections.abc import Iterator, Mapping


class RequestHeaders(Mapping[str, str]):
    """Names in lower case; of a name that came more than once the values are joined, as HTTP has it."""

    __slots__ = ("_lines", "_read")

    def __init__(self, lines: bytes) -> None:
        self._lines = lines
        self._read: dict[str, str] | None = None

    def _all(self) -> dict[str, str]:
        if self._read is None:
            self._read = {}
            for line in self._lines.split(b"\r\n")[:-1]:
                name, _, value = line.decode("latin-1").partition(":")
                name, value = name.lower(), value.strip(" \t")
                self._read[name] = f"{self._read[name]}, {value}" if name in self._read else value
        return self._read

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
