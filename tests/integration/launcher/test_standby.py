"""The launcher that hosts the coordinator is killed: to the others that is the loss of a node, because its standby goes on."""

import os
import pathlib
import signal
import time
import unittest

from certificates import Ca
from coordinator_case import WORKER, CoordinatorCase
from etcd_server import REASON_TO_SKIP, EtcdServer
from job_case import is_alive, keeper_of, wait_until, wait_until_listening
from unittest_main import main


class StandbyCase(CoordinatorCase):
    restarts = 2
    launcher_env = {}

    def wait_for_host(self):
        wait_until_listening(self.port)

    def security(self):
        """Options of a launcher."""
        return []

    def start_node(self, script, *more):
        return self.start(*self.meeting(), *self.security(), f"--nnodes={self.nodes_given}",
                          f"--nproc-per-node={self.per_node}", f"--max-restarts={self.restarts}", *more, script, env=self.launcher_env)

    def start_job(self, *more, nodes_given="2"):
        """The first launcher hosts."""
        self.nodes_given = nodes_given
        self.nodes = int(nodes_given.rsplit(":", 1)[-1])
        self.words = (self.script(WORKER), *more)
        host = self.start_node(*self.words)
        self.wait_for_host()
        others = [self.start_node(*self.words) for _ in range(self.nodes - 1)]
        self.pids(1)
        wait_until(self.standbys, "the standby")
        return host, others

    @staticmethod
    def ignores(pid, number):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
        return bool(int(mask, 16) >> (number - 1) & 1)

    def assert_end(self, launchers, code):
        for launcher in launchers:
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, code, err)
        wait_until(lambda: not self.standbys(), "the standby's end")


class Cases:
    """Wherever the nodes find each other."""

    def test_others_go_on(self):
        host, others = self.start_job(nodes_given="2:3")
        self.end_abruptly(host)
        self.nodes = 2
        self.pids(2)
        self.order("end")
        self.assert_end(others, 0)

    def test_the_same_command_joins_again(self):
        host, others = self.start_job()
        first = self.pids(1)
        self.end_abruptly(host)
        again = self.start_node(*self.words)
        self.pids(2)
        self.assertEqual([pid for pid in first if is_alive(pid)], [])
        self.order("end")
        self.assert_end([*others, again], 0)


class StandbyTest(Cases, StandbyCase):
    def test_says_what_it_does(self):
        host, others = self.start_job()
        standby = self.standbys()[0]
        host.kill()
        self.wait_for_line(host, f"(pid {host.pid}) has died; the job's coordinator goes on at 127.0.0.1:{self.port} as pid {standby}")
        os.kill(standby, signal.SIGTERM)
        self.assert_end(others, 1)

    def test_without_restarts_the_job_fails_with_the_node(self):
        self.restarts = 0
        host, others = self.start_job()
        self.end_abruptly(host)
        for other in others:
            rc, _, err = self.finish(other)
            self.assertEqual(rc, 1)
            self.assertIn("ended with the launcher that hosted the coordinator", err)

    def test_worker_that_fails_afterwards(self):
        host, others = self.start_job(nodes_given="2:3")
        self.end_abruptly(host)
        self.nodes = 2
        self.pids(2)
        self.order("fail.2.1")
        self.pids(3)
        self.order("end")
        self.assert_end(others, 0)

    def test_standby_that_is_killed_is_replaced(self):
        """The next one knows what has happened since the job began."""
        host, others = self.start_job(nodes_given="1:2")
        self.order("fail.1.3")
        self.order("let_go")
        self.pids(2)
        before = self.standbys()
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: [pid for pid in self.standbys() if pid not in before], "another standby")
        self.end_abruptly(host)
        self.nodes = 1
        self.pids(3)
        self.order("end")
        self.assert_end(others, 0)

    def test_loss_of_the_keeper_beside_it(self):
        """What is left of a keeper's workers is swept up; the standby is not of them."""
        host, others = self.start_job()
        standbys = self.standbys()
        os.kill(keeper_of(host), signal.SIGKILL)
        self.order("let_go")
        self.pids(2)
        self.assertEqual(self.standbys(), standbys)
        self.end_abruptly(host)
        again = self.start_node(*self.words)
        self.pids(3)
        self.order("end")
        self.assert_end([*others, again], 0)

    def test_job_that_ends_well_says_nothing_of_it(self):
        self.launcher_env = {"LOGLEVEL": "WARNING", "OMP_NUM_THREADS": "1"}
        host, others = self.start_job()
        self.order("end")
        for launcher in [host, *others]:
            rc, _, err = self.finish(launcher)
            self.assertEqual((rc, err), (0, ""))

    def test_signals_that_come_before_mean_nothing(self):
        """A standby has its launcher's command line: what finds the one by it finds the other."""
        host, others = self.start_job("--forward-signals=USR1", nodes_given="1:2")
        standbys = self.standbys()
        wait_until(lambda: self.ignores(standbys[0], signal.SIGTERM), "the standby to wait")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE, signal.SIGRTMAX):
            os.kill(standbys[0], number)
        self.end_abruptly(host)
        self.nodes = 1
        self.pids(2)
        self.assertEqual(self.standbys(), standbys)
        self.order("end")
        self.assert_end(others, 0)

    def test_with_both_killed_the_job_is_over(self):
        host, others = self.start_job()
        first = self.pids(1)
        self.kill_with_standbys(host)
        for other in others:
            rc, _, err = self.finish(other)
            self.assertEqual(rc, 1)
            self.assertIn("nothing listens there any more", err)
        self.assertEqual([pid for pid in first if is_alive(pid)], [])

    def test_killed_while_workers_are_being_stopped(self):
        host, others = self.start_job("--abort-timeout=30", "--shutdown-timeout=30", nodes_given="2:3")
        self.order("fail.1.5")
        self.wait_for_notes("stopped", 1, [0, 1, 2, 3, 4])
        self.end_abruptly(host)
        self.order("let_go")
        self.nodes = 2
        self.pids(2)
        self.order("end")
        self.assert_end(others, 0)

    def test_host_that_is_stopped_keeps_its_place(self):
        """For longer than any lease."""
        host, others = self.start_job()
        first, standbys = self.pids(1), self.standbys()
        host.send_signal(signal.SIGSTOP)
        time.sleep(4)  # the fault itself
        self.assertEqual(self.standbys(), standbys)
        self.assertEqual([is_alive(pid) for pid in first], [True] * 4)
        host.send_signal(signal.SIGCONT)
        self.order("end")
        self.assert_end([host, *others], 0)
        self.assertEqual({generation for generation, _ in self.notes("pid")}, {1})


