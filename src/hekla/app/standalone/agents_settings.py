"""What `hekla run agents` can be told. A field is a flag, and its docstring the flag's help."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hekla.app.standalone.settings import StandaloneSettingsError, host_and_port

STORES: Final = ("redis", "valkey")
MOST_SESSIONS: Final = 1_000_000
"""What `--sessions` and `--sessions-per-owner` may be at most."""


@dataclass(frozen=True, kw_only=True)
class AgentsSettings:
    """Settings of a gateway of sandboxes that runs by itself."""

    address: str = "127.0.0.1:8090"
    """Where a gateway of sandboxes listens; port 0 picks one."""

    domain: str = ""
    """Domain of preview hosts, `<port>-<session>.<domain>`; any domain that leads here if empty."""

    directory: Path = Path("hekla-agents")
    """What a gateway keeps: its sessions (unless STORE_TYPE names redis or valkey), the key it signs with, keys of its own making."""

    keys: str = ""
    """File of API keys, one `owner: key` a line, followed while the gateway runs; without it one is made in the directory."""

    node_token: str = ""
    """File with the token that node agents take: of the gateway's service account, for the audience `hekla-nodes`."""

    tls_cert: str = ""
    """File with the certificate chain for clients; HTTP without it."""

    tls_key: str = ""
    """File with the certificate's key."""

    sessions: int = 20_000
    """Live sessions of all owners together; one more is refused with 429."""

    sessions_per_owner: int = 100
    """Live sessions of one owner; one more is refused with 429."""

    jwt_issuer_url: str = ""
    """OpenID issuer whose tokens are taken beside API keys; its keys are found by discovery."""

    jwt_keys_url: str = ""
    """Where the issuer's keys (JWKS) are, if it cannot be discovered."""

    jwt_audience: str = "agentcube-api"
    """Audience that its tokens must be for."""

    jwt_role_claim: str = ""
    """Where in a token roles stand: a literal name, or a dotted path such as realm_access.roles."""

    jwt_required_role: str = ""
    """Role that a token must have; whoever has the role `admin` sees everybody's sessions."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        host_and_port("--agents-address", self.address)
        for flag, count in (("--sessions", self.sessions), ("--sessions-per-owner", self.sessions_per_owner)):
            if not 1 <= count <= MOST_SESSIONS:
                raise StandaloneSettingsError(f"{flag} is {count}; it must lie between 1 and {MOST_SESSIONS}")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise StandaloneSettingsError("--tls-cert and --tls-key go together; give both or neither")
        if self.jwt_issuer_url and not (self.jwt_role_claim and self.jwt_required_role):
            raise StandaloneSettingsError(
                "--jwt-issuer-url needs --jwt-role-claim and --jwt-required-role: else whoever has any token of that issuer "
                "may open sessions"
            )
        if not self.jwt_issuer_url and (self.jwt_keys_url or self.jwt_role_claim or self.jwt_required_role):
            raise StandaloneSettingsError(
                "--jwt-keys-url, --jwt-role-claim and --jwt-required-role need --jwt-issuer-url"
            )
        for flag, url in (("--jwt-issuer-url", self.jwt_issuer_url), ("--jwt-keys-url", self.jwt_keys_url)):
            if url and not url.startswith(("https://", "http://")):
                raise StandaloneSettingsError(f'{flag} is "{url}"; write a URL that begins with https://')
        if self.jwt_issuer_url and not self.jwt_audience:
            raise StandaloneSettingsError(
                "--jwt-audience must not be empty: tokens for other services would open this one"
            )


@dataclass(frozen=True)
class StoreChoice:
    """Where sessions are written down, as AgentCube's programs are told it."""

    kind: str = ""
    """redis or valkey; empty: a file."""
    address: str = ""
    password: str = ""


def store_choice(environment: Mapping[str, str]) -> StoreChoice:
    """STORE_TYPE, REDIS_ADDR and REDIS_PASSWORD, or VALKEY_ADDR and VALKEY_PASSWORD."""
    kind = environment.get("STORE_TYPE", "")
    if kind not in STORES:
        return StoreChoice()
    address = environment.get(f"{kind.upper()}_ADDR", "127.0.0.1:6379").partition(",")[0]
    return StoreChoice(kind, address, environment.get(f"{kind.upper()}_PASSWORD", ""))
