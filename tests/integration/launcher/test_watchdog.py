"""torchrun's watchdog: a worker that does not leave a timed section in time is signalled, and the agent survives."""

import json
import os
import pathlib
import signal
import stat
import textwrap
import time

from job_case import JobCase, is_alive
from unittest_main import main

ON = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "LOGLEVEL": "WARNING"}
# As torch.distributed.elastic.timer's FileTimerClient.
CLIENT = """
    def timer(scope, in_s, sig=9, pid=None):
        expires = time.time() + in_s if in_s >= 0 else -1
        with os.fdopen(os.open(os.environ["TORCHELASTIC_TIMER_FILE"], os.O_WRONLY | os.O_NONBLOCK), "w") as fifo:
            fifo.write(json.dumps({"version": 1, "pid": pid or os.getpid(), "scope_id": scope, "expiration_time": expires,
                                   "signal": sig}) + "\\n")
"""
BASH_WORKER = """#!/bin/bash
[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || exit 0
now=$(date +%s)
echo "{\\"version\\": 1, \\"pid\\": $$, \\"scope_id\\": \\"step\\", \\"expiration_time\\": $((now + 2)), \\"signal\\": 9}" > "$TORCHELASTIC_TIMER_FILE"
exec tail -f /dev/null
"""


class WatchdogTest(JobCase):
    def timing_script(self, body):
        return self.script(textwrap.dedent(CLIENT) + textwrap.dedent(body))

    def run_worker(self, body, *args, env=None):
        return self.run_job("--standalone", *args, self.timing_script(body), env={**ON, **(env or {})})

    def assert_no_fifo_left(self):
        self.assertEqual([path for path in self.dir.rglob("*") if stat.S_ISFIFO(path.stat().st_mode)], [])

    def test_row_71_an_expired_timer_kills_the_worker_and_the_job_restarts(self):
        worker = self.dir / "worker.sh"
        worker.write_text(BASH_WORKER)
        worker.chmod(0o755)
        rc, _, err = self.run_job("--standalone", "--max-restarts=1", "--no-python", worker, env=ON)
        self.assertEqual(rc, 0, err)
        self.assertRegex(err, r"timer 'step' of process \d+ expired \d+ ms ago; sending it signal 9")
        self.assert_no_fifo_left()

    def test_row_71_the_report_names_the_section(self):
        rc, _, err = self.run_worker("""
            if RANK == 1:
                timer("forward\\nof \\x1b me", 0.05, signal.SIGUSR2)
            live_on()
        """, "--nproc-per-node=2")
        self.assertEqual(rc, 1, err)
        self.assertRegex(err, r"rank      : 1 \(local_rank: 1\)\n  exitcode  : -12 ")
        self.assertRegex(err, r"  traceback : WatchdogTimeout: timer 'forward\\nof \\x1b me' of process \d+ expired \d+ ms ago, and it was sent signal 12")
        self.assertIn("What to do  : the worker did not leave the timed section", err)
        self.assert_no_fifo_left()

    def test_row_71_a_release_cancels(self):
        rc, _, err = self.run_worker("""
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
            timer("short", 3)
            timer("short", -1)
            timer("end", 3.1, signal.SIGUSR2)   # Comes later than the one that was released.
            signal.sigwait([signal.SIGUSR2])
        """)
        self.assertEqual(rc, 0, err)
        self.assertNotIn("'short'", err)

    def test_only_processes_of_the_job_are_signalled(self):
        outsider = self.start("--standalone", self.script("note('outside'); live_on()", "outsider.py"))
        victim = int(self.wait_for_notes("outside", 1, [0])[1, 0])
        rc, _, err = self.run_worker(f"""
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
            timer("outside", 0, 9, {victim})
            timer("launcher", 0, 9, os.getppid())
            timer("end", 0.1, signal.SIGUSR2)
            signal.sigwait([signal.SIGUSR2])
        """)
        self.assertEqual(rc, 0, err)
        self.assertEqual(err.count("refused to send signal 9 to process"), 2, err)
        self.assertTrue(is_alive(victim))
        outsider.send_signal(signal.SIGKILL)

    def test_broken_lines_harm_nobody(self):
        rc, _, err = self.run_worker("""
            with open(os.environ["TORCHELASTIC_TIMER_FILE"], "wb") as fifo:
                fifo.write(b"\\xff\\n{}\\n" + b"x" * 5000 + b"\\n")
            timer("end", 0, signal.SIGUSR2)
            live_on()
        """)
        self.assertEqual(rc, 1, err)
        self.assertEqual(err.count("is no request of a FileTimerClient"), 1, err)
        self.assertIn("exitcode  : -12 ", err)

    def test_the_file_is_where_the_user_wants_it(self):
        path = self.dir / "my_timer"
        rc, _, err = self.run_worker("""
            note("file", os.environ["TORCHELASTIC_TIMER_FILE"])
        """, env={"TORCHELASTIC_TIMER_FILE": str(path)})
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.notes("file")[1, 0], str(path))
        self.assertFalse(path.exists())

    def test_somebody_elses_file_is_not_replaced(self):
        path = self.dir / "precious"
        path.write_text("precious")
        result = self.run_worker("", env={"TORCHELASTIC_TIMER_FILE": str(path)})
        self.assert_one_line_error(result, 1, path, "TORCHELASTIC_TIMER_FILE")
        self.assertEqual(path.read_text(), "precious")

    def test_a_launcher_in_a_worker_gets_a_file_of_its_own(self):
        inner = self.script("note('inner', os.environ['TORCHELASTIC_TIMER_FILE'])", "inner.py")
        rc, _, err = self.run_worker(f"""
            note("outer", os.environ["TORCHELASTIC_TIMER_FILE"])
            done = subprocess.run([{str(os.environ.get("FSDPRUN_BIN", "") or pathlib.Path("build/release/bin").resolve())!r} + "/fsdprun",
                                   "--standalone", {inner!r}])
            assert done.returncode == 0
            assert pathlib.Path(os.environ["TORCHELASTIC_TIMER_FILE"]).is_fifo()
        """)
        self.assertEqual(rc, 0, err)
        self.assertNotEqual(self.notes("inner")[1, 0], self.notes("outer")[1, 0])
        self.assert_no_fifo_left()

    def test_without_the_watchdog_there_is_no_file(self):
        rc, _, err = self.run_job("--standalone", self.script("note('file', str(os.environ.get('TORCHELASTIC_TIMER_FILE')))"))
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.notes("file")[1, 0], "None")

    def test_a_stopped_launcher_does_not_blame_the_worker(self):
        """While it is stopped the worker enters and leaves a section in time."""
        launcher = self.start("--standalone", self.timing_script("""
            timer("section", 4)
            note("inside")
            wait_for("stopped")
            timer("section", -1)
            note("left")
            wait_for("go_on")
        """), env=ON)
        self.wait_for_notes("inside", 1, [0])
        launcher.send_signal(signal.SIGSTOP)
        while pathlib.Path(f"/proc/{launcher.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)
        (self.dir / "stopped").touch()
        self.wait_for_notes("left", 1, [0])
        time.sleep(4.1)  # Until the timer would have expired.
        launcher.send_signal(signal.SIGCONT)
        (self.dir / "go_on").touch()
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 0, err)
        self.assertNotIn("expired", err)

    def test_events_tell_of_it(self):
        rc, _, err = self.run_worker("timer('s', 0); live_on()", "--event-log-handler=console", env={"LOGLEVEL": "INFO"})
        self.assertEqual(rc, 1, err)
        events = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
        names = [event["name"] for event in events]
        self.assertIn("timer expired", names)
        details = json.loads(events[names.index("kill worker process")]["metadata"]["metadata"])
        self.assertEqual((details["scope_id"], details["signal"]), ("s", "9"))


if __name__ == "__main__":
    main()
