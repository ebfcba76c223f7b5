"""Where each number of the fast lane stands: words of eight bytes in rows, in memory that Python and machine code both read."""

from enum import IntEnum, auto
from typing import Final


class _Words(IntEnum):
    """Numbered from 0."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count


class State(_Words):
    """One row for all."""

    EPOLL = auto()
    """The descriptor of the lane's own epoll, which the loop's watches."""
    EVENTS = auto()
    EVENT_AT = auto()
    """The next of `EVENT_COUNT` events; the code comes back in the middle of them when Python has to do something."""
    EVENT_COUNT = auto()
    SCRATCH = auto()
    """What was read last, `SCRATCH_BYTES`; and behind it a head for an engine."""
    IOV = auto()
    TEXTS = auto()
    """Words to look for, `TEXT_BYTES` each, in the order of `Text`; the first byte is the length."""

    CLIENTS = auto()
    CLIENT_FREE = auto()
    """The first free one, chained by `Client.NEXT`; -1: none."""
    CLIENT_HIGH = auto()
    """Rows from here on were never used."""
    CLIENTS_HERE = auto()
    ENGINES = auto()
    ENGINE_FREE = auto()
    ENGINE_HIGH = auto()
    ENDPOINTS = auto()
    TEMPLATES = auto()
    TEMPLATE_HIGH = auto()
    """Rows from here on were never used."""
    WAYS = auto()

    SMALL = auto()
    """Buffers, and the stack of those that are free."""
    SMALL_FREE = auto()
    SMALL_COUNT = auto()
    LARGE = auto()
    LARGE_FREE = auto()
    LARGE_COUNT = auto()
    HUGE = auto()
    HUGE_FREE = auto()
    HUGE_COUNT = auto()

    WHEEL = auto()
    """By hundredth of a second: the first client whose prefill is reckoned to be over then; -1: none."""
    TICK = auto()
    """All up to this one were told."""
    RESTS = auto()
    """Connections to engines whose streams rest, `GATHERED` each a word as epoll tells of it."""
    REST_COUNT = auto()
    REST_AT = auto()
    """The next of them to be read, once they have rested."""
    REST_UNTIL = auto()
    """When that is; a double."""
    RECORDS = auto()
    RECORD_COUNT = auto()
    IDS = auto()
    """Requests so far."""
    ID_PREFIX = auto()
    """Twelve bytes."""
    SWEEP_AT = auto()
    READS_LEFT = auto()
    """How many of `MOST_READS` are left in this turn."""

    # ---- bounds, doubles
    IDLE_S = auto()
    PARTIAL_S = auto()
    SEND_S = auto()
    ENGINE_IDLE_S = auto()
    MOST_BYTES = auto()
    """Of a body, an integer; a longer one is Python's, which refuses it or has the room."""
    SILENCE_S = auto()
    """A stream that says nothing for so long is Python's, which ends it in time."""
    TOTAL_S = auto()
    """So is one that began so long ago."""
    MOST_READS = auto()
    """An integer: so many reads more than one each all streams together may have in a turn, at the end of which others are heard."""
    IS_CLOSED = auto()
    """No connection is kept from now on."""

    # ---- what Python has to look at
    CLIENT = auto()
    DATA = auto()
    LENGTH = auto()
    ENGINE_DATA = auto()
    ENGINE_LENGTH = auto()
    REASON = auto()

    # ---- what was read last
    MODEL = auto()
    MODEL_LENGTH = auto()
    PROMPT = auto()
    PROMPT_LENGTH = auto()
    MOST_OUTPUT = auto()
    IS_STREAM = auto()
    WANTS_USAGE = auto()
    STATUS = auto()
    HEAD_END = auto()
    BODY_LENGTH = auto()
    IS_CHUNKED = auto()
    IS_EVENTS = auto()
    HAS_ID = auto()
    """Whether an answer says which request it answers."""
    CUT_AT = auto()
    """In an answer's head: the line that tells of chunks, and where it ends."""
    CUT_END = auto()
    WALKED = auto()
    """Up to where a stream was looked at, all of it whole chunks of whole events."""
    PIECES = auto()
    """How many pairs of address and length stand in `IOV`, to be written to the client."""
    PIECES_LENGTH = auto()
    EVENTS_SEEN = auto()
    USAGE_SEEN = auto()
    """Whether a usage was found; -1: nothing of the kind."""
    KIND = auto()
    USAGE_INPUT = auto()
    USAGE_OUTPUT = auto()
    USAGE_CACHED = auto()


