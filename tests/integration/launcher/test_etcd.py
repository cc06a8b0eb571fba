"""Launchers that find each other through a private etcd."""

import base64
import signal
import socket
import subprocess
import unittest

from etcd_server import REASON_TO_SKIP, EtcdServer
from job_case import JobCase, wait_until
from unittest_main import main


@unittest.skipIf(REASON_TO_SKIP, REASON_TO_SKIP)
class EtcdTest(JobCase):
    def setUp(self):
        super().setUp()
        self.etcd = EtcdServer(self.dir, self.env)
        self.port, self.start_etcd, self.stop_etcd = self.etcd.port, self.etcd.start, self.etcd.stop
        self.worker = self.script("note('rank', WORLD)\nwait_for('go')")

    def tearDown(self):
        self.stop_etcd()
        super().tearDown()

    def node(self, *args, conf="last_call_timeout=0", backend="etcd", run_id="run7", nodes=2, env=None):
        return self.start(f"--nnodes={nodes}", f"--rdzv-backend={backend}", f"--rdzv-endpoint=localhost:{self.port}",
                          f"--rdzv-id={run_id}", f"--rdzv-conf={conf}", *args, self.worker, env=env)

    def finish_all(self, nodes):
        return [self.finish(node)[0] for node in nodes]

    def test_two_nodes_and_a_late_one(self):
        self.start_etcd()
        nodes = [self.node() for _ in range(2)]
        self.wait_for_notes("rank", 1, range(2))
        (self.dir / "go").touch()
        self.assertEqual(self.finish_all(nodes), [0, 0])
        self.assert_one_line_error(self.finish(self.node()), 1, "'run7' is over", "etcd")
        # Another run id, and the same one below another prefix, are other jobs.
        self.assertEqual(self.finish_all([self.node(run_id="run8") for _ in range(2)]), [0, 0])
        self.assertEqual(self.finish_all([self.node(backend="etcd-v2") for _ in range(2)]), [0, 0])

    def test_job_goes_on_without_etcd(self):
        self.start_etcd()
        nodes = [self.node() for _ in range(2)]
        self.wait_for_notes("rank", 1, range(2))
        self.stop_etcd()
        (self.dir / "go").touch()
        self.assertEqual(self.finish_all(nodes), [0, 0])

    def test_a_signal_leaves_the_run_id_open_and_a_dead_holder_is_replaced(self):
        self.start_etcd()
        for end in (signal.SIGTERM, signal.SIGKILL):
            nodes = [self.node() for _ in range(2)]
            self.wait_for_notes("rank", 1, range(2))
            for node in nodes if end == signal.SIGTERM else []:
                node.send_signal(end)
            if end == signal.SIGKILL:
                self.kill_with_standbys(*nodes)
            self.assertNotIn(0, self.finish_all(nodes))
            for path in self.dir.glob("rank.*"):
                path.unlink()
        (self.dir / "go").touch()
        self.assertEqual(self.finish_all([self.node() for _ in range(2)]), [0, 0])

    def claims(self):
        return [base64.b64decode(entry["value"]) for entry in self.etcd.entries()]

    def put_claim(self, text):
        """Instead of the only one."""
        self.etcd.call("put", key=self.etcd.entries()[0]["key"], value=base64.b64encode(text).decode())

    def wait_for_claim(self):
        """etcd tells of a change, but not simply; it is asked again and again."""
        wait_until(self.claims, "a claim")

    def test_a_holder_that_dies_silent_is_replaced_by_who_waits_for_it(self):
        self.start_etcd()
        first = self.node()
        self.wait_for_claim()
        self.assertIn(b"lease-seconds 40\n", self.claims()[0])
        first.send_signal(signal.SIGSTOP)
        second = self.node()
        self.wait_for_line(second, "waiting for the coordinator at", "etcd at")
        first.kill()
        (self.dir / "go").touch()
        self.assertEqual(self.finish_all([second, self.node()]), [0, 0])

    def test_a_holder_that_wakes_up_after_its_lease_joins_who_has_taken_its_place(self):
        self.start_etcd()
        first = self.node()
        self.wait_for_claim()
        first.send_signal(signal.SIGSTOP)
        waits = self.node()
        self.wait_for_line(waits, "waiting for the coordinator at", "etcd at")
        self.etcd.delete_all()  # As if the lease were over.
        self.wait_for_claim()
        first.send_signal(signal.SIGCONT)
        (self.dir / "go").touch()
        self.assertEqual(self.finish_all([waits, first]), [0, 0])

    def restarting_node(self):
        self.start_etcd()
        self.worker = self.script("note('rank')\nwait_for('end' if RESTART else 'go')\nsys.exit(not RESTART)")
        node = self.node("--max-restarts=1", nodes="1:2", env={"LOGLEVEL": "WARNING"})
        self.wait_for_notes("rank", 1, range(1))
        return node

    def let_it_restart(self):
        (self.dir / "go").touch()

    def assert_waits(self, node):
        self.wait_for_line(node, "making sure that no other launcher has taken the run id")
        self.assertEqual({generation for generation, _ in self.notes("rank")}, {1})

    def assert_starts_workers_again(self, node):
        self.wait_for_notes("rank", 2, range(1))
        self.assertEqual(len(self.claims()), 1)
        (self.dir / "end").touch()
        rc, _, err = self.finish(node)
        self.assertEqual(rc, 0, err)

    def test_a_restart_puts_a_key_that_was_deleted_there_again(self):
        node = self.restarting_node()
        self.etcd.delete_all()
        self.let_it_restart()
        self.assert_starts_workers_again(node)

    def test_a_restart_waits_until_the_key_can_be_read(self):
        node = self.restarting_node()
        own = self.claims()[0]
        self.put_claim(b"not a claim")
        self.let_it_restart()
        self.assert_waits(node)
        self.put_claim(own)
        self.assert_starts_workers_again(node)

    def test_a_restart_waits_until_etcd_is_back(self):
        node = self.restarting_node()
        self.stop_etcd()
        self.let_it_restart()
        self.assert_waits(node)
        self.start_etcd()
        self.assert_starts_workers_again(node)

    def test_a_host_whose_key_was_taken_starts_no_workers_again(self):
        node = self.restarting_node()
        other = b"fsdprun rendezvous, version 1\nlaunch other\naddress 127.0.0.1:1\nlease-seconds 40\n"
        self.put_claim(other)
        self.let_it_restart()
        rc, _, err = self.finish(node)
        self.assertEqual(rc, 1, err)
        self.assertIn("another launcher has taken the run id meanwhile", err)
        self.assertEqual({generation for generation, _ in self.notes("rank")}, {1})
        self.assertEqual(self.claims(), [other])

    def test_a_signal_while_etcd_is_not_there(self):
        for end in (signal.SIGTERM, signal.SIGINT):
            with socket.socket() as silent:
                silent.bind(("127.0.0.1", self.port))
                silent.listen()
                node = self.node()
                silent.accept()[0].close()
                node.send_signal(end)
                self.assert_one_line_error(self.finish(node), 1, "interrupted while looking for the coordinator")

    def test_etcd_behind_a_private_authority(self):
        def openssl(*words):
            subprocess.run(["openssl", *words], cwd=self.dir, check=True, capture_output=True)
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
        (self.dir / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        for name in ("server", "client"):
            openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out",
                    f"{name}.pem", "-extfile", "names")
        self.start_etcd("https", "--cert-file", self.dir / "server.pem", "--key-file", self.dir / "server.key",
                        "--trusted-ca-file", self.dir / "ca.pem", "--client-cert-auth")
        (self.dir / "go").touch()
        conf = f"protocol=https,cacert={self.dir}/ca.pem"
        certificate = f",cert={self.dir}/client.pem,key={self.dir}/client.key"
        self.assertEqual(self.finish_all([self.node(conf=conf + certificate) for _ in range(2)]), [0, 0])
        self.assert_one_line_error(self.finish(self.node(conf=conf + ",read_timeout=1")), 1, "etcd at https://", "certificates")
        self.assert_one_line_error(self.finish(self.node(conf=conf + "/no")), 1, "ca.pem/no")

    def test_wrong_endpoint(self):
        self.assert_one_line_error(self.finish(self.node(conf="read_timeout=1")), 1, f"localhost:{self.port}", "--rdzv-endpoint")


if __name__ == "__main__":
    main()
