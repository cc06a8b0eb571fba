"""Signals to the launcher: passed on, bounded in time, nothing left."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time
import unittest

from job_case import BIN, JobCase, free_port, processes_with, wait_until

REPORTER = """
    control = os.fdopen(int(os.environ["FSDPRUN_CONTROL_FD"]), "w")
    print(json.dumps({"v": 1, "type": "progress", "step": 3, "total": 10, "text": "loss"}), file=control, flush=True)
"""
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

    def start_in_terminal(self, *args):
        """(launcher, leader): the launcher leads a session whose terminal is behind the leader."""
        leader, follower = pty.openpty()
        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        launcher = subprocess.Popen([str(BIN / "fsdprun"), *args], env={**self.env, "TERM": "xterm"}, stdin=follower,
                                    stdout=follower, stderr=follower, preexec_fn=take_terminal)
        self.launchers.append(launcher)
        os.close(follower)
        self.addCleanup(os.close, leader)
        return launcher, leader

    def read_until(self, leader, text, seen=b""):
        """Everything read from the terminal, until the text is in it or nobody holds it any more."""
        while text is None or text not in seen:
            self.assertTrue(select.select([leader], [], [], 20)[0], seen)
            try:
                seen += os.read(leader, 4096)
            except OSError:  # EIO: all ends of the other side are closed.
                break
        return seen

    def test_ctrl_c_in_a_terminal(self):
        launcher, leader = self.start_in_terminal("--standalone", "--nproc-per-node=2", self.script(REPORTER + RECORDER))
        modes = termios.tcgetattr(leader)
        self.wait_for_notes("pid", 1, range(2))
        seen = self.read_until(leader, b"step 3/10")
        os.write(leader, b"\x03")
        seen = self.read_until(leader, None, seen)
        self.assertEqual(launcher.wait(10), 1)
        self.assertEqual(self.notes("signal"), {(1, r): str(int(signal.SIGINT)) for r in range(2)})
        self.assertEqual(termios.tcgetattr(leader), modes)
        self.assertIn(b"the job was ended by SIGINT\r\n", seen)
        # Nothing but whole lines stays on the screen: every progress line has been erased.
        self.assertRegex(seen, rb"^(\r\x1b\[2K(step [^\r\n]*(?=\r\x1b\[2K))?|[^\r\n\x1b]+\r\n)*$")

    def test_second_ctrl_c_in_a_terminal_kills_at_once(self):
        launcher, leader = self.start_in_terminal("--standalone", "--nproc-per-node=2", "--shutdown-timeout=60",
                                                  self.script(STUBBORN))
        self.wait_for_notes("pid", 1, range(2))
        os.write(leader, b"\x03")
        time.sleep(0.3)
        self.assertIsNone(launcher.poll())
        started = time.monotonic()
        os.write(leader, b"\x03")
        self.read_until(leader, None)
        self.assertEqual(launcher.wait(10), 1)
        self.assertLess(time.monotonic() - started, 2)
        self.assert_nothing_left()

    def test_second_signal_to_the_joining_node_kills_at_once(self):
        script, port = self.script(STUBBORN), free_port()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", "--shutdown-timeout=60", script)
                 for n in range(2)]
        self.wait_for_notes("pid", 1, range(2))
        nodes[1].send_signal(signal.SIGINT)
        time.sleep(0.3)
        started = time.monotonic()
        nodes[1].send_signal(signal.SIGINT)
        self.assertEqual(self.finish(nodes[1], 10)[0], 1)
        self.assertLess(time.monotonic() - started, 2)
        for _ in range(2):  # The other node waits for its own stubborn worker.
            nodes[0].send_signal(signal.SIGINT)
            time.sleep(0.3)
        self.assertEqual(self.finish(nodes[0], 10)[0], 1)

    def test_job_survives_a_stopped_launcher(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", self.script("note('pid'); wait_for('go'); print('end')"))
        self.wait_for_notes("pid", 1, range(2))
        launcher.send_signal(signal.SIGTSTP)
        wait_until(lambda: open(f"/proc/{launcher.pid}/stat").read().rsplit(")", 1)[1].split()[0] == "T", what="the stop")
        time.sleep(5)
        launcher.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        (self.dir / "go").touch()
        rc, out, err = self.finish(launcher, 10)
        self.assertEqual((rc, out, err), (0, "end\nend\n", ""))
        self.assertEqual(set(self.notes("pid")), {(1, 0), (1, 1)})

    def test_signal_while_nobody_reads_the_rest_of_the_output(self):
        for stream, stuck in (("stdout", "out"), ("stderr", "err")):
            with self.subTest(stuck):
                launcher = self.start("--standalone", self.script(f"""
                    for i in range(40000): print("x" * 100, file=sys.{stream})
                    note("done")
                    sys.exit(3)
                """))
                self.wait_for_notes("done", 1, [0])
                wait_until(lambda: not [p for p in processes_with(self.marker) if p != launcher.pid], what="the worker's end")
                time.sleep(0.3)
                launcher.send_signal(signal.SIGINT)
                self.assertEqual(launcher.wait(3), 1)
                _, out, err = self.finish(launcher)
                if stuck == "out":
                    self.assertIn("ChildFailedError", err)
                (self.dir / "done.1.0").unlink()


if __name__ == "__main__":
    unittest.main(verbosity=2)
