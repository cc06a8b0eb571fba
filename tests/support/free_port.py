"""A TCP port for a program that is started later."""

import functools
import random
import socket
from pathlib import Path

# Below this live the ports of well-known services, and the defaults of launchers (29400, 29500) are looked at by tests
# of their own.
LOWEST = 15000
DEFAULTS = {29400, 29500}
# Where the launchers of a Slurm step meet, by the number of the job.
STEPS = range(20000, 29000)

_claims: list[socket.socket] = []


def kernels_range() -> tuple[int, int]:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    return low, high


def _outside(low: int, high: int) -> list[int]:
    """Ports that the kernel does not give out by itself: an outgoing connection, or a listener on port 0, of whoever
    runs beside us would else take the port between our look at it and its use. All ports, if it gives out every one."""
    free = [port for port in range(LOWEST, 65536) if port not in DEFAULTS and port not in STEPS]
    return [port for port in free if not low <= port <= high] or free


@functools.cache
def _candidates() -> list[int]:
    return _outside(*kernels_range())


def _claim(port: int) -> socket.socket | None:
    """Makes the port ours among all tests, until this process ends. An abstract name lives where ports do, in the
    network namespace, and vanishes with its owner, however that ends."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0fsdprun-test-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def _is_in_use(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
        return False


def free_port() -> int:
    """A port on which nobody listens, and which no other test gets while this process lives."""
    candidates = _candidates()
    start = random.randrange(len(candidates))
    for port in candidates[start:] + candidates[:start]:
        claim = _claim(port)
        if claim is None:
            continue
        _claims.append(claim)  # Also of a port in use: nobody else need look at it.
        if not _is_in_use(port):
            return port
    raise RuntimeError(f"none of {len(candidates)} ports is free")
