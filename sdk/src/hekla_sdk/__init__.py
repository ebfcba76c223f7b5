"""Hekla's sandboxes for agents: sessions to run code, commands and files in, which sleep, wake and fork."""

from hekla_sdk.answers import (
    CodeError,
    Completed,
    Context,
    Display,
    Entry,
    Output,
    ProcessInfo,
    Result,
    SessionInfo,
    Snapshot,
    Template,
    Usage,
)
from hekla_sdk.async_session import AsyncFiles, AsyncProcess, AsyncSession
from hekla_sdk.errors import (
    AuthenticationError,
    BadAnswerError,
    CommandFailedError,
    CommandTimeoutError,
    ConflictError,
    HeklaError,
    InvalidError,
    LimitError,
    NotFoundError,
    RefusedError,
    SettingsError,
    UnavailableError,
    UnreachableError,
)
from hekla_sdk.session import Files, Process, Session
from hekla_sdk.settings import Gateway, find_gateway

__all__ = [
    "AsyncFiles", "AsyncProcess", "AsyncSession", "AuthenticationError", "BadAnswerError", "CodeError", "CommandFailedError",
    "CommandTimeoutError", "Completed", "ConflictError", "Context", "Display", "Entry", "Files", "Gateway", "HeklaError", "InvalidError",
    "LimitError", "NotFoundError", "Output", "Process", "ProcessInfo", "RefusedError", "Result", "Session", "SessionInfo", "SettingsError",
    "Snapshot", "Template", "UnavailableError", "UnreachableError", "Usage", "find_gateway",
]  # fmt: skip
