"""A file system that hangs: FIFOs that nobody reads or writes stand for it, since opening them does not return."""

import os

from job_case import JobCase
from unittest_main import main

# The logs of an attempt of this worker; indented like the scripts that it is part of.
LOGS = """
            def log(attempt):
                mine = pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parent
                path = mine.parent.parent / f"attempt_{attempt}" / str(LOCAL_RANK) / "stdout.log"
                path.parent.mkdir(parents=True, exist_ok=True)
                return path
"""


class HangsTest(JobCase):
    def test_workers_are_started_reaped_and_replaced_while_their_logs_hang(self):
        rc, out, err = self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=2", "--log-dir", self.dir / "logs",
                                    self.script(LOGS + """
            note("pid")
            print(f"rank {RANK} of {GENERATION}", flush=True)
            if GENERATION == 1:
                os.mkfifo(log(1))
                note("ready")
                wait_for("ready.1.0", "ready.1.1")
                sys.exit(RANK)
            if GENERATION == 2:
                wait_for("pid.2.0", "pid.2.1")
                if RANK == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                live_on()
        """), env={"LOGLEVEL": "WARNING", "OMP_NUM_THREADS": "1"})
        self.assertEqual(rc, 0, err)
        self.assertEqual(sorted(out.splitlines()), [f"rank {r} of {g}" for r in range(2) for g in range(1, 4)])
        self.assertRegex(err, r"cannot write .*/attempt_1/./std(out|err).log: the file system did not answer within 1 s")
        # Another writer serves the next attempt.
        logs = sorted(p for p in (self.dir / "logs").rglob("attempt_2/*/stdout.log"))
        self.assertEqual([p.read_text() for p in logs], ["rank 0 of 3\n", "rank 1 of 3\n"])

    def test_a_log_that_cannot_be_read_back_holds_up_neither_restart_nor_end(self):
        rc, out, err = self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--log-dir", self.dir / "logs",
                                    self.script(LOGS + """
            if GENERATION == 1:
                log(0).unlink()
                os.mkfifo(log(0))
            print(f"rank {RANK} of {GENERATION}", flush=True)
            note("pid")
            if GENERATION == 1:
                wait_for("pid.1.0", "pid.1.1")
                sys.exit(RANK)
        """), env={"LOGLEVEL": "WARNING", "OMP_NUM_THREADS": "1"})
        self.assertEqual(rc, 0, err)
        self.assertEqual(sorted(self.notes("pid")), [(1, 0), (1, 1), (2, 0), (2, 1)])
        self.assertNotRegex(err, "make .*: its file system did not answer", "only the log does not")
        self.assertEqual(out.count("12 bytes of output are not shown here because the file system"), 4, out)
        self.assertIn("not all output could be shown", err)

    def test_an_error_file_of_an_outer_launcher_that_cannot_be_written_does_not_hold_up_the_end(self):
        error = self.dir / "outer_error.json"
        launcher = self.start("--standalone", self.script("""
            note("pid")
            wait_for("go")
            sys.exit(3)
        """), env={"TORCHELASTIC_ERROR_FILE": str(error)})
        self.wait_for_notes("pid", 1, [0])
        os.mkfifo(f"{error}.{launcher.pid}")  # What is written there replaces the file.
        (self.dir / "go").touch()
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 1, err)
        self.assertIn(f"cannot write the error file {error}: its file system did not answer within 1 s", err)


if __name__ == "__main__":
    main()
