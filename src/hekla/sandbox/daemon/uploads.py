"""Files in the body of a request: parts of a multipart form, or the body itself; piece by piece, so that no file is ever held whole."""

from __future__ import annotations

import gzip
import re
import zlib
from typing import TYPE_CHECKING

from hekla.sandbox.daemon.http import HttpError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hekla.sandbox.daemon.http import Request

MOST_PARTS = 1024
LONGEST_PART_HEAD = 16 * 1024
LONGEST_FIELD = 64 * 1024
_BOUNDARY = re.compile(r'boundary="?([^";,]{1,200})"?', re.IGNORECASE)
_NAME = re.compile(r'[; ]name="([^"]*)"|[; ]name=([^;"]+)', re.IGNORECASE)
_FILE_NAME = re.compile(r'filename="((?:[^"\\]|\\.)*)"|filename=([^;"]+)', re.IGNORECASE)


class Part:
    """One part of a form."""

    def __init__(self, name: str, file_name: str, form: Form) -> None:
        self.name = name
        self.file_name = file_name
        """Empty: a field and no file."""
        self._form = form

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its content; must be read to the end before the next part."""
        async for piece in self._form.content():
            yield piece

    async def text(self) -> str:
        """The content of a field."""
        data = b""
        async for piece in self.pieces():
            data += piece
            if len(data) > LONGEST_FIELD:
                raise HttpError(
                    413, f'the field "{self.name}" has more than {LONGEST_FIELD} bytes', "resource_exhausted"
                )
        return data.decode("utf-8", "replace")


class Form:
    """A multipart form as it comes."""

    def __init__(self, request: Request) -> None:
        found = _BOUNDARY.search(request.headers.get("content-type", ""))
        if found is None:
            raise HttpError(400, "the form has no boundary", "invalid_argument")
        self._mark = b"\r\n--" + found[1].encode("latin-1")
        self._pieces = _decoded(request).__aiter__()
        self._data = b"\r\n"  # so that the first boundary looks like the others
        self._is_inside = False

    async def parts(self) -> AsyncIterator[Part]:
        """Part by part."""
        for _ in range(MOST_PARTS):
            async for _ in self.content():  # what nobody wanted
                continue
            head = await self._head()
            if head is None:
                return
            name, file_name = _NAME.search(head), _FILE_NAME.search(head)
            self._is_inside = True
            yield Part(_text(name), _text(file_name), self)
        raise HttpError(413, f"the form has more than {MOST_PARTS} parts", "resource_exhausted")

    async def content(self) -> AsyncIterator[bytes]:
        """The content up to the next boundary."""
        while self._is_inside:
            at = self._data.find(self._mark)
            if at >= 0:
                piece, self._data, self._is_inside = self._data[:at], self._data[at:], False
            else:
                keep = len(self._mark) - 1
                piece, self._data = self._data[:-keep], self._data[-keep:]
                if not piece and not await self._more():
                    raise HttpError(400, "the form ended early", "invalid_argument")
            if piece:
                yield piece

    async def _head(self) -> str | None:
        """The headers of the next part; None: there is none."""
        while (at := self._data.find(self._mark)) < 0 or len(self._data) < at + len(self._mark) + 2:
            if not await self._more():
                raise HttpError(400, "the form ended early", "invalid_argument")
        start = at + len(self._mark)
        if self._data[start : start + 2] == b"--":
            while await self._more():
                self._data = b""
            return None
        while (end := self._data.find(b"\r\n\r\n", start)) < 0:
            if len(self._data) - start > LONGEST_PART_HEAD or not await self._more():
                raise HttpError(400, "a part of the form has no end of its head", "invalid_argument")
        head = self._data[start:end].decode("utf-8", "surrogateescape")
        self._data = self._data[end + 4 :]
        return next((line for line in head.split("\r\n") if line.lower().startswith("content-disposition:")), "")

    async def _more(self) -> bool:
        try:
            self._data += await self._pieces.__anext__()
        except StopAsyncIteration:
            return False
        return True


async def parts_of(request: Request) -> AsyncIterator[tuple[str, AsyncIterator[bytes]]]:
    """The files that a request brings: their names (empty for a body that is one) and contents."""
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        async for part in Form(request).parts():
            if part.file_name or part.name == "file":
                yield part.file_name, part.pieces()
    else:
        yield "", _decoded(request)


async def _decoded(request: Request) -> AsyncIterator[bytes]:
    """The body, unpacked if it is gzip."""
    if request.headers.get("content-encoding", "").lower() != "gzip":
        async for piece in request.body.pieces():
            yield piece
        return
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        async for piece in request.body.pieces():
            while piece:
                yield unpack.decompress(
                    piece, 1024 * 1024
                )  # a bomb comes piece by piece, and is stopped by what the file may hold
                piece = unpack.unconsumed_tail
    except (zlib.error, gzip.BadGzipFile) as error:
        raise HttpError(400, f"the body is not gzip: {error}", "invalid_argument") from error


def _text(found: re.Match[str] | None) -> str:
    if found is None:
        return ""
    return re.sub(r"\\(.)", r"\1", found[1] if found[1] is not None else found[2].strip())
