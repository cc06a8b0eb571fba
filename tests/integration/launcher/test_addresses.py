"""Which addresses a coordinator listens on, which are tried to reach it, and what MASTER_ADDR is."""

import shutil
import signal
import subprocess
import sys
import unittest

from job_case import BIN, JobCase, free_port, wait_until
from machines import Machine, are_possible, connect
from unittest_main import main

WARNS = {"LOGLEVEL": "WARNING", "OMP_NUM_THREADS": "1"}
LOCALHOST = "127.0.0.1 localhost"
MASTER = "note('master', os.environ['MASTER_ADDR'])"
# What a worker on another node needs: MASTER_ADDR leads to the store.
REACHES_MASTER = """
import socket
socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])), timeout=20).close()
note('master', os.environ['MASTER_ADDR'])
"""


class AddressCase(JobCase):
    def start_on(self, machine, *args, **kwargs):
        return self.start(*machine.command(BIN / "fsdprun")[1:], *args, binary=shutil.which("nsenter"), **kwargs)

    def assert_all_succeed(self, *launchers):
        for launcher in launchers:
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, 0, err)

    def masters(self):
        return set(self.notes("master").values())


class MasterAddressTest(AddressCase):
    def masters_of(self, *args, nodes=({}, {})):
        script = self.script(MASTER)
        self.assert_all_succeed(*[self.start(f"--nnodes={len(nodes)}", *args, *options, script) for options in nodes])
        return self.masters()

    def test_row_18_local_address_is_the_master_address(self):
        port = free_port()
        self.assertEqual(self.masters_of("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--local-addr=127.0.0.1"),
                         {"127.0.0.1"})

    def test_row_18_local_address_of_another_machine(self):
        """As where addresses are translated on the way: what the user wrote counts, and is warned of once."""
        for kind, host, local in (("address", "localhost", "192.0.2.7"), ("name", "127.0.0.1", "no-such-node.invalid")):
            with self.subTest(local=local):
                script = self.script(f"note('{kind}', os.environ['MASTER_ADDR'])", f"{kind}.py")
                endpoint = f"{host}:{free_port()}"
                nodes = [self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--local-addr={local}",
                                    script, env=WARNS) for _ in range(2)]
                for node in nodes:
                    rc, _, err = self.finish(node)
                    self.assertEqual(rc, 0, err)
                    self.assertEqual(len([line for line in err.splitlines() if "--local-addr" in line]), 1, err)
                self.assertEqual(set(self.notes(kind).values()), {local})

    def test_local_address_of_another_machine_for_one_node(self):
        rc, _, err = self.run_job("--standalone", "--local-addr=node9", self.script(MASTER), env=WARNS)
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.masters(), {"node9"})
        self.assertEqual(len([line for line in err.splitlines() if "--local-addr" in line]), 1, err)

    def test_static_master_address_is_as_written(self):
        port = free_port()
        ranks = [[f"--node-rank={n}"] for n in range(2)]
        self.assertEqual(self.masters_of("--master-addr=localhost", f"--master-port={port}", nodes=ranks), {"localhost"})

    def test_static_master_address_of_one_node_is_as_written(self):
        self.assertEqual(self.masters_of("--master-addr=localhost", f"--master-port={free_port()}", nodes=[[]]), {"localhost"})

    def test_c10d_master_address_is_a_number(self):
        self.assertEqual(self.masters_of("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}"), {"127.0.0.1"})


