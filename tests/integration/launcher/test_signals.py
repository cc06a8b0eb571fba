"""Signals to the launcher: passed on, ends that are waited for no longer than promised, nothing left."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time

from events import PATIENCE_S, give_up, patience
from job_case import BIN, JobCase, free_port
from unittest_main import main

# Whoever waits for this grace to pass fails the test.
GRACE = f"--shutdown-timeout={PATIENCE_S:.0f}"
LONG_GRACE = f"--shutdown-timeout={5 * PATIENCE_S:.0f}"

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
    live_on()
"""
# Notes the signal that it was sent and lives on.
STUBBORN = """
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, lambda number, frame: note("signal", number))
    note("pid")
    live_on()
"""


class SignalsTest(JobCase):
    def test_row_43_each_signal_reaches_the_workers(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(number.name):
                launcher = self.start("--standalone", "--nproc-per-node=2", self.script(RECORDER))
                self.wait_for_notes("pid", 1, range(2))
                launcher.send_signal(number)
                rc, _, err = self.finish(launcher)
                self.assertEqual(rc, 1, err)
                self.assertIn(number.name, err)
                self.assertEqual(self.notes("signal"), {(1, r): str(int(number)) for r in range(2)})
                self.assert_nothing_left()
                for path in self.dir.glob("*.1.*"):
                    path.unlink()

    def test_row_44_other_signals_can_be_chosen(self):
        chosen = RECORDER.replace("signal.SIGQUIT)", "signal.SIGQUIT, signal.SIGUSR1)")
        launcher = self.start("--standalone", "--signals-to-handle=SIGUSR1,SIGTERM,FOO", self.script(chosen),
                              env={"LOGLEVEL": "WARNING"})
        self.wait_for_notes("pid", 1, [0])
        launcher.send_signal(signal.SIGUSR1)
        rc, _, err = self.finish(launcher)
        self.assertEqual((rc, self.notes("signal")), (1, {(1, 0): str(int(signal.SIGUSR1))}), err)
        self.assertIn("'FOO' is no signal", err)
        self.assertIn("SIGUSR1", err)
        self.assert_nothing_left()

    def test_row_44_a_signal_that_is_not_listed_leaves_no_orphan(self):
        for options, number in (([], signal.SIGUSR1), (["--signals-to-handle=SIGUSR1"], signal.SIGTERM)):
            with self.subTest(number.name):
                launcher = self.start("--standalone", *options, self.script(STUBBORN))
                self.wait_for_notes("pid", 1, [0])
                launcher.send_signal(number)
                self.assertEqual(self.finish(launcher)[0], -number)
                self.assert_nothing_left()
                for path in self.dir.glob("*.1.*"):
                    path.unlink()

    def test_stubborn_worker_is_killed_after_the_grace(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", "--shutdown-timeout=1", self.script(STUBBORN))
        self.wait_for_notes("pid", 1, range(2))
        started = time.monotonic()
        launcher.send_signal(signal.SIGINT)
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 1, err)
        # The workers would live for ever; not before the grace of 1 s may they be killed.
        self.assertGreaterEqual(time.monotonic() - started, 1)
        self.assertEqual(set(self.notes("signal")), {(1, 0), (1, 1)})
        self.assert_nothing_left()

    def test_row_43_second_signal_ends_the_grace(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", LONG_GRACE, self.script(STUBBORN))
        self.wait_for_notes("pid", 1, range(2))
        launcher.send_signal(signal.SIGTERM)
        self.wait_for_notes("signal", 1, range(2))  # Two pending signals of one kind would be merged into one.
        launcher.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 1, err)
        self.assertIn("ended by SIGTERM; the workers that were still running were killed at the second signal", err)

    def line_with(self, launcher, text):
        """The line of the launcher's errors that has the text in it; it ends without one if the grace passes before."""
        seen = []
        for line in launcher.stderr:
            seen.append(line)
            if text in line:
                return line
        self.fail(f"no line with '{text}' in {seen}")

    def test_who_waits_for_workers_that_do_not_end_is_told_so(self):
        launcher = self.start("--standalone", "--nproc-per-node=3", GRACE, self.script("""
            if RANK != 2: signal.signal(signal.SIGINT, lambda number, frame: note("signal", number))
            else: signal.signal(signal.SIGINT, signal.SIG_DFL)
            note("pid")
            live_on()
        """))
        self.wait_for_notes("pid", 1, range(3))
        launcher.send_signal(signal.SIGINT)
        self.assertRegex(self.line_with(launcher, "still running"),
                         r"^fsdprun: 2 workers are still running after SIGINT; to be killed in \d+ s \(--shutdown-timeout\), "
                         r"or at once at a second signal$")
        launcher.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 1, err)
        self.assertIn("ended by SIGINT; the workers that were still running were killed at the second signal", err)
        self.assertNotIn("still running after", err)  # Said once.

    def test_second_signal_leaves_the_workers_exit_code_as_it_is(self):
        launcher = self.start("--standalone", "--exit-code=worker", LONG_GRACE, self.script(STUBBORN))
        self.wait_for_notes("pid", 1, [0])
        launcher.send_signal(signal.SIGINT)
        self.wait_for_notes("signal", 1, [0])
        launcher.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(launcher)[0], 128 + signal.SIGINT)

    def test_who_waits_for_workers_of_several_nodes_is_told_where_they_are(self):
        script, port = self.script(STUBBORN), free_port()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", f"--local-addr=127.0.0.{n + 1}", GRACE,
                            "--nproc-per-node=2", script) for n in range(2)]
        self.wait_for_notes("pid", 1, range(4))
        nodes[1].send_signal(signal.SIGINT)
        # The node that was told to end speaks for itself, the coordinator's for the job.
        self.assertIn("2 workers are still running after SIGINT; to be killed in", self.line_with(nodes[1], "still running"))
        self.assertRegex(self.line_with(nodes[0], "still running"),
                         r"127.0.0.2 left on signal 2: 4 workers are still running \(127.0.0.\d: 2, 127.0.0.\d: 2\); to be killed")
        nodes[0].send_signal(signal.SIGTERM)
        self.assertIn("4 workers are still running", self.line_with(nodes[0], "after SIGTERM"))
        self.interrupt_until_end(nodes[0])
        self.assertEqual(self.finish(nodes[0])[0], 1)
        self.assertEqual(self.finish(nodes[1])[0], 1)

    def test_row_47_signal_while_waiting_for_nodes(self):
        launcher = self.start("--nnodes=2", f"--master-port={free_port()}", self.script(RECORDER))
        self.wait_for_run_directory()
        launcher.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 1, err)

    def test_signal_to_the_joining_node_while_it_waits(self):
        launcher = self.start("--nnodes=2", "--node-rank=1", f"--master-port={free_port()}", self.script(RECORDER))
        self.wait_for_run_directory()
        launcher.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 1, err)

    def test_signal_to_the_coordinators_node_ends_both(self):
        script, port = self.script(RECORDER), free_port()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", script) for n in range(2)]
        self.wait_for_notes("pid", 1, range(2))
        nodes[0].send_signal(signal.SIGTERM)
        for node in nodes:
            rc, _, err = self.finish(node)
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
            self.assertTrue(select.select([leader], [], [], patience())[0], seen)
            try:
                seen += os.read(leader, 4096)
            except OSError:  # EIO: all ends of the other side are closed.
                break
        return seen

    def test_row_49_ctrl_c_in_a_terminal(self):
        launcher, leader = self.start_in_terminal("--standalone", "--nproc-per-node=2", self.script(REPORTER + RECORDER))
        modes = termios.tcgetattr(leader)
        self.wait_for_notes("pid", 1, range(2))
        seen = self.read_until(leader, b"step 3/10")
        os.write(leader, b"\x03")
        seen = self.read_until(leader, None, seen)
        self.assertEqual(launcher.wait(patience()), 1)
        self.assertEqual(self.notes("signal"), {(1, r): str(int(signal.SIGINT)) for r in range(2)})
        self.assertEqual(termios.tcgetattr(leader), modes)
        self.assertIn(b"the job was ended by SIGINT\r\n", seen)
        # Nothing but whole lines stays on the screen: every progress line has been erased.
        self.assertRegex(seen, rb"^(\r\x1b\[2K(step [^\r\n]*(?=\r\x1b\[2K))?|[^\r\n\x1b]+\r\n)*$")

    def test_second_ctrl_c_in_a_terminal_kills_at_once(self):
        launcher, leader = self.start_in_terminal("--standalone", "--nproc-per-node=2", LONG_GRACE, self.script(STUBBORN))
        self.wait_for_notes("pid", 1, range(2))
        os.write(leader, b"\x03")
        self.wait_for_notes("signal", 1, range(2))
        self.assertIsNone(launcher.poll())
        os.write(leader, b"\x03")
        self.read_until(leader, None)
        self.assertEqual(launcher.wait(patience()), 1)
        self.assert_nothing_left()

    def test_second_signal_to_the_joining_node_kills_at_once(self):
        script, port = self.script(STUBBORN), free_port()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", LONG_GRACE, script)
                 for n in range(2)]
        self.wait_for_notes("pid", 1, range(2))
        nodes[1].send_signal(signal.SIGINT)
        self.wait_for_notes("signal", 1, [1])
        nodes[1].send_signal(signal.SIGINT)
        self.assertEqual(self.finish(nodes[1])[0], 1)
        # The other node waits for its own stubborn worker, until it is told twice.
        self.interrupt_until_end(nodes[0])
        self.assertEqual(self.finish(nodes[0])[0], 1)

    def test_row_48_job_survives_a_stopped_launcher(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", self.script("""
            note("pid")
            wait_for("resumed")
            print("resumed", flush=True)
            wait_for("go")
            print("end")
        """))
        self.wait_for_notes("pid", 1, range(2))
        launcher.send_signal(signal.SIGSTOP)  # SIGTSTP would be ignored where the test has no shell above it.
        os.waitid(os.P_PID, launcher.pid, os.WSTOPPED | os.WNOWAIT)
        time.sleep(5)  # The fault: longer than any node may be silent.
        launcher.send_signal(signal.SIGCONT)
        (self.dir / "resumed").touch()
        # Whatever became due meanwhile has been done once later output has passed through the launcher.
        self.assertEqual([launcher.stdout.readline() for _ in range(2)], ["resumed\n"] * 2)
        (self.dir / "go").touch()
        rc, out, err = self.finish(launcher)
        self.assertEqual((rc, out, err), (0, "end\nend\n", ""))
        self.assertEqual(set(self.notes("pid")), {(1, 0), (1, 1)})

    def interrupt_until_end(self, launcher):
        """Sends SIGINT again and again: one that comes at the wrong moment is not the one that ends the launcher, and
        nothing tells of the right one."""
        limit_s = patience()
        end = time.monotonic() + limit_s
        while launcher.poll() is None:
            if time.monotonic() > end:
                give_up(f"interrupted the launcher for {limit_s:.0f} s, and it goes on")
            launcher.send_signal(signal.SIGINT)
            try:
                launcher.wait(0.3)
            except subprocess.TimeoutExpired:
                pass

    def test_signal_while_nobody_reads_the_rest_of_the_output(self):
        for stream, stuck in (("stdout", "out"), ("stderr", "err")):
            with self.subTest(stuck):
                launcher = self.start("--standalone", self.script(f"""
                    for i in range(40000): print("x" * 100, file=sys.{stream})
                    note("done")
                    sys.exit(3)
                """))
                self.wait_for_notes("done", 1, [0])
                self.wait_for_end_of_all_but(launcher)
                self.interrupt_until_end(launcher)
                self.assertEqual(launcher.returncode, 1)
                _, out, err = self.finish(launcher)
                if stuck == "out":
                    self.assertIn("ChildFailedError", err)
                (self.dir / "done.1.0").unlink()

    def test_output_that_nobody_read_is_kept_and_named(self):
        launcher = self.start("--standalone", self.script("""
            for i in range(40000): print(f"{i:0100d}")
            note("done")
        """))
        self.wait_for_notes("done", 1, [0])
        self.wait_for_end_of_all_but(launcher)
        self.interrupt_until_end(launcher)
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 0, err)
        self.assertIn("not all output could be shown; logs of this node's workers are in", err)
        (log,) = (self.dir / "tmp").rglob("stdout.log")
        self.assertEqual(log.read_text().count("\n"), 40000)


if __name__ == "__main__":
    main()
