"""PyTorch's elastic/multiprocessing/errors/api_test.py and error_handler_test.py: the files in which workers tell why they fail."""

import json
import os
import pathlib
import re
import signal

from compat_case import CompatCase, main, wait_for_ends, wait_until

NEW_FORMAT = {"message": {"message": "ValueError: bad value", "extraInfo": {"py_callstack": "the stack", "timestamp": "1600000000"}}}
RECORD = """
import os, sys
sys.path.insert(0, os.environ["STAND_IN"])
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    {body}
main()
"""


class ErrorsTest(CompatCase):
    def failed_job(self, content, code=1, env=None, words=()):
        """The standard error of a job whose only worker leaves this error file and ends with this code."""
        write = "" if content is None else f"printf %s '{content}' > \"$TORCHELASTIC_ERROR_FILE\""
        rc, _, err = self.run_job("--standalone", *words, "--no-python", self.program(f"echo >> $D/starts; {write}\nexit {code}"), env=env)
        self.assertEqual(rc, 1, err)
        self.assert_summary(err)
        return err

    def time_of(self, err):
        return re.search(r"^  time      : (\S+)$", err, re.M)[1]

    def test_process_failure_incorrect_reply_file(self):
        """row_36. torchrun ends with an error of its own, without a summary, and restarts nothing."""
        for content in ("", '{"message": {"mess', "{}", '{"message": {"message": "only a message"}}', "not json"):
            with self.subTest(content):
                err = self.failed_job(content, code=4, words=["--max-restarts=1"])
                self.assertIn("exitcode  : 4 (pid:", err)
                self.assertEqual(len(self.lines("starts")), 2)
                (self.dir / "starts").unlink()

    def test_process_failure_new_format(self):
        err = self.failed_job(json.dumps(NEW_FORMAT))
        self.assertIn("the stack", err)
        self.assertTrue(self.time_of(err).startswith("2020-09-1"), err)

    def test_process_mast_error_format(self):
        """A message without a dictionary; the time may be a string."""
        for timestamp in (10, "10"):
            err = self.failed_job(json.dumps({"message": "test error message", "timestamp": timestamp}))
            self.assertIn("test error message", err)
            self.assertTrue(self.time_of(err).startswith(("1970-01-01", "1969-12-31")), err)

    def test_process_failure(self):
        err = self.failed_job(json.dumps(NEW_FORMAT), code=3)
        self.assertIn("exitcode  : 3 (pid:", err)
        self.assertIn("rank      : 0 (local_rank: 0)", err)
        self.assertRegex(err, r"error_file: \S+/attempt_0/0/error\.json")

    def test_process_failure_signal(self):
        rc, _, err = self.run_job("--standalone", "--no-python", self.program("kill -SEGV $$"))
        self.assertEqual(rc, 1)
        self.assert_summary(err, "exitcode  : -11 (pid:")
        self.assertRegex(err, r"traceback : Signal 11 \(SIGSEGV\) received by PID \d+")

    def test_process_failure_no_error_file(self):
        err = self.failed_job(None, code=138)
        self.assertIn("exitcode  : 138 (pid:", err)
        self.assertIn("error_file: <N/A>", err)
        self.assertIn("To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html", err)

    def failures(self, err):
        """[(rank, exit code)] of all blocks of the summary. Its parts are in another order under torchrun."""
        summary = err[err.index("FAILED\n"):]
        self.assertIn("\nFailures:\n", summary)
        return [(int(rank), int(code)) for rank, code in re.findall(
            r"^  rank      : (\d+) \(local_rank: \1\)\n  exitcode  : (-?\d+) \(pid: \d+\)", summary, re.M)]

    def wait_until_told(self, workers, keeper):
        """Until the keeper has reaped these workers and waits for what comes next: then it has told of their ends."""
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers)
                   and "sleeping" in pathlib.Path(f"/proc/{keeper}/status").read_text(), "the keeper to reap its workers")

    def test_child_failed_error(self):
        """All failures are in the summary, each with its own rank and exit code, and one of them is the root cause."""
        script = self.program('echo $$ $PPID > "$D/part.$RANK"; mv "$D/part.$RANK" "$D/here.$RANK"; wait_for go; exit $((RANK + 1))')
        launcher = self.start("--standalone", "--nproc-per-node=3", "--no-python", script)
        self.wait_for("here.0", "here.1", "here.2")
        parents = [[int(word) for word in self.lines(f"here.{rank}")[0].split()] for rank in range(3)]
        # It sees none of them end before all have: it would stop the others, which then are no failures.
        launcher.send_signal(signal.SIGSTOP)
        (self.dir / "go").touch()
        wait_for_ends([worker for worker, _ in parents], "the workers to end")
        if parents[0][1] != launcher.pid:  # torchrun's workers are its own children.
            self.wait_until_told([worker for worker, _ in parents], parents[0][1])
        launcher.send_signal(signal.SIGCONT)
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 1)
        self.assert_summary(err)
        self.assertEqual(sorted(self.failures(err)), [(0, 1), (1, 2), (2, 3)], err)

    def test_child_failed_error_of_workers_that_were_stopped(self):
        """Who ends because another one failed is no failure of its own, whatever its exit code; torchrun lists it as one."""
        script = self.program("""
            trap 'echo > "$D/stopped.$RANK"; exit 9' TERM
            echo > "$D/here.$RANK"
            for rank in 0 1 2; do wait_for here.$rank; done
            [[ $RANK != 1 ]] || exit 5
            wait_for never""")
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=3", "--no-python", script)
        self.assertEqual(rc, 1)
        self.assert_summary(err)
        self.assertEqual(self.failures(err), [(1, 5)], err)
        self.wait_for("stopped.0", "stopped.2")

    def stand_in(self):
        """@record of the installed PyTorch without the seconds that `import torch` takes: only the modules it needs."""
        import torch.distributed.elastic.multiprocessing.errors as errors
        folder = self.dir / "stand_in"
        target = folder / "torch/distributed/elastic/multiprocessing"
        target.mkdir(parents=True)
        for path in (folder / "torch", folder / "torch/distributed", folder / "torch/distributed/elastic", target):
            (path / "__init__.py").touch()
        logs = folder / "torch/distributed/elastic/utils"
        logs.mkdir()
        (logs / "__init__.py").touch()
        (logs / "logging.py").write_text("import logging\ndef get_logger(name): return logging.getLogger(name)\n")
        os.symlink(os.path.dirname(errors.__file__), target / "errors")
        return str(folder)

    def record(self, body, nproc=1, env=None):
        return self.run_job("--standalone", f"--nproc-per-node={nproc}", self.python(RECORD.format(body=body)),
                            env={"STAND_IN": self.stand_in(), **(env or {})})

    def test_record(self):
        rc, _, err = self.record("raise RuntimeError('recorded on purpose')")
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "RuntimeError: recorded on purpose", "in main")
        self.assertRegex(err, r"error_file: \S+/attempt_0/0/error\.json")

    def test_record_system_exit_zero(self):
        self.assert_success(self.record("sys.exit(0)"))

    def test_record_system_exit_not_zero(self):
        """Such an exit writes no error file."""
        rc, _, err = self.record("sys.exit(5)")
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "exitcode  : 5 (pid:", "error_file: <N/A>")

    def test_record_no_error_file(self):
        """With --log-dir=/dev/null there is no file to write; the failure is told all the same."""
        rc, _, err = self.run_job("--standalone", "--log-dir=/dev/null", self.python(RECORD.format(body="raise RuntimeError('recorded')")),
                                  env={"STAND_IN": self.stand_in()})
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "error_file: <N/A>", "exitcode  : 1 (pid:")

    def test_record_good_fn(self):
        self.assert_success(self.record("pass"))

    def test_record_child_failure(self):
        """row_37: the launcher's own error file is the root cause's, with its exit code."""
        own = self.dir / "own_error.json"
        rc, _, err = self.record("raise RuntimeError('recorded on purpose')", nproc=1, env={"TORCHELASTIC_ERROR_FILE": str(own)})
        self.assertEqual(rc, 1, err)
        message = json.loads(own.read_text())["message"]
        self.assertEqual((message["message"], message["errorCode"]), ("RuntimeError: recorded on purpose", 1))

    def test_dump_error_file(self):
        """error_handler_test.py: an existing file is replaced."""
        own = self.dir / "own_error.json"
        own.write_text("older")
        self.failed_job(json.dumps(NEW_FORMAT), code=7, env={"TORCHELASTIC_ERROR_FILE": str(own)})
        message = json.loads(own.read_text())["message"]
        self.assertEqual((message["message"], message["errorCode"], message["extraInfo"]["py_callstack"]),
                         (NEW_FORMAT["message"]["message"], 7, "the stack"))

    def test_signal_name_in_message(self):
        """After 2.11 the line of the exit code names the signal."""
        rc, _, err = self.run_job("--standalone", "--no-python", self.program("kill -KILL $$"))
        self.assertEqual(rc, 1)
        self.assertRegex(err, r"(?m)^  exitcode  : -9 \(pid: \d+\) SIGKILL$")


if __name__ == "__main__":
    main()
