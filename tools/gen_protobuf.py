"""Write src/hekla/api/kubernetes/protobuf.json.gz: the field numbers of Kubernetes' own kinds.

    python tools/gen_protobuf.py /usr/bin/kubectl

Every Go program that speaks Kubernetes' protobuf carries the descriptors of its messages, gzipped, as the protobuf
library of Go requires. kubectl, which Debian and Kubernetes both distribute, carries those of all of its groups; they are
found by gzip's signature and read with the few lines of protobuf that descriptors need. Only numbers, names and types
are kept, and only of messages that `hekla.api.schema` knows. `hekla.apiserver.protobuf` reads the result.
"""

import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from hekla.api.schema import definitions  # noqa: E402  # the path is set above

TARGET = ROOT / "src/hekla/api/kubernetes/protobuf.json.gz"
GZIP = re.compile(b"\x1f\x8b\x08")
LARGEST_DESCRIPTOR = 4 * 1024 * 1024

# descriptor.proto, as protobuf's own documentation has it
FILE_NAME, FILE_PACKAGE, FILE_MESSAGE = 1, 2, 4
MESSAGE_NAME, MESSAGE_FIELD, MESSAGE_NESTED = 1, 2, 3
FIELD_NAME, FIELD_NUMBER, FIELD_LABEL, FIELD_TYPE, FIELD_TYPE_NAME = 1, 3, 4, 5, 6
REPEATED = 3
SCALARS = {
    1: "double",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "uint32",
}

Field = tuple[str, str, str]


def descriptors(program: bytes) -> Iterator[bytes]:
    """Every gzipped file descriptor of a generated.proto in an executable."""
    for found in GZIP.finditer(program):
        try:
            text = zlib.decompressobj(31).decompress(program[found.start() : found.start() + LARGEST_DESCRIPTOR])
        except zlib.error:
            continue
        if text[:1] == b"\n" and b"/generated.proto" in text[:200]:
            yield text


def parts(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(field number, value) of a message that has varints and byte strings only, as descriptors do."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        value, at = varint(message, at)
        if tag & 7 == 2:
            yield tag >> 3, message[at : at + value]
            at += value
        else:
            yield tag >> 3, value


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where the next begins."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def texts(message: bytes, number: int) -> list[bytes]:
    """All byte strings of one field."""
    return [value for found, value in parts(message) if found == number and isinstance(value, bytes)]


def schema_name(full: str) -> str:
    """`k8s.io.api.core.v1.Pod` as the schemas call it."""
    return (
        full.lstrip(".").replace("k8s.io.", "io.k8s.", 1).replace("apiextensions_apiserver", "apiextensions-apiserver")
    )


def messages(file: bytes) -> Iterator[tuple[str, dict[str, Field]]]:
    """Every message of a file: its full name, and (name, type, cardinality) by number."""
    package = texts(file, FILE_PACKAGE)[0].decode()
    for message in texts(file, FILE_MESSAGE):
        name = f"{package}.{texts(message, MESSAGE_NAME)[0].decode()}"
        maps = {f".{name}.{texts(n, MESSAGE_NAME)[0].decode()}": n for n in texts(message, MESSAGE_NESTED)}
        yield schema_name(name), dict(field(one, maps) for one in texts(message, MESSAGE_FIELD))


def field(text: bytes, maps: dict[str, bytes]) -> tuple[str, Field]:
    """A field's number, and its name, type and cardinality; a map is a nested message of keys and values."""
    said = dict(parts(text))
    name, number = bytes(said[FIELD_NAME]).decode(), str(said[FIELD_NUMBER])  # type: ignore[arg-type]  # a byte string by the descriptor's own definition
    type_name = bytes(said.get(FIELD_TYPE_NAME, b"")).decode()  # type: ignore[arg-type]  # likewise
    if type_name in maps:
        _, (_, kind, _) = field(texts(maps[type_name], MESSAGE_FIELD)[1], {})
        return number, (name, kind, "map")
    kind = schema_name(type_name) if type_name else SCALARS[int(said[FIELD_TYPE])]
    return number, (name, kind, "repeated" if said.get(FIELD_LABEL) == REPEATED else "optional")


def main(programs: list[str]) -> None:
    """Read all, keep what is reachable, write it."""
    known: dict[str, dict[str, Field]] = {}
    for program in programs:
        for file in descriptors(Path(program).read_bytes()):
            known.update(messages(file))
    waiting, kept = [name for name in definitions() if name in known], {}
    while waiting:
        name = waiting.pop()
        if name in kept or name not in known:
            continue
        kept[name] = known[name]
        waiting += [kind for _name, kind, _many in known[name].values()]
    text = json.dumps(kept, separators=(",", ":"), sort_keys=True).encode()
    TARGET.write_bytes(gzip.compress(text, mtime=0))
    print(f"{TARGET.relative_to(ROOT)}: {len(kept)} messages, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