class Client(_Words):
    """A row for each client's connection."""

    FD = auto()
    PHASE = auto()
    GENERATION = auto()
    """Counts who had the row: an event that was meant for another is none."""
    NEXT = auto()
    """The next free row."""
    TEMPLATE = auto()
    SINCE = auto()
    """When the phase began, or the body of a request that is not whole; a double, as all times."""
    BUFFER = auto()
    """The request, until the answer begins; what is left of an answer, then. -1: none."""
    LENGTH = auto()
    OFFSET = auto()
    NEEDED = auto()
    """Bytes of the whole request; 0: its head is not whole."""
    HEAD_END = auto()
    MORE = auto()
    """Whether something came while it could not be read."""
    UNSENT = auto()
    """Bytes at the end of the request that the engine has not taken yet."""
    SERVED = auto()
    """Requests that were decided here."""
    ENDS = auto()
    """Whether the connection is closed when nothing is under way on it."""
    ENGINE = auto()
    """-1: none yet."""
    WAY = auto()
    ENDPOINT = auto()
    SERIAL = auto()
    """Which engine the endpoint's row stood for."""
    COUNTS = auto()
    RETRIED = auto()
    ID = auto()
    FACTS = auto()
    """What the way was when it was gone (`ways.Facts`)."""
    IS_STREAM = auto()
    ASKS_USAGE = auto()
    """Whether the engine is asked for a usage that the client did not ask for, and is not to read."""

    # ---- of an answer that goes on as it comes
    STATUS = auto()
    FIRST_BYTE = auto()
    """A double; 0: nothing of it came."""
    EVENTS = auto()
    HAS_USAGE = auto()
    USAGE_INPUT = auto()
    USAGE_OUTPUT = auto()
    USAGE_CACHED = auto()

    # ---- as `pool.Charge` has them
    TOKENS = auto()
    ANSWER = auto()
    HELD = auto()
    UNCACHED = auto()
    AHEAD = auto()
    PREFILLED = auto()
    PROMPT_LENGTH = auto()
    MOST_OUTPUT = auto()
    STARTED = auto()
    DECIDE_S = auto()
    DUE = auto()
    """By which hundredth of a second its prefill is reckoned to be over; -1: it is not waited for."""
    DUE_NEXT = auto()
    DUE_PREVIOUS = auto()


class Engine(_Words):
    """A row for each connection to an engine."""

    FD = auto()
    PHASE = auto()
    GENERATION = auto()
    NEXT = auto()
    """The next free row, or the next idle one of its endpoint."""
    PREVIOUS = auto()
    ENDPOINT = auto()
    SERIAL = auto()
    """Of the endpoint's address, when it was opened."""
    SINCE = auto()
    CLIENT = auto()
    REUSED = auto()
    BUFFER = auto()
    """An answer that is not whole yet; -1: none of it."""
    LENGTH = auto()
    RESTS = auto()
    """Whether what comes is left for a moment, to be read with what follows it; epoll tells of its end alone meanwhile."""
    IS_DEAF = auto()
    """Whether epoll does not tell when it takes more of a request: since it has rested."""
    OPEN = auto()
    """Where it is counted, as its endpoint's."""


class Endpoint(_Words):
    """A row for each engine, by its slot."""

    COUNTS = auto()
    SERIAL = auto()
    """Which engine this is: rows are used again."""
    IDLE = auto()
    """The connection that was used last, -1: none is kept."""
    IDLE_COUNT = auto()
    MOST_IDLE = auto()
    OPEN = auto()
    """The address of the count of connections to it (`proxy/open_connections.py`), in which Python's are, too."""


class Template(_Words):
    """A row for each head that Python read and found plain: all of it but the digits of its length."""

    BEFORE = auto()
    BEFORE_LENGTH = auto()
    """0: nobody has the row."""
    AFTER = auto()
    AFTER_LENGTH = auto()
    ONWARD = auto()
    """What goes on to engines, up to the length."""
    ONWARD_LENGTH = auto()
    WAY = auto()
    """The first of its ways; -1: none is known."""
    TELLS_USAGE = auto()
    """Whether its path is one whose streams tell their usage if they are asked to."""
    USERS = auto()
    """Connections whose head it is; the code counts."""


class Way(_Words):
    """A row for each model that is asked for by a template."""

    NEXT = auto()
    MODEL = auto()
    MODEL_LENGTH = auto()
    IS_PLAIN = auto()
    """0: Python decides."""
    INDEX = auto()
    """The state of the pool's memory of prompts (`kernel/layout.py`)."""
    SEED = auto()
    RATE = auto()
    """A double, as the next two."""
    MEAN = auto()
    PATIENCE = auto()
    """After so long Python takes over, which keeps the time."""
    ROUTE_REQUESTS = auto()
    """Addresses of buckets (`Bucket`), 0 where there is none; the tenant's behind the route's."""
    ROUTE_INPUT = auto()
    ROUTE_OUTPUT = auto()
    TENANT_REQUESTS = auto()
    TENANT_INPUT = auto()
    TENANT_OUTPUT = auto()
    UNDER_WAY = auto()
    FACTS = auto()
    """The number of what it is now (`ways.Facts`)."""


