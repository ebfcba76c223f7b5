"""Text to tokens and back without a model: four bytes are a token, and an answer is a row of short words.

Lines and the chat template's marks are cut apart first, and every word of an answer is one token; so a conversation that
comes back with its answer in it has the same tokens as before, and finds its blocks, as with a real tokenizer.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

from hekla.simulation.engine.sequence import Ask

START, END = 0xF800_0000, 0xF800_0001
"""The marks around a chat message. No text begins with such a byte, so that ids stay within 32 bits, as real ones do: routers drop
KV events with larger ones.
"""
MARKS = {START: b"<|im_start|>", END: b"<|im_end|>"}
VOCABULARY = 1 << 32
CHUNK = 4
REST = 0xF8
"""What the first byte of a shorter token is, without its length."""
WORDS = (
    b" ash", b" sea", b" sky", b" ice", b" fog", b" dew", b" sun", b" ore", b" elk", b" fox", b" owl", b" bay",
    b" oak", b" fir", b" mud", b" red", b" old", b" new", b" low", b" raw", b" dim", b" far", b" and", b" but",
    b" for", b" yet", b" nor", b" the", b" its", b" our", b" one", b" two",
)  # fmt: skip

_MARK = re.compile(rb"(<\|im_start\|>|<\|im_end\|>)")


def tokenize(text: str) -> list[int]:
    """The tokens of a text."""
    tokens: list[int] = []
    for piece in _MARK.split(text.encode("utf-8", "surrogatepass")):
        if piece == MARKS[START]:
            tokens.append(START)
        elif piece == MARKS[END]:
            tokens.append(END)
        else:
            for line in piece.splitlines(keepends=True):
                tokens += _chunks(line)
    return tokens


def _chunks(line: bytes) -> Iterator[int]:
    """Four bytes are a number; a shorter rest is one that begins with its length in a byte that no text has."""
    whole = len(line) // CHUNK
    yield from struct.unpack_from(f">{whole}I", line)
    if rest := line[whole * CHUNK :]:
        yield REST + len(rest) << 24 | int.from_bytes(rest)


def detokenize(tokens: Iterable[int]) -> str:
    """The text of tokens; of bytes that are no text, marks of replacement."""
    return b"".join(map(_bytes_of, tokens)).decode("utf-8", "replace")


def _bytes_of(token: int) -> bytes:
    if token in MARKS:
        return MARKS[token]
    length = (token >> 24) - REST
    if 0 < length < CHUNK:
        return (token & 0xFF_FFFF).to_bytes(CHUNK - 1)[CHUNK - 1 - length :]
    return struct.pack(">I", token) if token < 1 << 32 else b"?"


def render_chat(messages: Sequence[tuple[str, str]]) -> str:
    """Messages as the prompt of their answer."""
    said = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return f"{said}<|im_start|>assistant\n"


class Scribe:
    """Writes answers: the same prompt has the same answer. It is the `Writer` of an engine whose tokens are seen."""

    def token(self, ask: Ask, number: int) -> int:
        """The answer's token of that number."""
        if number < len(ask.script):
            return ask.script[number]
        word = WORDS[_mixed(ask.prompt_tokens, *ask.tokens[-2:], number) % len(WORDS)]
        return int.from_bytes(word)

    def next_hash(self, parent: int | None, tokens: Sequence[int], lora: str) -> int:
        """The name of a block; adapters' caches are apart from the first block on."""
        return next_hash(parent if parent is not None else salt_of(lora), tokens)


def natural_length(tokens: Sequence[int], mean: int) -> int:
    """How long the answer to a prompt is by itself: 1 to twice the mean, the same for the same prompt."""
    return 1 + _mixed(len(tokens), *tokens[-3:]) % max(1, 2 * mean - 1)


def salt_of(lora: str, cache_salt: str = "") -> int:
    """What stands before the first block: caches of other adapters and salts never match."""
    return crc32(f"{lora}\0{cache_salt}".encode()) if lora or cache_salt else 0


def hash_blocks(tokens: Sequence[int], block_size: int, salt: int = 0) -> list[int]:
    """The names of all whole blocks."""
    hashes, parent = [], salt
    for first in range(0, len(tokens) - block_size + 1, block_size):
        parent = next_hash(parent, tokens[first : first + block_size])
        hashes.append(parent)
    return hashes


def next_hash(parent: int, tokens: Sequence[int]) -> int:
    """64 bits over a block and what stands before it; the same in every process, as integers hash alike."""
    return hash((parent, *tokens)) & 0xFFFFFFFFFFFFFFFF


def _mixed(*numbers: int) -> int:
    """Numbers that differ little give results that differ much."""
    mixed = hash(numbers) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 33)) * 0xFF51AFD7ED558CCD) & 0xFFFFFFFFFFFFFFFF
    return mixed ^ (mixed >> 33)