class TlsTest(StandbyCase):
    def setUp(self):
        super().setUp()
        self.ca = Ca(self.dir / "pki")
        self.made = 0

    def security(self):
        self.made += 1
        return self.ca.options(f"node{self.made}")

    def test_signal_ends_the_job_in_order(self):
        """Not the standby alone, whose watch over the certificates began before it heard of signals."""
        host, others = self.start_job()
        standby = self.standbys()[0]
        self.end_abruptly(host)
        self.wait_for_line(host, f"as pid {standby}")  # What comes before means nothing.
        os.kill(standby, signal.SIGTERM)
        for other in others:
            rc, _, err = self.finish(other)
            self.assertEqual(rc, 1)
            self.assertIn("stopped by signal 15", err)
        wait_until(lambda: not self.standbys(), "the standby's end")


class FileClaimTest(Cases, StandbyCase):
    def test_claim_that_another_launcher_has_taken(self):
        host, others = self.start_job(nodes_given="1:2")
        claim = self.dir / "meeting.kept"
        taken = "fsdprun rendezvous, version 1\nlaunch other\naddress 127.0.0.1:1\nlease-seconds 40\n"
        (self.dir / "other").write_text(taken)
        (self.dir / "other").rename(claim)
        host.kill()
        self.wait_for_line(host, "another launcher hosts run id 'kept'")
        self.assert_end(others, 1)
        self.assertEqual(claim.read_text(), taken)
        self.assertEqual({generation for generation, _ in self.notes("pid")}, {1})

    def meeting(self):
        return ["--rdzv-backend=c10d", f"--rdzv-endpoint={self.dir / 'meeting'}", "--rdzv-conf=store_type=file", "--rdzv-id=kept"]

    def wait_for_host(self):
        wait_until((self.dir / "meeting.kept").exists, "the claim")


@unittest.skipIf(REASON_TO_SKIP, REASON_TO_SKIP)
class EtcdClaimTest(Cases, StandbyCase):
    def setUp(self):
        super().setUp()
        self.etcd = EtcdServer(self.dir, self.env)
        self.etcd.start()

    def tearDown(self):
        self.etcd.stop()  # Before it is looked for what is left.
        super().tearDown()

    def meeting(self):
        return ["--rdzv-backend=etcd", f"--rdzv-endpoint=localhost:{self.etcd.port}", "--rdzv-id=kept"]

    def wait_for_host(self):
        wait_until(lambda: self.etcd.entry("/torchelastic/p2p/kept/coordinator"), "the claim")


if __name__ == "__main__":
    main()
