"""By which names and addresses the machine that the tests run on is known: what one launcher says of it and the other may say otherwise."""

import ipaddress
import socket


def is_name(text):
    """One of the names that torchrun has for this machine."""
    return text in {"localhost", socket.gethostname(), socket.getfqdn()}


def is_numeric_address(text):
    """An address, not a name, that some interface of this machine has."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(text).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((text, 0))
    except (ValueError, OSError):
        return False
    return True


def is_name_with_address(text):
    """As fsdprun names this machine in a report: vm (10.0.0.1)."""
    name, _, address = text.removesuffix(")").partition(" (")
    return text.endswith(")") and name == socket.gethostname() and is_numeric_address(address)
