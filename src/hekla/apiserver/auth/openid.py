"""Shows with which key service accounts' tokens are signed, so that others can believe them without asking: OpenID's discovery.

`tokens.py` signs. Who may read is said by rights, as in Kubernetes: all service accounts, and whom an administrator binds to
`system:service-account-issuer-discovery`.
"""

import json

from hekla.apiserver.auth.tokens import ISSUER, TokenSigner
from hekla.wire.messages import Request, Response

CONFIGURATION_PATH = "/.well-known/openid-configuration"
KEYS_PATH = "/openid/v1/jwks"
_KEPT = (("cache-control", "public, max-age=3600"),)


class Issuer:
    """Answers the two paths."""

    def __init__(self, signer: TokenSigner) -> None:
        self._keys = json.dumps({"keys": [signer.public_key()]}, separators=(",", ":")).encode()
        self._algorithm = signer.public_key()["alg"]

    def answer(self, request: Request, path: str) -> Response | None:
        """The document at a path; None if it is neither."""
        asked = path.rstrip("/")
        if asked == KEYS_PATH:
            return Response(200, self._keys, "application/jwk-set+json", _KEPT)
        if asked != CONFIGURATION_PATH:
            return None
        said = {
            "issuer": ISSUER,
            "jwks_uri": f"https://{request.headers.get('host', '')}{KEYS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self._algorithm],
        }
        return Response(200, json.dumps(said, separators=(",", ":")).encode(), "application/json", _KEPT)