class Bucket(_Words):
    """As `edge/buckets.py` has it, doubles."""

    AMOUNT = auto()
    RATE = auto()
    LEVEL = auto()
    AT = auto()


class Record(_Words):
    """A row for each request that is over."""

    WAY = auto()
    FACTS = auto()
    SERIAL = auto()
    """Of the engine."""
    STATUS = auto()
    OUTCOME = auto()
    TEMPLATE = auto()
    ID = auto()
    STARTED = auto()
    FIRST_BYTE = auto()
    ENDED = auto()
    TOKENS = auto()
    HELD = auto()
    AHEAD = auto()
    PROMPT_LENGTH = auto()
    USAGE = auto()
    """Whether the engine told what it counted."""
    USAGE_INPUT = auto()
    USAGE_OUTPUT = auto()
    USAGE_CACHED = auto()
    DECIDE_S = auto()
    IS_STREAM = auto()
    EVENTS = auto()


class Phase(_Words):
    """Of a client's connection."""

    FREE = auto()
    IDLE = auto()
    PARTIAL = auto()
    WAITING = auto()
    """For a connection to the engine."""
    ASKED = auto()
    SENDING = auto()
    """The rest of an answer that the client did not take at once."""
    STREAMING = auto()
    """A part of an answer went on to the client."""


class EnginePhase(_Words):
    """Of a connection to an engine."""

    FREE = auto()
    IDLE = auto()
    BUSY = auto()


class Command(_Words):
    """What the code returns: what Python has to do before it goes on."""

    NOTHING = auto()
    HAND_OVER = auto()
    """A connection with nothing under way, and what was read of a request."""
    TAKE_OVER = auto()
    """A request that was sent, or was to be: `State.REASON` says why."""
    CONNECT = auto()
    """A request waits for a connection to its engine."""
    GONE = auto()
    """A client's connection was closed."""
    FOLD = auto()
    """There is no room for more records."""


class Call(_Words):
    """What Python asks of the code."""

    PUMP = auto()
    """Go on with everything that can go on; with 1 streams have rested, whatever the time is."""
    ADOPT = auto()
    RELEASE = auto()
    ATTACH = auto()
    LEAVE = auto()
    CUT = auto()
    DROP = auto()
    RECKON = auto()
    SWEEP = auto()


class Reason(_Words):
    """Why a connection or a request goes to Python."""

    UNUSUAL = auto()
    """Its bytes."""
    UNKNOWN = auto()
    """No way is known for its model."""
    DECIDED = auto()
    """A limit or a pool wants to be asked."""
    ANSWER = auto()
    """The engine's answer."""
    UNSENT = auto()
    """A request of which the engine took not even the head at once."""
    CLOSED = auto()
    """The engine closed the connection."""
    UNCONNECTED = auto()
    """There is no connection to the engine."""
    SLOW = auto()
    FULL = auto()
    """Of its buffers."""
    LAGS = auto()
    """The client does not take what it is sent of a stream: `State.PIECES`, but for as many bytes as `State.LENGTH` says."""


class Outcome(_Words):
    """How a request ended."""

    ANSWERED = auto()
    LEFT = auto()
    """The client did."""
    BEGAN = auto()
    """Not over: a stream's first byte came."""


class AnswerKind(_Words):
    """What an answer's head says."""

    MORE = auto()
    """It is not whole."""
    WHOLE = auto()
    """A plain answer with a length."""
    STREAM = auto()
    """A stream of events in chunks."""
    OTHER = auto()


