"""TLS contexts for the server and the client: TLS 1.2 or newer, HTTP/1.1 only, client certificates welcome.

Who a client certificate speaks for is decided by those who read `Peer.certificate`; here it is only verified.
"""

import ssl
from pathlib import Path

_ALPN = ["http/1.1"]


def server_context(cert_file: Path | str, key_file: Path | str, client_ca_file: Path | str | None) -> ssl.SSLContext:
    """Serve with a certificate; with `client_ca_file`, clients may show one of theirs signed by that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert_file, key_file)
    context.set_alpn_protocols(_ALPN)
    if client_ca_file is not None:
        context.load_verify_locations(cafile=client_ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(
    *,
    ca_data: bytes | str = b"",
    ca_file: Path | str | None = None,
    insecure: bool = False,
    cert_file: Path | str | None = None,
    key_file: Path | str | None = None,
) -> ssl.SSLContext:
    """Trust one authority (PEM text or a file), or else the system's; show a certificate if one is given.

    `insecure` trusts anybody, as a kubeconfig's `insecure-skip-tls-verify` asks: for tests and for people who insist.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca_data or ca_file:
        text = ca_data.decode("ascii") if isinstance(ca_data, bytes) else ca_data
        context.load_verify_locations(cafile=ca_file, cadata=text or None)
    else:
        context.load_default_certs()
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    return context
