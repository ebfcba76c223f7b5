"""What an ExternalModelProvider's status says: whether it can be asked, and whether its credential was found. Pure.

The router writes it (`router/upkeep.py`): only routers read the credentials.
"""

from datetime import datetime

from hekla.api.meta import Document
from hekla.serving.conditions import Observation, as_documents, conditions
from hekla.serving.router.providers import Provider


def provider_status(provider: Provider, now: datetime) -> Document | None:
    """The status to write; None: it says so already."""
    source = provider.source
    told = conditions(source.status.conditions, _observed(provider), source.metadata.generation, now)
    if told == as_documents(source.status.conditions):
        return None
    return {"observedGeneration": source.metadata.generation, "conditions": told}


def _observed(provider: Provider) -> list[Observation]:
    return [_credentials(provider), _ready(provider)]


def _credentials(provider: Provider) -> Observation:
    kind, source = "CredentialsResolved", provider.source
    if provider.credential_trouble:
        return Observation(kind, False, provider.credential_trouble, provider.credential_complaint)
    if source.spec.auth is None:
        return Observation(kind, True, "CredentialNotRequired", "No credential is configured")
    return Observation(kind, True, "CredentialResolved", "Credential Secret and key are available")


def _ready(provider: Provider) -> Observation:
    if provider.trouble == "ConfigurationInvalid":
        said = f"External provider configuration is invalid: {provider.complaint}"
        return Observation("Ready", False, provider.trouble, said)
    if provider.trouble:
        return Observation("Ready", False, provider.trouble, provider.complaint)
    return Observation("Ready", True, "Ready", "External provider configuration is ready")
