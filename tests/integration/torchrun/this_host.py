"""By which names and addresses the machine that the tests run on is known: what one launcher says of it and the other may say otherwise."""

import ipaddress
import socket


def is_name(text):
    """One of the names that torchrun has for this machine."""
    return text in {"localhost", socket.gethostname(), socket.getfqdn()}


def is_numeric_address(text):
    """An address, not a name, that some interface of this machine has, and nobody else: not a wildcard, a group or a broadcast."""
    try:
        address = ipaddress.ip_address(text)
        if address.is_unspecified or address.is_multicast:
            return False
        with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((text, 0))
            probe.connect((text, 9))  # Not permitted to a broadcast address without SO_BROADCAST.
    except (ValueError, OSError):
        return False
    return True


def is_name_with_address(text):
    """As fsdprun names this machine in a report: vm (10.0.0.1)."""
    name, _, address = text.removesuffix(")").partition(" (")
    return text.endswith(")") and name == socket.gethostname() and is_numeric_address(address)
