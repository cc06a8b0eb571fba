"""The block that ends a failed job, and the exit code with it."""

import json
import pathlib
import re

from job_case import JobCase, free_port
from unittest_main import main


class ReportTest(JobCase):
    def fail_job(self, body, *args, env=None, nproc=2):
        rc, _, err = self.run_job("--standalone", f"--nproc-per-node={nproc}", *args, self.script(body), env=env)
        self.assertEqual(rc, 1, err)
        self.assertEqual(err.count("Root Cause (first observed failure):"), 1, err)
        return err

    def test_exit_code(self):
        err = self.fail_job("""
            if RANK == 1:
                print("line\\x1b[31m one", file=sys.stderr)
                sys.exit(7)
            live_on()
        """)
        script = re.escape(str(self.dir / "worker.py"))
        self.assertRegex(err, rf"(?m)^fsdprun: torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError: {script} failed\n=+\n{script} FAILED$")
        for pattern in (r"time      : \d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", r"host      : \S+", r"rank      : 1 \(local_rank: 1\)",
                        r"exitcode  : 7 \(pid: \d+\)", r"error_file: <N/A>", r"traceback : ", r"\| line one$",
                        r"log       : .*/attempt_0/1/stderr\.log",
                        r"Already done: 1 other worker was stopped; 0 of 0 restarts used", r"What to do  : "):
            self.assertRegex(err, "(?m)^ *" + pattern)
        # Once on the console as it came, once in the block without its escape sequence.
        self.assertEqual(err.count("\x1b"), 1)

    def test_segmentation_fault(self):
        err = self.fail_job("os.kill(os.getpid(), signal.SIGSEGV) if RANK == 0 else live_on()")
        self.assertRegex(err, r"exitcode  : -11 \(pid: \d+\) SIGSEGV")
        self.assertRegex(err, r"Signal 11 \(SIGSEGV\) received by PID \d+")

    def test_the_killed_rank_is_the_cause_and_not_its_victim(self):
        err = self.fail_job("""
            if RANK == 1:
                wait_for("ready.1.0")
                note("dying")
                os.kill(os.getpid(), signal.SIGKILL)
            note("ready")
            wait_for("dying.1.1")
            pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(
                {"message": {"message": "RuntimeError: Connection closed by peer", "extraInfo": {
                    "py_callstack": "stack", "timestamp": "1"}}}))
            sys.exit(1)
        """)
        self.assertRegex(err, r"rank      : 1 ")
        self.assertRegex(err, r"exitcode  : -9 .*SIGKILL")
        self.assertIn("out-of-memory", err)

    def test_error_file_is_shown_and_passed_on(self):
        parent_file = self.dir / "parent.json"
        err = self.fail_job("""
            pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(
                {"message": {"message": "ValueError: bad loss", "extraInfo": {"py_callstack": "File x, line 1", "timestamp": "12"}}}))
            sys.exit(3)
        """, nproc=1, env={"TORCHELASTIC_ERROR_FILE": str(parent_file)})
        self.assertIn("traceback : ValueError: bad loss", err)
        self.assertIn("File x, line 1", err)
        shown = re.search(r"error_file: (/.*/attempt_0/0/error\.json)", err)
        self.assertIn("bad loss", pathlib.Path(shown[1]).read_text())
        message = json.loads(parent_file.read_text())["message"]
        self.assertEqual((message["message"], message["errorCode"]), ("ValueError: bad loss", 3))

    def test_broken_error_files_do_no_harm(self):
        for content in ("", "{", "{}", '{"message": 3}', '{"message": {"message": "M"}}'):
            with self.subTest(content):
                err = self.fail_job(f"""
                    pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text({content!r})
                    sys.exit(3)
                """, "--max-restarts=1", nproc=1)
                self.assertRegex(err, r"exitcode  : 3 ")
                self.assertIn("1 of 1 restart used", err)

    def test_progress_and_hint(self):
        err = self.fail_job("""
            control = os.fdopen(int(os.environ["FSDPRUN_CONTROL_FD"]), "w")
            print(json.dumps({"v": 1, "type": "progress", "step": 41, "total": 100, "text": "loss 2"}), file=control, flush=True)
            import no_such_module
        """, nproc=1)
        self.assertRegex(err, r"last step : 41")
        self.assertIn("What to do  : install the module", err)

    def test_two_nodes_print_one_block(self):
        script, port = self.script("sys.exit(4 * RANK) if RANK else live_on()"), free_port()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", script) for n in range(2)]
        (rc0, _, err0), (rc1, _, err1) = (self.finish(n) for n in nodes)
        self.assertEqual((rc0, rc1), (1, 1))
        self.assertRegex(err0, r"rank      : 1 \(local_rank: 0\)")
        self.assertRegex(err0, r"exitcode  : 4 ")
        self.assertNotIn("Root Cause", err1)
        self.assertIn("rank 1 exited with 4", err1)


if __name__ == "__main__":
    main()
