"""What Slurm says to a job that is to end, and how the job is requeued; with a scontrol of the test's own. Real Slurm: tests/slurm."""

import re
import signal
import time

from job_case import JobCase, processes_with, wait_until
from unittest_main import main

SCONTROL = """#!/bin/sh
echo "$*" >>$D/calls
case "$1" in
requeue) ;;
*)
  echo $$ >$D/asks.new
  mv $D/asks.new $D/asks
  while [ -e $D/slow ]; do sleep 0.02; done
  cat $D/record
  ;;
esac
"""
# Saves for as long as the test wants.
SAVER = """
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, lambda number, frame: note("told", number))
    note("runs")
    wait_for(f"told.{GENERATION}.{RANK}", "go")
    if (D / f"fails.{RANK}").exists():
        sys.exit(1)
    note("saved")
"""


class RequeueTest(JobCase):
    def setUp(self):
        super().setUp()
        scontrol = self.dir / "bin/scontrol"
        scontrol.parent.mkdir()
        scontrol.write_text(SCONTROL)
        scontrol.chmod(0o755)
        self.env.update({"PATH": f"{scontrol.parent}:{self.env['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1",
                         "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "node1", "SLURM_CLUSTER_NAME": "test"})
        self.limit_in(3600)

    def limit_in(self, seconds, since_start=10):
        now = int(time.time())
        (self.dir / "record").write_text(
            f"JobId=7 JobName=x JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 "
            f"StartTime={now - since_start} EndTime={now + seconds}\n")

    def calls(self):
        path = self.dir / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def send(self, launcher, number):
        """Until the launcher has taken it."""
        launcher.send_signal(number)

        def is_pending():
            with open(f"/proc/{launcher.pid}/status") as status:
                masks = re.findall(r"^(?:Shd|Sig)Pnd:\s*(\w+)", status.read(), re.MULTILINE)
            return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
        wait_until(lambda: not is_pending(), f"signal {number} to be taken")

    def save_and_end(self, launcher, ranks=range(2)):
        """The workers save, the job is requeued, and Slurm ends it."""
        (self.dir / "go").touch()
        self.wait_for_notes("saved", 1, ranks)
        wait_until(lambda: "requeue 7" in self.calls(), "the job to be requeued")
        launcher.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 1, err)
        self.assertEqual(self.calls().count("requeue 7"), 1)
        return err

    def test_notice_after_the_margin_has_begun(self):
        self.limit_in(10)
        launcher = self.start("--nproc-per-node=2", "--requeue=always", self.script(SAVER))
        self.wait_for_notes("told", 1, range(2))
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
            self.send(launcher, number)
        self.assertIn("because its time limit ends", self.save_and_end(launcher))

    def test_margin_that_begins_after_the_notice(self):
        self.limit_in(10)
        (self.dir / "slow").touch()
        launcher = self.start("--nproc-per-node=2", "--requeue=always", self.script(SAVER))
        self.wait_for_notes("runs", 1, range(2))
        wait_until((self.dir / "asks").exists, "the launcher to look after the limit")
        asks = int((self.dir / "asks").read_text())
        self.send(launcher, signal.SIGUSR1)
        self.wait_for_notes("told", 1, range(2))
        (self.dir / "slow").unlink()
        wait_until(lambda: asks not in processes_with(self.marker), "scontrol to end")
        self.send(launcher, signal.SIGUSR1)  # Taken after what scontrol has said.
        err = self.save_and_end(launcher)
        self.assertIn("because SIGUSR1 asked for it", err)
        self.assertNotIn("so that they can save", err)

    def test_operators_impatience(self):
        launcher = self.start("--nproc-per-node=2", "--requeue=always", self.script(SAVER))
        self.wait_for_notes("runs", 1, range(2))
        self.send(launcher, signal.SIGUSR1)
        self.wait_for_notes("told", 1, range(2))
        launcher.send_signal(signal.SIGINT)
        wait_until(lambda: "requeue 7" in self.calls(), "the job to be requeued")
        launcher.send_signal(signal.SIGTERM)
        self.assertIn("2 killed when the grace was over", self.finish(launcher)[2])
        self.assertEqual(self.notes("saved"), {})

    def test_worker_that_fails_to_save_is_named(self):
        (self.dir / "fails.1").touch()
        launcher = self.start("--nproc-per-node=2", self.script(SAVER))
        self.wait_for_notes("runs", 1, range(2))
        self.send(launcher, signal.SIGUSR1)
        err = self.save_and_end(launcher, ranks=[0])
        self.assertIn("of 2 workers, 1 failed when they were stopped (rank 1 exited with 1 on node1)", err)

    def stop_without_handlers(self):
        """What is said of a run whose workers report nothing and die of the signal."""
        launcher = self.start("--nproc-per-node=2", self.script("""
            note("runs")
            wait_for("never")
            """))
        self.wait_for_notes("runs", 1, range(2))
        self.send(launcher, signal.SIGUSR1)
        wait_until(lambda: "requeue 7" in self.calls(), "the job to be requeued")
        launcher.send_signal(signal.SIGTERM)
        return self.finish(launcher)[2]

    def test_short_run_without_a_sign_of_progress_is_counted(self):
        self.assertIn("because SIGUSR1 asked for it; run 1 of 3 without a sign of progress", self.stop_without_handlers())

    def test_run_that_may_have_saved_from_time_to_time_is_not_counted(self):
        self.limit_in(3600, since_start=700)
        self.assertNotIn("without a sign of progress", self.stop_without_handlers())

    def test_restarts_of_earlier_runs_count(self):
        worker = self.script("""
            note(f"restart-{RESTART}", os.environ["TORCHELASTIC_MAX_RESTARTS"])
            sys.exit(0 if GENERATION > 1 else 1)
            """)
        rc, _, err = self.run_job("--max-restarts=1", worker, env={"SLURM_RESTART_COUNT": "2"})
        self.assertEqual(rc, 0, err)
        self.assertEqual((self.notes("restart-2"), self.notes("restart-3")), ({(1, 0): "3"}, {(2, 0): "3"}))


if __name__ == "__main__":
    main()
