"""--redirects, --tee, --local-ranks-filter, the duplicate filters and --log-dir: what is kept, and what the console shows."""

import os
import pathlib
import re

import events
from job_case import JobCase, free_port
from unittest_main import main

OUT_ERR = "echo out$RANK; echo err$RANK >&2"


class OutputTest(JobCase):
    def setUp(self):
        super().setUp()
        self.logs = self.dir / "logs"

    def run_sh(self, body, *options, nproc=2, logs=True, **kwargs):
        where = ("--log-dir", self.logs) if logs else ()
        return self.run_job("--standalone", f"--nproc-per-node={nproc}", *where, *options, "--no-python", "sh", "-c", body,
                            **kwargs)

    def tree(self):
        """{path below the run's directory: bytes} of all logs, and of nothing else but events.jsonl and ledger.json."""
        found = {}
        for run in self.logs.iterdir() if self.logs.exists() else ():
            found.update({str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*")
                          if p.is_file() and p not in (run / "events.jsonl", run / "ledger.json")})
        return found

    def kept(self):
        """Attempt 0's, as "<rank>/<name>"."""
        return sorted(path.removeprefix("attempt_0/").removesuffix(".log") for path in self.tree())

    def shown(self, result):
        rc, out, err = result
        self.assertEqual(rc, 0, err)
        return sorted(out.splitlines()), sorted(err.splitlines())

    def assert_tmp_is_empty(self):
        self.assertEqual(self.temporary_files(), [])

    def test_row_23_redirects_go_to_files_of_each_attempt(self):
        rc, out, err = self.run_job("--standalone", "--nproc-per-node=2", "--log-dir", self.logs, "--redirects=3",
                                    "--max-restarts=2", self.script("""
            print(f"out{RANK}", flush=True)
            print(f"err{RANK}", file=sys.stderr, flush=True)
            note("done")
            wait_for(f"done.{GENERATION}.{1 - RANK}")
            sys.exit(3)
        """))
        self.assertEqual((rc, out), (1, ""))
        self.assertNotIn("err0\n", re.sub(r"(?m)^ .*\n", "", err))  # Outside the report.
        self.assertEqual(set(self.tree()), {f"attempt_{n}/{r}/{s}.log" for n in range(3) for r in "01"
                                            for s in ("stdout", "stderr")})
        for path, text in self.tree().items():
            self.assertEqual(text.decode(), f"{path.split('/')[-1][3:6]}{path.split('/')[1]}\n")

    def test_a_full_disk_under_standard_output_is_told_of_once_and_costs_the_exit_code(self):
        body = "for i in $(seq 1000); do echo line $i; done"
        with open("/dev/full", "w") as full:
            rc, _, err = self.run_sh(body, "--tee=1", stdout=full, env={"LOGLEVEL": "WARNING"})
        self.assertEqual(rc, 74, err)
        told = [line for line in err.splitlines() if "No space left on device" in line]
        self.assertEqual(len(told), 1, err)
        self.assertIn("fsdprun: cannot write the workers' output to standard output", told[0])
        kept = [text for path, text in self.tree().items() if path.endswith("stdout.log")]
        self.assertEqual([text.count(b"\n") for text in kept], [1000, 1000])

    def test_a_job_that_fails_has_its_own_code_on_a_full_disk(self):
        with open("/dev/full", "w") as full:
            rc, _, err = self.run_sh("echo out; exit 7", "--exit-code=worker", nproc=1, stdout=full)
        self.assertEqual(rc, 7, err)

    def test_a_full_disk_under_both_streams_costs_the_exit_code(self):
        with open("/dev/full", "w") as full:
            self.assertEqual(self.run_sh("echo out", stdout=full, stderr=full)[0], 74)

    def test_a_reader_that_leaves_is_no_error(self):
        reading, writing = os.pipe()
        os.close(reading)
        rc, _, err = self.run_sh("echo out", stdout=writing)
        os.close(writing)
        self.assertEqual((rc, err), (0, ""))

    def test_row_24_maps_of_ranks(self):
        cases = (
            (("--redirects=0:1,1:2",), ["out1"], ["err0"], ["0/stdout", "1/stderr"]),
            (("--tee=0:1,1:2",), ["[default0]:out0", "out1"], ["[default1]:err1", "err0"], ["0/stdout", "1/stderr"]),
            (("--redirects=0:2,1:0", "--tee=0:1,1:2"), ["[default0]:out0", "out1"], ["[default1]:err1"],
             ["0/stderr", "0/stdout", "1/stderr"]),
        )
        for options, out, err, kept in cases:
            with self.subTest(options):
                self.assertEqual(self.shown(self.run_sh(OUT_ERR, *options)), (out, err))
                self.assertEqual(self.kept(), kept)
                for path, text in self.tree().items():
                    self.assertEqual(text.decode(), f"{path.split('/')[-1][3:6]}{path.split('/')[1]}\n")
                # Directories are there for every rank, for the error files.
                self.assertEqual(sorted(p.name for p in self.logs.glob("*/attempt_0/*")), ["0", "1"])
                self.assert_tmp_is_empty()
                for run in self.logs.iterdir():
                    run.rename(self.dir / f"old-{run.name}")

    def test_row_25_prefix_has_the_role_or_is_a_template(self):
        template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name}-${local_rank}:${rank}] "}
        for options, env, prefix in (
                ((), {}, "[default{0}]:"), (("--role=trainer",), {}, "[trainer{0}]:"),
                ((), template, "[default-{0}:{0}] "), ((), {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": ""}, "[default{0}]:")):
            with self.subTest(prefix, options=options):
                out, err = self.shown(self.run_sh(OUT_ERR, "--tee=3", *options, logs=False, env=env))
                self.assertEqual(out, [prefix.format(r) + f"out{r}" for r in "01"])
                self.assertEqual(err, [prefix.format(r) + f"err{r}" for r in "01"])

    def test_row_26_bytes_stay_in_files_and_are_text_on_the_console(self):
        script = self.script(r"""
            sys.stdout.buffer.write(b"\xff\xfe\n\r 10%\r 20%\r\nu\xcc\x88\nlast")
        """)
        rc, out, _ = self.run_job("--standalone", "--log-dir", self.logs, "--tee=1", script)
        self.assertEqual(rc, 0)
        self.assertEqual(out.split("\n"), [f"[default0]:{text}" for text in ("\ufffd\ufffd", " 10%", " 20%", "u\u0308", "last")]
                         + [""])
        self.assertEqual(self.tree()["attempt_0/0/stdout.log"], b"\xff\xfe\n\r 10%\r 20%\r\nu\xcc\x88\nlast")

    def test_row_26_a_long_line_has_one_prefix(self):
        rc, out, _ = self.run_job("--standalone", "--nproc-per-node=2", "--tee=3",
                                  self.script("print('xy'[RANK] * 1000000)"))
        self.assertEqual(rc, 0)
        self.assertEqual(sorted(out.splitlines()), [f"[default{r}]:" + "xy"[r] * 1000000 for r in (0, 1)])

    def test_row_27_partial_lines_stay_apart(self):
        rc, out, _ = self.run_job("--standalone", "--nproc-per-node=2", "--tee=3", self.script("""
            for i in range(5):
                note(f"turn{i}")
                wait_for(f"turn{i}.1.{1 - RANK}")
                print("ab"[RANK], end="", flush=True)
        """))
        self.assertEqual((rc, sorted(out.split())), (0, ["[default0]:aaaaa", "[default1]:bbbbb"]))

    def test_row_28_filter_of_local_ranks(self):
        files = ["0/stderr", "0/stdout", "1/stderr", "1/stdout"]
        for options, out, err, kept in (
                (("--tee=3",), ["[default1]:out1"], ["[default1]:err1"], files),
                (("--redirects=3",), [], [], files),
                (("--redirects=0:0",), ["out1"], ["err1"], []),
                ((), ["out1"], ["err1"], files)):
            with self.subTest(options):
                self.assertEqual(self.shown(self.run_sh(OUT_ERR, "--local-ranks-filter=1", *options)), (out, err))
                self.assertEqual(self.kept(), kept)
                for run in self.logs.iterdir():
                    run.rename(self.dir / f"old-{run.name}")

    def test_row_29_lines_with_one_of_the_texts_are_duplicated(self):
        body = "printf 'foo\\nfoo,bar%s\\nbar\\nbaz' $RANK; echo baz >&2"
        self.shown(self.run_sh(body, "--duplicate-stdout-filters", "foo,,bar,baz", "--tee=3"))
        tree = self.tree()
        self.assertEqual(sorted(tree.pop("attempt_0/filtered_stdout.log").decode().splitlines()),
                         sorted(f"[default{r}]:{text}" for r in "01" for text in (f"foo,bar{r}", "baz")))
        self.assertNotIn("attempt_0/filtered_stderr.log", tree)
        self.assertEqual(len(tree), 4)

    def test_row_29_each_attempt_has_its_own_filtered_file(self):
        rc, _, err = self.run_sh("echo keep$TORCHELASTIC_RESTART_COUNT >&2; echo no >&2; exit $((1-TORCHELASTIC_RESTART_COUNT))",
                                 "--duplicate-stderr-filters=keep", "--tee=2", "--max-restarts=1", nproc=1)
        self.assertEqual(rc, 0, err)
        self.assertEqual({p: t for p, t in self.tree().items() if "filtered" in p},
                         {f"attempt_{n}/filtered_stderr.log": f"[default0]:keep{n}\n".encode() for n in (0, 1)})

    def test_filtered_files_are_made_also_if_nothing_is_teed(self):
        self.shown(self.run_sh(OUT_ERR, "--duplicate-stdout-filters=out", "--redirects=3"))
        self.assertEqual(self.tree()["attempt_0/filtered_stdout.log"], b"")

    def test_filtered_output_does_not_wait_for_a_slow_console(self):
        launcher = self.start("--standalone", "--log-dir", self.logs, "--tee=1", "--duplicate-stdout-filters=match", self.script("""
            for i in range(40000): print(f"line {i:06d} " + "x" * 100)
            print("match", flush=True)
            name = pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parents[1] / "filtered_stdout.log"
            sys.path.insert(0, os.environ["EVENTS"])
            from events import wait_for_files
            wait_for_files(lambda: name.stat().st_size > 0, name.parent, "the match", writes=True)
            note("done")
        """), env={"EVENTS": str(pathlib.Path(events.__file__).parent)})
        self.wait_for_notes("done", 1, [0])
        rc, out, _ = self.finish(launcher)
        self.assertEqual((rc, len(out.splitlines())), (0, 40001))
        self.assertEqual(self.tree()["attempt_0/filtered_stdout.log"], b"[default0]:match\n")

    def test_row_30_a_change_of_membership_keeps_earlier_logs(self):
        script = self.script("""
            print(f"generation {GENERATION}", flush=True)
            note("up")
            if GENERATION == 1: live_on()
        """)
        port = free_port()
        options = ("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=row30",
                   "--rdzv-conf=last_call_timeout=0.01", "--tee=1")
        first = self.start(*options, "--log-dir", self.logs, script, env={"FSDPRUN_TOKEN": "t"})
        self.wait_for_notes("up", 1, [0])
        second = self.start(*options, "--log-dir", self.dir / "others", script, env={"FSDPRUN_TOKEN": "t"})
        for launcher in (first, second):
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, 0, err)
        texts = sorted(self.tree().items())
        self.assertEqual({path.split("/")[0] for path, _ in texts}, {"attempt_0", "attempt_0.1"}, texts)
        self.assertEqual({text for path, text in texts if path.endswith("stdout.log")}, {b"generation 1\n", b"generation 2\n"})

    def test_row_31_nothing_is_left_after_success(self):
        for options in ((), ("--tee=3",), ("--redirects=0:1",), ("--tee=1", "--duplicate-stdout-filters=o"),
                        ("--log-dir=/dev/null",)):
            with self.subTest(options):
                self.shown(self.run_sh(OUT_ERR, *options, logs=False))
                self.assert_tmp_is_empty()

    def test_row_32_a_reader_that_leaves_early_does_no_harm(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", "--log-dir", self.logs, "--tee=3", "--no-python", "sh", "-c",
                              "seq 20000; seq 20000 >&2")
        self.assertRegex(launcher.stdout.readline(), r"^\[default[01]\]:1\n")
        launcher.stdout.close()
        launcher.stdout = None
        rc, _, err = self.finish(launcher)
        self.assertEqual((rc, err.count("\n")), (0, 40000))
        self.assertEqual([text.count(b"\n") for text in self.tree().values()], [20000] * 4)

    def test_a_blocked_standard_output_does_not_hold_up_standard_error(self):
        launcher = self.start("--standalone", "--tee=2", self.script("""
            for i in range(40000): print("x" * 200)
            sys.stdout.flush()
            print("heard", file=sys.stderr, flush=True)
            wait_for("go")
        """))
        self.assertEqual(launcher.stderr.readline(), "[default0]:heard\n")
        (self.dir / "go").touch()
        rc, out, _ = self.finish(launcher)
        self.assertEqual((rc, len(out.splitlines())), (0, 40000))

    def test_no_log_directory(self):
        rc, out, err = self.run_sh("test -z \"$TORCHELASTIC_ERROR_FILE\" && echo out$RANK; echo err$RANK >&2", "--tee=3",
                                   "--redirects=3", "--log-dir=/dev/null", logs=False)
        self.assertEqual((rc, sorted(out.split()), sorted(err.split())), (0, ["out0", "out1"], ["err0", "err1"]))
        self.assert_tmp_is_empty()

    def test_no_log_directory_and_no_place_for_temporary_files(self):
        rc, out, err = self.run_sh("seq 1000", "--log-dir=/dev/null", logs=False, env={"TMPDIR": "/proc/nowhere"})
        self.assertEqual((rc, len(out.split()), err), (0, 2000, ""))

    def test_no_log_directory_and_a_failure_has_the_last_lines(self):
        rc, _, err = self.run_sh("echo last words >&2; exit 7", "--log-dir=/dev/null", logs=False, nproc=1)
        self.assertEqual(rc, 1)
        self.assertIn("| last words", err)
        self.assertNotIn("log       :", err)
        self.assertNotIn("logs of this node's workers", err)
        self.assert_tmp_is_empty()

    def test_logs_that_nobody_made_are_not_named(self):
        rc, _, err = self.run_sh("exit 7", logs=False, nproc=1)
        self.assertEqual(rc, 1)
        self.assertNotIn("logs of this node's workers", err)
        self.assert_tmp_is_empty()

    def test_logs_are_named_if_there_are_any(self):
        rc, _, err = self.run_sh("echo last words >&2; exit 7", "--redirects=3", logs=False, nproc=1)
        self.assertEqual(rc, 1)
        (folder,) = re.findall("logs of this node's workers are in (.*)", err)
        self.assertEqual([path.read_text() for path in pathlib.Path(folder).rglob("stderr.log")], ["last words\n"])

    def test_the_logs_that_a_report_names_are_there(self):
        for options, name in (((), "stderr.log"), (("--redirects=2",), "stderr.log"), (("--tee=1",), "stdout.log"),
                              (("--redirects=1:3",), None)):
            for logs in (True, False):
                with self.subTest(options, logs=logs):
                    rc, _, err = self.run_sh("echo out; echo last words >&2; exit 7", *options, nproc=1, logs=logs)
                    self.assertEqual(rc, 1)
                    self.assertIn("| last words", err)
                    found = re.findall(r"log +: (.*)", err)
                    self.assertEqual([path.rsplit("/", 1)[1] for path in found], [name] if name else [])
                    for path in found:
                        with open(path) as log:
                            self.assertIn(log.read(), ("out\n", "last words\n"))
                    self.assertEqual(list((self.dir / "tmp").glob("fsdprun_spool_*")), [])

    def test_an_error_file_is_found_where_no_log_is_kept(self):
        rc, _, err = self.run_job("--standalone", "--log-dir", self.logs, "--redirects=1:3", self.script("""
            pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": "told so"}))
            sys.exit(1)
        """))
        self.assertEqual(rc, 1)
        self.assertIn("told so", err)
        with open(re.search(r"error_file: (.*)", err).group(1)) as file:
            self.assertIn("told so", file.read())


if __name__ == "__main__":
    main()