class Text(_Words):
    """What is looked for. The names of a question's fields from `MODEL` on: first those that are read, then those that make it unusual."""

    USAGE = auto()
    PROMPT_TOKENS = auto()
    INPUT_TOKENS = auto()
    COMPLETION_TOKENS = auto()
    OUTPUT_TOKENS = auto()
    CACHED_TOKENS = auto()
    CACHE_READ_INPUT_TOKENS = auto()
    HTTP_1_1 = auto()
    CONTENT_LENGTH = auto()
    CONTENT_TYPE = auto()
    EVENT_STREAM = auto()
    CONTENT_ENCODING = auto()
    TRANSFER_ENCODING = auto()
    CONNECTION = auto()
    UPGRADE = auto()
    TRAILER = auto()
    KEEP_ALIVE = auto()
    PROXY_CONNECTION = auto()
    CHUNKED = auto()
    CHUNKED_LINE = auto()
    """The last of a head."""
    REQUEST_ID = auto()
    CHOICES = auto()
    INCLUDE_USAGE = auto()
    USAGE_WISH = auto()
    LENGTH_LINE = auto()
    ID_LINE = auto()
    MODEL = auto()
    MESSAGES = auto()
    STREAM = auto()
    MAX_TOKENS = auto()
    MAX_COMPLETION_TOKENS = auto()
    PROMPT = auto()
    INPUT = auto()
    STREAM_OPTIONS = auto()
    MAX_OUTPUT_TOKENS = auto()
    TOOLS = auto()
    SYSTEM = auto()
    INSTRUCTIONS = auto()
    QUERY = auto()
    QUERIES = auto()
    DOCUMENTS = auto()
    TEXT_1 = auto()
    TEXT_2 = auto()
    TOKENS = auto()
    CACHE_SALT = auto()


TEXTS: Final = {
    **{one: one.name.lower().encode() for one in Text if one >= Text.MODEL},
    **{one: one.name.lower().replace("_", "-").encode() for one in Text if Text.CONTENT_LENGTH <= one <= Text.PROXY_CONNECTION},
    Text.USAGE: b'"usage"',
    Text.PROMPT_TOKENS: b'"prompt_tokens"',
    Text.INPUT_TOKENS: b'"input_tokens"',
    Text.COMPLETION_TOKENS: b'"completion_tokens"',
    Text.OUTPUT_TOKENS: b'"output_tokens"',
    Text.CACHED_TOKENS: b'"cached_tokens"',
    Text.CACHE_READ_INPUT_TOKENS: b'"cache_read_input_tokens"',
    Text.HTTP_1_1: b"HTTP/1.1 ",
    Text.EVENT_STREAM: b"text/event-stream",
    Text.CHUNKED: b"chunked",
    Text.CHUNKED_LINE: b"transfer-encoding: chunked\r\n\r\n",
    Text.REQUEST_ID: b"x-request-id",
    Text.CHOICES: b'"choices"',
    Text.INCLUDE_USAGE: b'"include_usage"',
    Text.USAGE_WISH: b'"stream_options":{"include_usage":true},',
    Text.LENGTH_LINE: b"content-length: ",
    Text.ID_LINE: b"\r\nx-request-id: ",
}  # fmt: skip
TEXT_BYTES: Final = 48

SCRATCH_BYTES: Final = 256 * 1024
MOST_READS: Final = 4
"""A megabyte of a stream in a row, as far as its client takes it: about half a millisecond."""
FIRST_BYTES: Final = 64 * 1024
"""Of a request these are read to the scratch and copied to where it stays, at most; the rest of a longer one is read to there."""
SMALL_BYTES: Final = 8 * 1024
LARGE_BYTES: Final = 128 * 1024
HUGE_BYTES: Final = 1024 * 1024
"""The longest request of the lane, of about 250,000 tokens."""
SMALL_COUNT: Final = 4096
LARGE_COUNT: Final = 256
HUGE_COUNT: Final = 64
"""128 MB in all, of which memory is taken as it is used, what was used last first; what finds no room goes to Python."""
CLIENTS: Final = 20_480
ENGINES: Final = 8_192
ENDPOINTS: Final = 4_096
TEMPLATES: Final = 1_024
WAYS: Final = 4_096
EVENTS: Final = 64
RECORDS: Final = 8_192
GATHER_S: Final = 0.001
"""What comes of a stream so soon after its last piece is read with all that follows within as long again: a read and a write for each
piece are most of what a stream costs, and nobody reads a thousand tokens a second."""
GATHERED: Final = 4_096
"""Streams that rest at once; the others are passed on as they come."""
TICKS_PER_S: Final = 100
WHEEL_TICKS: Final = 4_096
TAIL_BYTES: Final = 8 * 1024
MEDIA_BYTES: Final = 16 * 1024
"""A longer prompt may have media in it (`reading.py`)."""
RUN_BYTES: Final = 2048
MOST_PIECES: Final = 24
"""Of what is written to a client at once: a stream with more holes in it is Python's."""
IOV_WORDS: Final = 64
"""Two for each piece and for the few around them, and two at the end in which epoll is told something meanwhile."""
ID_PREFIX_BYTES: Final = 12
ID_LINE_BYTES: Final = 48
"""An answer grows by no more when it is told to which request it belongs: a name, the prefix, sixteen digits."""
ONE_IN: Final = 16
"""Choices that are measured."""
