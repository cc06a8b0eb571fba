"""Machines on one network: namespaces, each with an interface of its own on a common bridge. Needs root."""

import os
import subprocess


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def reason_to_skip():
    """Empty if namespaces can be made here."""
    name = f"fsdprun-probe-{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made here: {getattr(error, 'stderr', '') or error}"
    return ""


class Network:
    """Machine n of `count`, from 0 on, has the address 10.77.0.<n + 1>."""

    def __init__(self, count):
        self.names = [f"fsdprun-{os.getpid()}-{n}" for n in range(count)]
        self.hub = f"fsdprun-{os.getpid()}-hub"
        self.close()  # Those of an earlier process with our number, which was killed.
        for name in [self.hub, *self.names]:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", self.hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.hub, "link", "set", "bridge", "up")
        for n, name in enumerate(self.names):
            run("ip", "link", "add", "wire", "netns", name, "type", "veth", "peer", "name", f"port{n}", "netns", self.hub)
            run("ip", "-n", self.hub, "link", "set", f"port{n}", "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(n)}/24", "dev", "wire")
            run("ip", "-n", name, "link", "set", "wire", "up")
        for n in range(count):  # Nobody has to ask for an address that is cut off.
            for other in range(count):
                if n != other:
                    mac = run("ip", "netns", "exec", self.names[other], "cat", "/sys/class/net/wire/address").strip()
                    run("ip", "-n", self.names[n], "neigh", "replace", self.address(other), "lladdr", mac, "dev", "wire")

    def address(self, n):
        return f"10.77.0.{n + 1}"

    def command(self, n, *words):
        """The words as a command that runs on machine n, with the process id of whoever starts it."""
        return ["ip", "netns", "exec", self.names[n], *map(str, words)]

    def _on(self, n, direction):
        return (self.names[n], "wire") if direction == "from" else (self.hub, f"port{n}")

    def cut(self, n, *directions):
        """Nothing passes any more "from" or "to" machine n. No packet fits into the bucket."""
        for direction in directions:
            name, device = self._on(n, direction)
            run("tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", "rate", "1kbit", "burst", "1", "latency", "1ms")

    def slow_down(self, n, rate="64kbit"):
        """Whole packets wait for one another on their way from machine n and to it."""
        for direction in ("from", "to"):
            name, device = self._on(n, direction)
            run("tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "1600", "latency", "5s")

    def heal(self, n, *directions):
        for direction in directions:
            name, device = self._on(n, direction)
            run("tc", "-n", name, "qdisc", "del", "dev", device, "root")

    def block(self, n, other):
        """Nothing passes any more from machine n to the other, nor, therefore, back."""
        run("ip", "-n", self.names[n], "route", "add", "blackhole", f"{self.address(other)}/32")

    def unblock(self, n, other):
        run("ip", "-n", self.names[n], "route", "del", "blackhole", f"{self.address(other)}/32")

    def unplug(self, n):
        run("ip", "-n", self.hub, "link", "set", f"port{n}", "down")

    def close(self):
        for name in [self.hub, *self.names]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
