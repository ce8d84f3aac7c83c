"""The listening socket and its TLS files: opened and checked before a model is loaded."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import sys
from pathlib import Path

from octavo.errors import InvalidRequest, OctavoError

BACKLOG = 2048


class ListenError(OctavoError):
    """The address cannot be listened on."""

    exit_status = 2


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on `host`, an address or a name of this machine, and `port`; 0 takes any free one.

    Of several addresses of a name the first IPv4 one is taken. Raises `ListenError`, at once.
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        found = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"--host {host!r} names no address ({_why(error)}); give one of this machine's") from error
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform == "win32":  # where SO_REUSEADDR would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(BACKLOG)  # a second server's bind may succeed where this fails
    except OSError as error:
        listener.close()
        raise ListenError(
            f"cannot listen on {host} port {port} ({_why(error)}); give another --host or --port"
        ) from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, tls: bool) -> str:
    """Where clients find it."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def check_tls(cert: Path, key: Path) -> None:
    """Raises `InvalidRequest` unless the files hold a certificate and its key, both readable without a password."""
    for flag, path in (("--tls-cert", cert), ("--tls-key", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise InvalidRequest(f"{flag} {path} cannot be read ({_why(error)}); give a PEM file") from error
    try:
        # Without a password of ours, OpenSSL would ask for one at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidRequest(
            f"{cert} and {key} are not a certificate and its key ({_why(error)}); give PEM files, without a password"
        ) from error


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
