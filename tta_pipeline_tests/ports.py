"""Finds unused ports of this machine."""

import socket
from contextlib import ExitStack


def free_ports(number: int) -> list[int]:
    """Return *number* different ports that are free at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