@unittest.skipUnless(are_possible(), "namespaces need root")
class MachinesTest(AddressCase):
    def setUp(self):
        super().setUp()
        self.waiter = self.script(REACHES_MASTER)
        self.c10d = ["--nnodes=2", "--rdzv-backend=c10d"]

    def test_row_65_only_ipv6_loopback(self):
        machine = Machine(self, "node0", ["::1 localhost"])
        machine.ip("addr del 127.0.0.1/8 dev lo")
        for endpoint, rank in (("[::1]:29400", 1), ("localhost:29400", 2)):
            script = self.script(f"note('master{rank}', os.environ['MASTER_ADDR'])", f"w{rank}.py")
            self.assert_all_succeed(*[self.start_on(machine, *self.c10d, f"--rdzv-endpoint={endpoint}", script) for _ in range(2)])
        self.assertEqual(set(self.notes("master1").values()), {"::1"})
        static = [self.start_on(machine, "--nnodes=2", f"--node-rank={n}", "--master-addr=[::1]", self.waiter) for n in range(2)]
        self.assert_all_succeed(*static)
        self.assertEqual(self.masters(), {"::1"})

    def two_machines(self, hosts_of_host, hosts_of_other, addresses=("10.0.0.1/24", "10.0.0.2/24")):
        machines = [Machine(self, "node0", [LOCALHOST, *hosts_of_host]), Machine(self, "node1", [LOCALHOST, *hosts_of_other])]
        connect(*machines, *addresses)
        return machines

    def test_row_65_own_name_is_unknown_or_loopback_on_its_machine(self):
        for own, port in ([], 29401), (["127.0.1.1 node0"], 29402):
            with self.subTest(own=own):
                case = self.id().rsplit(".", 1)[-1] + str(port)
                here, there = self.two_machines_named(case, own)
                nodes = [self.start_on(m, *self.c10d, f"--rdzv-endpoint=node0:{port}", self.waiter) for m in (here, there)]
                self.assert_all_succeed(*nodes)
                self.assertEqual(self.masters(), {"10.0.0.1"})

    def two_machines_named(self, folder, own):
        outer, self.dir = self.dir, self.dir / folder
        self.dir.mkdir()
        try:
            return self.two_machines(own, ["10.0.0.1 node0"])
        finally:
            self.dir = outer

    def test_row_65_a_name_that_is_known_later(self):
        here, there = self.two_machines([], [])
        later = free_port()
        joiner = self.start_on(there, *self.c10d, "--rdzv-endpoint=node0.jobs:29400", self.waiter,
                               env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(later)})
        self.wait_for_line(joiner, "waiting for the address of host 'node0.jobs'", "name not known yet")
        ask = f"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:{later}/healthz').read().decode())"
        answer = subprocess.run(there.command(sys.executable, "-c", ask), check=True, capture_output=True, text=True).stdout
        self.assertIn("rendezvous", answer)
        with open(self.dir / "machine-node1" / "hosts", "a") as hosts:
            hosts.write("10.0.0.1 node0.jobs\n")
        self.assert_all_succeed(self.start_on(here, *self.c10d, "--rdzv-endpoint=node0.jobs:29400", self.waiter), joiner)
        self.assertEqual(self.masters(), {"10.0.0.1"})

    def move_name(self, address):
        (self.dir / "machine-node1" / "hosts").write_text(f"{LOCALHOST}\n{address} node0.jobs\n")

    def test_row_65_a_name_that_leads_elsewhere_before_the_coordinator_is_reached(self):
        here, there = self.two_machines([], ["10.0.0.3 node0.jobs"])  # On the cable nobody has 10.0.0.3.
        joiner = self.start_on(there, *self.c10d, "--rdzv-endpoint=node0.jobs:29400", self.waiter)
        self.wait_for_line(joiner, "waiting for the coordinator at 10.0.0.3")
        self.move_name("10.0.0.1")
        self.assert_all_succeed(self.start_on(here, *self.c10d, "--rdzv-endpoint=10.0.0.1:29400", self.waiter), joiner)
        self.assertEqual(self.masters(), {"10.0.0.1"})

    def test_a_signal_ends_the_wait_for_a_name(self):
        for end in (signal.SIGTERM, signal.SIGINT):
            machine = Machine(self, f"node{int(end)}", [LOCALHOST])
            node = self.start_on(machine, *self.c10d, "--rdzv-endpoint=node0.jobs:29400", self.waiter)
            self.wait_for_line(node, "waiting for the address of host 'node0.jobs'")
            node.send_signal(end)
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 1, err)
            self.assertIn("interrupted while", err)

    def test_a_dead_address_is_passed_over(self):
        # On the cable nobody has 10.0.0.3; the resolver puts it first on node1, as the nearest to 10.0.0.2.
        names = ["10.0.0.3 node0", "10.0.0.1 node0", "fd00::1 node0"]
        here, there = self.two_machines(names, names)
        connect(here, there, "fd00::1/64", "fd00::2/64", "net1")
        host = self.start_on(here, *self.c10d, "--rdzv-endpoint=node0:29400", self.waiter)
        self.wait_for_listener(here)
        self.assert_all_succeed(self.start_on(there, *self.c10d, "--rdzv-endpoint=node0:29400", self.waiter), host)
        self.assertEqual(self.masters(), {"10.0.0.1"})

    def test_only_ipv6_between_machines(self):
        names = ["10.0.0.1 node0", "fd00::1 node0"]
        here, there = self.two_machines(names, names, ("fd00::1/64", "fd00::2/64"))
        nodes = [self.start_on(m, *self.c10d, "--rdzv-endpoint=node0:29400", self.waiter) for m in (here, there)]
        self.assert_all_succeed(*nodes)
        self.assertEqual(self.masters(), {"fd00::1"})

    def test_a_loopback_endpoint_is_not_open_to_the_network(self):
        here, _ = self.two_machines([], [])
        host = self.start_on(here, *self.c10d, "--rdzv-endpoint=localhost:29400", self.waiter)
        self.wait_for_listener(here)
        self.assertEqual({line.split()[3] for line in self.listeners(here).splitlines() if ":29400" in line},
                         {"127.0.0.1:29400", "[::1]:29400"})
        host.kill()

    def wait_for_listener(self, machine):
        """Nothing tells when somebody begins to listen."""
        wait_until(lambda: "29400" in self.listeners(machine), "somebody to listen on port 29400")

    def listeners(self, machine):
        return subprocess.run(machine.command("ss", "-Hltn"), check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
