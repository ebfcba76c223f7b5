"""The provider: whether an address and a key are good."""

from typing import Any

from dify_plugin import ToolProvider
from dify_plugin.errors.tool import ToolProviderCredentialValidationError

from hekla_sdk import Gateway, HeklaError, Session


class HeklaProvider(ToolProvider):
    """Hekla's sandboxes."""

    def _validate_credentials(self, credentials: dict[str, Any]) -> None:
        try:
            Session.templates(gateway=Gateway(f"{credentials.get('url', '')}", f"{credentials.get('key', '')}"))
        except HeklaError as error:
            raise ToolProviderCredentialValidationError(f"{error}") from error
