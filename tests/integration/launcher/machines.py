"""Machines for tests that need several, or odd ones: network, mount and host name namespaces. Needs root."""

import subprocess

import network


class Machine:
    """One machine: only what is started with command() is on it. It starts with a loopback interface, and knows
    the names in `hosts` (lines of /etc/hosts) and no name server."""

    def __init__(self, case, name, hosts):
        folder = case.dir / f"machine-{name}"
        folder.mkdir()
        (folder / "hosts").write_text("".join(f"{line}\n" for line in hosts))
        (folder / "resolv.conf").write_text("nameserver 127.0.0.53\noptions timeout:1 attempts:1\n")
        set_up = "".join(f"mount --bind {folder}/{file} /etc/{file} && " for file in ("hosts", "resolv.conf"))
        # The first line tells that all is set up, the end of standard input ends it.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "sh", "-c",
             f"hostname {name} && {set_up} ip link set lo up && echo ready && exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        case.addCleanup(self._end)
        case.assertEqual(self._holder.stdout.readline(), "ready\n", "namespaces need root")

    def _end(self):
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()

    @property
    def pid(self):
        return self._holder.pid

    def command(self, *words):
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--uts", *map(str, words)]

    def run(self, *words):
        subprocess.run(self.command(*words), check=True)

    def ip(self, text):
        self.run("ip", *text.split())


def connect(one, other, address_of_one, address_of_other, link="net0"):
    """A cable between two machines; addresses with their prefix length."""
    subprocess.run(["nsenter", f"--target={one.pid}", "--net", "ip", "link", "add", link, "type", "veth", "peer", "name", link,
                    "netns", str(other.pid)], check=True)
    for machine, address in ((one, address_of_one), (other, address_of_other)):
        nodad = " nodad" if ":" in address else ""  # An address on trial cannot be bound.
        machine.ip(f"addr add {address} dev {link}{nodad}")
        machine.ip(f"link set {link} up")


def are_possible():
    return not network.reason_to_skip()
