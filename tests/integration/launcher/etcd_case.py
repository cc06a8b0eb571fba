"""Jobs whose coordinator keeps its journal in a private etcd, in which its nodes find it, too."""

import shutil
import unittest

import certificates
from coordinator_case import CoordinatorCase
from etcd_server import REASON_TO_SKIP, EtcdServer
from job_case import BIN
from network import Network, reason_to_skip

WARNING = {"LOGLEVEL": "WARNING"}
SKIP_NAMESPACES = reason_to_skip()
ETCD = 3


@unittest.skipIf(REASON_TO_SKIP, REASON_TO_SKIP)
class EtcdCase(CoordinatorCase):
    def setUp(self):
        super().setUp()
        self.etcd = EtcdServer(self.dir, self.env)
        self.etcd.start()
        self.journal = f"etcd://127.0.0.1:1,127.0.0.1:{self.etcd.port}/journals"  # One member is away.

    def tearDown(self):
        self.etcd.stop()  # Before it is looked for what is left.
        super().tearDown()

    def meeting(self):
        return ["--rdzv-backend=etcd", f"--rdzv-endpoint=localhost:{self.etcd.port}", "--rdzv-id=kept"]

    def has_record(self):
        return self.etcd.entry("/journals/kept/record") is not None

    def forget_jobs(self):
        self.etcd.delete_all()

    def start_with_tls(self):
        """What --rdzv-conf says of it then."""
        self.etcd.stop()
        self.etcd.forget()  # One that was killed before it had a leader never has one again.
        ca = certificates.Ca(self.dir / "ca")
        ca.issue("server")
        ca.issue("client")
        self.etcd.start("https", "--cert-file", ca.folder / "server.crt", "--key-file", ca.folder / "server.key",
                        "--trusted-ca-file", ca.crt, "--client-cert-auth")
        self.journal = f"etcd://127.0.0.1:{self.etcd.port}/journals"
        self.ca = ca
        return f"protocol=https,cacert={ca.crt},cert={ca.folder}/client.crt,key={ca.folder}/client.key"


@unittest.skipIf(SKIP_NAMESPACES, SKIP_NAMESPACES)
class OtherMachineCase(EtcdCase):
    """Nodes are on machine 0, the coordinators on machines 1 and 2, etcd on machine 3."""

    def setUp(self):
        CoordinatorCase.setUp(self)
        self.network = Network(4)
        self.addCleanup(self.network.close)
        self.etcd = EtcdServer(self.dir, self.env, address=self.network.address(ETCD), on=lambda: self.network.command(ETCD))
        self.etcd.start()
        self.journal = f"etcd://{self.network.address(ETCD)}:{self.etcd.port}/journals"

    def meeting(self):
        return ["--rdzv-backend=etcd", f"--rdzv-endpoint={self.network.address(ETCD)}:{self.etcd.port}", "--rdzv-id=kept"]

    def start_on(self, n, *words):
        command = self.network.command(n, BIN / "fsdprun", f"--local-addr={self.network.address(n)}", *words)
        return self.start(*command[1:], binary=shutil.which(command[0]), env=WARNING)

    def start_node(self, script):
        return self.start_on(0, *self.meeting(), f"--nnodes={self.nodes}", f"--nproc-per-node={self.per_node}",
                             "--rdzv-conf=is_host=0", "--max-restarts=2", script)
