"""How a target is trusted and how we prove ourselves to it."""

from __future__ import annotations

import ssl

from sits.resources.kinds import Tls


def client_context(tls: Tls | None) -> ssl.SSLContext:
    """A context for connections to one target: system roots, or the declared bundle, certificate and key.

    Raises:
        ValueError: a declared file cannot be used; the message names it.
    """
    tls = tls or Tls()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_roots(context, tls.ca)
    if tls.cert is not None:
        _load_own(context, tls.cert, tls.key)
    elif tls.key is not None:
        raise ValueError("tls.key is given without tls.cert: name the certificate chain too")
    return context


def _load_roots(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"tls.ca: {path} cannot be read as a PEM bundle: {error}") from error


def _load_own(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    try:
        # An empty password keeps OpenSSL from asking the terminal for one when the key is encrypted.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"tls.cert / tls.key: {cert} and {key or 'the key in it'} cannot be used: {error}") from error


def explain(error: ssl.SSLError) -> str:
    """What went wrong in a handshake and what an operator can do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}): set tls.ca to the bundle that signed it, "
            "tls.serverName to a name that it carries, or tls.verify to false to accept any"
        )
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "wrong version number" in reason or "record layer failure" in reason or "http request" in reason:
        return f"it does not speak TLS ({reason}): is the endpoint http:// rather than https://?"
    if "certificate required" in reason or "bad certificate" in reason or "handshake failure" in reason:
        return f"it refused our side of the handshake ({reason}): it may want a client certificate, tls.cert and tls.key"
    return f"the TLS handshake failed ({reason})"
