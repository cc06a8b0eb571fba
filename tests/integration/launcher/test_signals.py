"""Signals to the launcher: passed on, bounded in time, nothing left."""

import os
import pty
import signal
import time
import unittest

from job_case import JobCase, free_port, wait_until

RECORDER = """
    def on_signal(number, frame):
        note("signal", number)
        sys.exit(0)
    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(s, on_signal)
    note("pid")
    while True:
        time.sleep(1)
"""
STUBBORN = """
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, signal.SIG_IGN)
    note("pid")
    while True:
        time.sleep(1)
"""


class SignalsTest(JobCase):
    def test_each_signal_reaches_the_workers(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(number.name):
                launcher = self.start("--standalone", "--nproc-per-node=2", self.script(RECORDER))
                self.wait_for_notes("pid", 1, range(2))
                launcher.send_signal(number)
                rc, _, err = self.finish(launcher, 10)
                self.assertEqual(rc, 1, err)
                self.assertIn(number.name, err)
                self.assertEqual(self.notes("signal"), {(1, r): str(int(number)) for r in range(2)})
                self.assert_nothing_left()
                for path in self.dir.glob("*.1.*"):
                    path.unlink()

    def test_stubborn_worker_is_killed_after_the_grace(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", "--shutdown-timeout=1", self.script(STUBBORN))
        self.wait_for_notes("pid", 1, range(2))
        started = time.monotonic()
        launcher.send_signal(signal.SIGINT)
        rc, _, err = self.finish(launcher, 20)
        took = time.monotonic() - started
        self.assertEqual(rc, 1, err)
        self.assertGreater(took, 0.9)
        self.assertLess(took, 3)
        self.assert_nothing_left()

    def test_second_signal_ends_the_grace(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", "--shutdown-timeout=60", self.script(STUBBORN))
        self.wait_for_notes("pid", 1, range(2))
        launcher.send_signal(signal.SIGTERM)
        started = time.monotonic()
        time.sleep(0.2)  # Two pending signals of one kind would be merged into one.
        launcher.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(launcher, 20)
        self.assertEqual(rc, 1, err)
        self.assertLess(time.monotonic() - started, 3)

    def test_signal_while_waiting_for_nodes(self):
        launcher = self.start("--nnodes=2", f"--master-port={free_port()}", self.script(RECORDER))
        wait_until(lambda: list((self.dir / "tmp").iterdir()), what="the run directory")
        launcher.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(launcher, 5)
        self.assertEqual(rc, 1, err)

    def test_signal_to_the_joining_node_while_it_waits(self):
        launcher = self.start("--nnodes=2", "--node-rank=1", f"--master-port={free_port()}", self.script(RECORDER))
        wait_until(lambda: list((self.dir / "tmp").iterdir()), what="the run directory")
        launcher.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(launcher, 5)
        self.assertEqual(rc, 1, err)

    def test_signal_to_the_coordinators_node_ends_both(self):
        script, port = self.script(RECORDER), free_port()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", script) for n in range(2)]
        self.wait_for_notes("pid", 1, range(2))
        nodes[0].send_signal(signal.SIGTERM)
        for node in nodes:
            rc, _, err = self.finish(node, 10)
            self.assertEqual(rc, 1, err)
        self.assertEqual(set(self.notes("signal").values()), {str(int(signal.SIGTERM))})

    def test_ctrl_c_in_a_terminal(self):
        leader, follower = pty.openpty()
        def take_terminal():
            os.setsid()
            import fcntl, termios
            fcntl.ioctl(follower, termios.TIOCSCTTY, 0)
        launcher = self.start("--standalone", "--nproc-per-node=2", self.script(RECORDER), preexec_fn=take_terminal,
                              stdout=follower, stderr=follower, env={"TERM": "xterm"})
        os.close(follower)
        self.wait_for_notes("pid", 1, range(2))
        os.write(leader, b"\x03")
        self.assertEqual(launcher.wait(10), 1)
        self.assertEqual(self.notes("signal"), {(1, r): str(int(signal.SIGINT)) for r in range(2)})
        os.close(leader)


if __name__ == "__main__":
    unittest.main(verbosity=2)
