"""Where traces go and which are taken: OpenTelemetry's environment variables, as its specification names them. Pure.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and .../protocol/exporter/ say what each means. What
is not served (gRPC, which has another port; other samplers, other exporters) is refused with a sentence, as a span that goes nowhere is seen by nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from hekla.serving.router.variables import Reader, VariableError

_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
_SAMPLERS: Final = {
    "always_on": (False, 1.0),
    "always_off": (False, 0.0),
    "traceidratio": (False, None),
    "parentbased_always_on": (True, 1.0),
    "parentbased_always_off": (True, 0.0),
    "parentbased_traceidratio": (True, None),
}
"""Whether the caller's word goes first, and the share of the others; None: as OTEL_TRACES_SAMPLER_ARG has it."""
_PROTOCOLS: Final = ("http/json", "http/protobuf")
"""A collector takes both at one place, and looks at the content type."""


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """What is said of traces."""

    url: str
    """Where spans are posted to, whole."""
    headers: tuple[tuple[str, str], ...] = ()
    """Sent with them, as a collector's key."""
    resource: tuple[tuple[str, str], ...] = (("service.name", "hekla-router"),)
    """What is said of whoever sends them."""
    share: float = 1.0
    """Of the requests for which the caller has no say, how many are traced."""
    heeds_callers: bool = True
    """Whether the caller's `sampled` decides, where he says it."""
    timeout_s: float = 10.0
    """How long one post may take."""
    delay_s: float = 5.0
    """Between two posts."""
    most_waiting: int = 2048
    """Spans that wait; what comes then is left out and counted."""
    most_in_one: int = 512


def read_traces(environment: Mapping[str, str]) -> TraceSettings | None:
    """What the environment says; None: nobody wants traces. Raises VariableError."""
    read = Reader(environment)
    base, url = read.text(f"{_PREFIX}ENDPOINT", ""), read.text(f"{_PREFIX}TRACES_ENDPOINT", "")
    exporter = read.text("OTEL_TRACES_EXPORTER", "otlp")
    if exporter not in ("otlp", "none"):
        raise VariableError(f'OTEL_TRACES_EXPORTER "{exporter}" must be "otlp" or "none"')
    if exporter == "none" or read.flag("OTEL_SDK_DISABLED") or not (base or url):
        return None
    url = _url(f"{_PREFIX}TRACES_ENDPOINT", url) if url else _url(f"{_PREFIX}ENDPOINT", base).rstrip("/") + "/v1/traces"
    protocol = read.text(f"{_PREFIX}TRACES_PROTOCOL", read.text(f"{_PREFIX}PROTOCOL", _PROTOCOLS[0]))
    if protocol not in _PROTOCOLS:
        raise VariableError(
            f'{_PREFIX}PROTOCOL "{protocol}" must be "http/json" or "http/protobuf"; the collector takes these on port 4318'
        )
    heeds_callers, share = _sampler(read)
    return TraceSettings(
        url=url,
        headers=_pairs(read, f"{_PREFIX}TRACES_HEADERS") or _pairs(read, f"{_PREFIX}HEADERS"),
        resource=_resource(read),
        share=share,
        heeds_callers=heeds_callers,
        timeout_s=_milliseconds(read, f"{_PREFIX}TRACES_TIMEOUT", _milliseconds(read, f"{_PREFIX}TIMEOUT", 10.0)),
        delay_s=_milliseconds(read, "OTEL_BSP_SCHEDULE_DELAY", 5.0),
        most_waiting=int(read.number("OTEL_BSP_MAX_QUEUE_SIZE", 2048, least=1, most=1_000_000)),
        most_in_one=int(read.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, least=1, most=10_000)),
    )


def _url(name: str, text: str) -> str:
    try:
        parts = urlsplit(text)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_right = False
    if not is_right:
        raise VariableError(f'{name} "{text}" must be an address such as http://collector:4318')
    return text


def _sampler(read: Reader) -> tuple[bool, float]:
    name = read.text("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    if name not in _SAMPLERS:
        raise VariableError(f'OTEL_TRACES_SAMPLER "{name}" must be one of {", ".join(_SAMPLERS)}')
    told = read.number("OTEL_TRACES_SAMPLER_ARG", 1.0, most=1.0)
    heeds_callers, share = _SAMPLERS[name]
    return heeds_callers, told if share is None else share


def _milliseconds(read: Reader, name: str, default_s: float) -> float:
    return read.number(name, default_s * 1000, least=1.0, most=600_000.0) / 1000


def _pairs(read: Reader, name: str) -> tuple[tuple[str, str], ...]:
    """`name=value,name=value`, with what is no plain character as `%NN`."""
    found = []
    for one in filter(None, (part.strip() for part in read.text(name, "").split(","))):
        key, is_pair, value = one.partition("=")
        key, value = unquote(key.strip()), unquote(value.strip())
        if not is_pair or not key or not (key + value).isprintable():  # its value may be a key: it is not shown
            raise VariableError(f"{name} must be NAME=VALUE pairs with commas between them, of printable characters")
        found.append((key, value))
    return tuple(found)


def _resource(read: Reader) -> tuple[tuple[str, str], ...]:
    told = {"service.name": "hekla-router", **dict(_pairs(read, "OTEL_RESOURCE_ATTRIBUTES"))}
    if name := read.text("OTEL_SERVICE_NAME", ""):
        told["service.name"] = name
    return tuple(told.items())
