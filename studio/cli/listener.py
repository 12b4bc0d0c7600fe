"""The socket that the web server listens on, and in which words an address is refused."""

import os
import socket

from studio.errors import Conflict, Invalid

BACKLOG = 128


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises Conflict when the port is taken, Invalid for a strange host."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host or None, port, family)  # what create_server raises does not tell an unknown name
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except socket.gaierror as error:
        raise Invalid(f"{host} is no address of this machine.", param="host") from error
    except OSError as error:
        raise Conflict(
            f"Port {port} on {host} cannot be used: {os.strerror(error.errno or 0)}.",
            code="port_in_use",
            advice=f"Stop what uses it, or choose another one: --port {port + 1 if port < 65535 else 7860}",
        ) from error
