"""Rows of torchrun's acceptance tests about failures: error files, labels, and who is blamed. FSDPRUN_ROUNDS repeats
what depends on timing."""

import json
import os

from job_case import JobCase, free_port
from unittest_main import main

ROUNDS = int(os.environ.get("FSDPRUN_ROUNDS", "3"))
LABELS = ("  time      : ", "  host      : ", "  rank      : ", "  exitcode  : ", "  error_file: ", "  traceback : ")


class RootCauseTest(JobCase):
    def fail_job(self, body, *args, env=None):
        rc, _, err = self.run_job("--standalone", *args, self.script(body), env=env)
        self.assertEqual(rc, 1, err)
        return err

    def root_block(self, err):
        """{label: text} of the block of the root cause."""
        block = err.split("Root Cause (first observed failure):\n")[1].split("\n---")[0]
        return {line[2:12].strip(): line[14:] for line in block.splitlines() if line[12:14] == ": "}

    def test_row_34_exit_code_in_torchruns_labels(self):
        err = self.fail_job("sys.exit(7) if RANK == 1 else live_on()", "--nproc-per-node=2")
        script = self.dir / "worker.py"
        self.assertIn("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", err)
        self.assertIn(f"\n{script} FAILED\n", err)
        self.assertIn("\nFailures:\n  <NO_OTHER_FAILURES>\n", err)
        root = err.split("Root Cause (first observed failure):\n[0]:\n")[1]
        for label in LABELS:
            self.assertRegex(root, f"(?m)^{label}")
        self.assertRegex(root, r"  rank      : 1 \(local_rank: 1\)\n  exitcode  : 7 \(pid: \d+\)\n")
        self.assertIn("  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n", root)

    def test_row_34_other_failures_have_the_same_fields(self):
        err = self.fail_job("""
            if RANK == 1:
                wait_for("ready.1.0")
                sys.exit(7)
            signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGBUS))  # Memory may have run out first.
            note("ready")
            live_on()
        """, "--nproc-per-node=2", "--abort-timeout=60", "--shutdown-timeout=60")
        self.assertEqual(self.root_block(err)["exitcode"].split()[0], "-7")
        others = err.split("\nFailures:\n[1]:\n")[1].split("\n---")[0]
        for label in LABELS:
            self.assertRegex(others, f"(?m)^{label}")
        self.assertRegex(others, r"  rank      : 1 .*\n  exitcode  : 7 ")

    def test_row_35_a_crash_is_a_negative_code(self):
        err = self.fail_job("os.kill(os.getpid(), signal.SIGSEGV)")
        self.assertRegex(err, r"  exitcode  : -11 \(pid: \d+\)")
        self.assertRegex(err, r"  traceback : Signal 11 \(SIGSEGV\) received by PID \d+\n")

    def error_file_job(self, content, *args, env=None):
        return self.fail_job(f"""
            pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text({content!r})
            note("start")
            sys.exit(3)
        """, *args, env=env)

    def test_row_36_formats_of_the_error_file(self):
        nested = {"message": {"message": "ValueError: hello", "extraInfo": {"py_callstack": "in f\nValueError: hello", "timestamp": "10"}}}
        for content in (nested, {"message": "hello", "timestamp": 10}, {"message": "hello", "timestamp": "10"}):
            with self.subTest(content):
                err = self.error_file_job(json.dumps(content), env={"TZ": "UTC"})
                root = self.root_block(err)
                self.assertEqual(root["time"], "1970-01-01_00:00:10")
                self.assertIn("hello", root["traceback"])
                self.assertTrue(root["error_file"].endswith("/attempt_0/0/error.json"), root)
                plain = content is not nested
                self.assertEqual(err.count("hello"), 1 if plain else 2, err)

    def test_row_36_broken_files_change_nothing(self):
        for content in ("", '{"message": {"message": "M", "extra', "{}", '{"message": {"message": "M"}}'):
            with self.subTest(content):
                err = self.error_file_job(content, "--max-restarts=2")
                self.assertEqual(self.root_block(err)["exitcode"].split()[0], "3")
                self.assertEqual(sorted(self.notes("start")), [(1, 0), (2, 0), (3, 0)])
                self.assertIn("2 of 2 restarts used", err)

    def test_row_37_error_file_of_the_launcher(self):
        outer = self.dir / "outer.json"
        cases = [("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGSEGV)", -11), ("""
            pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text('{"message": "hello", "timestamp": 10}')
            sys.exit(3)""", 3)]
        for body, code in cases:
            with self.subTest(code):
                outer.write_text("old")
                self.fail_job(body, env={"TORCHELASTIC_ERROR_FILE": str(outer)})
                message = json.loads(outer.read_text())["message"]
                self.assertEqual(message["errorCode"], code)
        self.assertEqual((message["message"], message["extraInfo"]["timestamp"]), ("hello", "10"))

    def test_row_37_error_files_of_all_nodes(self):
        script, port = self.script("sys.exit(4) if RANK else live_on()"), free_port()
        files = [self.dir / f"outer{n}.json" for n in range(2)]
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", script,
                            env={"TORCHELASTIC_ERROR_FILE": str(files[n])}) for n in range(2)]
        for node, file in zip(nodes, files):
            self.assertEqual(self.finish(node)[0], 1)
            self.assertIn("rank 1 exited with 4", json.dumps(json.loads(file.read_text())))

    def test_row_38_victims_are_not_blamed(self):
        """One of eight ranks on two nodes is killed; all others then report the loss, with older timestamps. They see it by a
        lock of the culprit's, which the kernel gives up as it closes connections: before the process counts as ended."""
        script = self.script("""
            import fcntl
            victims = [rank for rank in range(WORLD) if rank != int(os.environ["CULPRIT"])]
            connection = open(D / "connection", "a")
            if RANK not in victims:
                wait_for(*(f"ready.1.{rank}" for rank in victims))
                fcntl.flock(connection, fcntl.LOCK_EX)
                note("dying")
                os.kill(os.getpid(), signal.SIGKILL)
            note("ready")
            wait_for(f"dying.1.{os.environ['CULPRIT']}")
            fcntl.flock(connection, fcntl.LOCK_SH)
            pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": {
                "message": "RuntimeError: Connection closed by peer",
                "extraInfo": {"py_callstack": "stack", "timestamp": str(int(time.time()) - RANK)}}}))
            sys.exit(1)
        """)
        for round_ in range(ROUNDS):
            culprit, port = (3 * round_ + 5) % 8, free_port()
            with self.subTest(culprit=culprit):
                nodes = [self.start("--nnodes=2", "--nproc-per-node=4", f"--master-port={port}", f"--node-rank={n}", script,
                                    env={"CULPRIT": str(culprit)}) for n in range(2)]
                (rc0, _, err0), (rc1, _, err1) = (self.finish(node) for node in nodes)
                self.assertEqual((rc0, rc1), (1, 1))
                self.assertRegex(err0, rf"\n\[0\]:\n.*\n.*\n  rank      : {culprit} \(local_rank: {culprit % 4}\)\n  exitcode  : -9 ")
                self.assertIn(f"rank {culprit} died of signal 9", err1)
                for path in [*self.dir.glob("ready.*"), *self.dir.glob("dying.*")]:
                    path.unlink()

    def test_row_59_the_budget_of_a_peer_is_the_budget_of_all(self):
        """Both end within a test's patience, where torchrun's other agent waits for 300 s in its exit barrier."""
        for failing in range(2):
            with self.subTest(failing=failing):
                script, port = self.script(f"""
                    sys.exit(4) if RANK == {failing} else live_on()
                """), free_port()
                nodes = [self.start("--nnodes=2", "--max-restarts=1", f"--master-port={port}", f"--node-rank={n}", script)
                         for n in range(2)]
                results = [self.finish(node) for node in nodes]
                self.assertEqual([rc for rc, _, _ in results], [1, 1])
                self.assertEqual(sum(err.count("Root Cause") for _, _, err in results), 1)
                self.assertIn(f"rank      : {failing} ", results[0][2])
                self.assertIn(f"rank {failing} exited with 4", results[1][2])


if __name__ == "__main__":
    main()
