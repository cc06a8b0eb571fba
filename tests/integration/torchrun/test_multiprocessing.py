"""PyTorch's elastic/multiprocessing/api_test.py and test_api.py: workers as processes, their streams and their signals."""

import os
import re
import signal
import subprocess
import sys

from compat_case import CompatCase, is_alive, main, processes_with

OUT_AND_ERR = 'echo "hello stdout from $RANK"; echo "hello stderr from $RANK" >&2'
RUN = 'echo $$ > "$D/part.$$"; mv "$D/part.$$" "$D/runs.$RANK"; wait_for finish'


class MultiprocessingTest(CompatCase):
    def job(self, *words, nproc=2, **kwargs):
        return self.run_job("--standalone", f"--nproc-per-node={nproc}", f"--log-dir={self.dir / 'logs'}", *words, **kwargs)

    def non_empty(self):
        return {name for name, content in self.log_tree(self.dir / "logs").items() if content}

    def test_from_value(self):
        """Each of the four values of --redirects is taken."""
        for value in "0123":
            with self.subTest(value):
                self.assert_success(self.job(f"--redirects={value}", f"--tee={value}", "--no-python", "true", nproc=1))

    def test_from_value_map(self):
        self.assert_success(self.job("--redirects=0:1,1:2", "--no-python", self.program(OUT_AND_ERR)))
        self.assertEqual(self.non_empty(), {"attempt_0/0/stdout.log", "attempt_0/1/stderr.log"})

    def test_from_str_bad_input(self):
        """row_03"""
        for option in ("--redirects", "--tee"):
            for value in ("0:1,", "11", "4", "1,0:1", "0:1,1"):
                with self.subTest(f"{option}={value}"):
                    self.assert_refused(self.job(f"{option}={value}", "--no-python", "true"), 1, option, value)

    def test_invalid_log_dir(self):
        file = self.dir / "a_file"
        file.touch()
        self.assert_refused(self.run_job("--standalone", f"--log-dir={file}", "--no-python", "true"), 1, file)

    def test_pcontext_context_close(self):
        """The end of a job: no process of a worker is left, though one of them does not end by itself."""
        # Rank 1 ends as soon as the file of rank 0 is there, which is whole then.
        script = self.program('echo $$ > "$D/.$RANK"; mv "$D/.$RANK" "$D/pid.$RANK"; '
                              'if [[ $RANK == 1 ]]; then wait_for pid.0; exit 1; fi; wait_for finish')
        self.assertEqual(self.job("--no-python", script)[0], 1)
        self.assertEqual([is_alive(int(self.lines(f"pid.{rank}")[0])) for rank in (0, 1)], [False, False])

    def test_multiprocess_context_close(self):
        """The same for workers that torchrun runs in children of its own."""
        script = self.python("import os, time\nopen(f\"{os.environ['D']}/pid.{os.environ['RANK']}\", 'w').write(str(os.getpid()))\n"
                             "if os.environ['RANK'] == '1': raise SystemExit(1)\ntime.sleep(1000)\n")
        self.assertEqual(self.job("--run-path", "--start-method=fork", script)[0], 1)
        self.assertFalse(any(is_alive(int(self.lines(f"pid.{rank}")[0])) for rank in (0, 1) if self.lines(f"pid.{rank}")))

    def test_binary_exit(self):
        rc, _, err = self.job("--redirects=3", "--no-python", self.program('[[ $RANK == 0 ]] || exit 138; wait_for never'))
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "exitcode  : 138 (pid:", "rank      : 1 (local_rank: 1)")

    def test_binary_raises(self):
        """Without @record nobody writes an error file; the traceback is in the log."""
        rc, _, err = self.job("--redirects=3", self.python("raise RuntimeError('raised on purpose')\n"), nproc=1)
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "exitcode  : 1 (pid:", "error_file: <N/A>")
        tree = self.log_tree(self.dir / "logs")
        self.assertIn(b"RuntimeError: raised on purpose", tree["attempt_0/0/stderr.log"])
        self.assertNotIn("attempt_0/0/error.json", tree)

    def test_binary_incorrect_entrypoint(self):
        """row_09"""
        result = self.job("--no-python", "does_not_exist.py")
        self.assert_refused(result, 1, "does_not_exist.py")
        self.assertIn("does_not_exist.py", result[2])

    def test_binary_signal(self):
        """row_35"""
        rc, _, err = self.job("--no-python", self.program('[[ $RANK == 0 ]] || kill -SEGV $$; wait_for never'))
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "exitcode  : -11 (pid:", "rank      : 1 (local_rank: 1)")
        self.assertRegex(err, r"Signal 11 \(SIGSEGV\) received by PID \d+")

    def test_binary_redirect_and_tee(self):
        """row_24, the case of the original."""
        rc, out, err = self.job("--redirects=0:2,1:0", "--tee=0:1,1:2", "--no-python", self.program(OUT_AND_ERR))
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.non_empty(), {"attempt_0/0/stdout.log", "attempt_0/0/stderr.log", "attempt_0/1/stderr.log"})
        self.assertEqual(sorted(out.splitlines()), ["[default0]:hello stdout from 0", "hello stdout from 1"])
        self.assertIn("[default1]:hello stderr from 1", err.splitlines())
        self.assertNotIn("hello stderr from 0", err)

    def test_binary(self):
        """Redirects none, out, err and all: what is in the files and what on the console."""
        self.check_redirects(["--no-python", self.program(OUT_AND_ERR)])

    def test_function(self):
        """The same of a Python worker, whose streams have buffers. Unbuffered, print() writes a line in two pieces, which
        another worker's may come between where both have the console itself."""
        self.check_redirects([self.python("""
import os, sys
for name in ("stdout", "stderr"):
    getattr(sys, name).write(f"hello {name} from {os.environ['RANK']}\\n")
""")])

    def check_redirects(self, worker):
        for value, files in (("0", ()), ("1", ("stdout",)), ("2", ("stderr",)), ("3", ("stdout", "stderr"))):
            with self.subTest(value):
                log_dir = self.dir / f"logs{value}"
                rc, out, err = self.run_job("--standalone", "--nproc-per-node=2", f"--log-dir={log_dir}", f"--redirects={value}", *worker)
                self.assertEqual(rc, 0, err)
                content = {name: text.decode() for name, text in self.log_tree(log_dir).items()}
                for stream, console in (("stdout", out), ("stderr", err)):
                    texts = [f"hello {stream} from {rank}" for rank in (0, 1)]
                    if stream in files:
                        self.assertEqual([content[f"attempt_0/{rank}/{stream}.log"] for rank in (0, 1)], [f"{t}\n" for t in texts])
                        self.assertNotIn("hello", console)
                    else:
                        self.assertLessEqual(set(texts), set(console.splitlines()))

    def test_start_processes_with_duplicate_stdout_filters(self):
        """row_29, and with a filter of ranks."""
        script = self.program('echo "foo,bar$RANK"; echo foo; echo bar; echo "baz $RANK"; echo "foo,bar" >&2')
        for words, ranks in (([], (0, 1)), (["--local-ranks-filter=0"], (0,))):
            with self.subTest(words):
                log_dir = self.dir / f"logs{len(words)}"
                rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", f"--log-dir={log_dir}", "--tee=3",
                                          "--duplicate-stdout-filters=foo,,bar,baz", *words, "--no-python", script)
                self.assertEqual(rc, 0, err)
                tree = self.log_tree(log_dir)
                self.assertEqual(sorted(tree["attempt_0/filtered_stdout.log"].decode().splitlines()),
                                 sorted(f"[default{rank}]:{text}" for rank in ranks for text in (f"foo,bar{rank}", f"baz {rank}")))
                self.assertNotIn("attempt_0/filtered_stderr.log", tree)

    def check_no_zombies(self, *words, script):
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"):
            with self.subTest(name):
                for path in self.dir.glob("runs.*"):
                    path.unlink()
                process = self.start("--standalone", "--nproc-per-node=2", *words, script)
                self.wait_for("runs.0", "runs.1")
                pids = [int(self.lines(f"runs.{rank}")[0]) for rank in (0, 1)]
                process.send_signal(signal.Signals[name])
                self.assertEqual(self.finish(process)[0], 1)
                self.assertFalse(any(map(is_alive, pids)))

    def test_no_zombie_process_binary(self):
        """The worker leaves each signal's default action at every moment: bash ignores SIGQUIT."""
        script = '#!/bin/sh\necho $$ > "$D/part.$$"; mv "$D/part.$$" "$D/runs.$RANK"; exec sleep 1000\n'
        self.check_no_zombies("--no-python", script=self.program(script))

    def test_no_zombie_process_function(self):
        self.check_no_zombies("--run-path", "--start-method=fork", script=self.python(
            "import os, time\nname = f\"{os.environ['D']}/part.{os.getpid()}\"\nopen(name, 'w').write(str(os.getpid()))\n"
            "os.rename(name, f\"{os.environ['D']}/runs.{os.environ['RANK']}\")\ntime.sleep(1000)\n"))

    def test_no_zombie_process_when_the_launcher_dies(self):
        """Signals that torchrun does not survive; row_45."""
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1):
            with self.subTest(number):
                for path in self.dir.glob("runs.*"):
                    path.unlink()
                process = self.start("--standalone", "--nproc-per-node=2", "--no-python", self.program(RUN), stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
                self.wait_for("runs.0", "runs.1")
                os.kill(process.pid, number)
                process.wait()
                self.assertEqual(process.returncode, -number)
                if self.launcher == "torchrun":
                    self.assertEqual(processes_with(self.marker), [])
                self.assert_nothing_left()


class SignalsTest(CompatCase):
    """test_api.py."""

    SCRIPT = """
        for name in TERM INT USR1 USR2; do trap "echo $name > $D/signal.$RANK; exit 1" $name; done
        echo > "$D/runs.$RANK"
        wait_for never"""

    def signalled(self, number, *words, env=None):
        process = self.start("--standalone", "--nproc-per-node=1", *words, "--no-python", self.program(self.SCRIPT), env=env)
        self.wait_for("runs.0")
        process.send_signal(number)
        rc, _, err = self.finish(process)
        self.assertEqual((rc, self.lines("signal.0")), (1, [signal.Signals(number).name.removeprefix("SIG")]), err)
        return err

    def test_default_signals(self):
        self.signalled(signal.SIGTERM)

    def test_custom_signals(self):
        """row_44"""
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            self.signalled(number, "--signals-to-handle=SIGUSR1,SIGUSR2")
            (self.dir / "runs.0").unlink()

    def test_invalid_signal_names(self):
        """The unknown name is warned of, the others work."""
        err = self.signalled(signal.SIGUSR1, "--signals-to-handle=SIGUSR1,SIGNOPE", env={"LOGLEVEL": "WARNING"})
        self.assertIn("SIGNOPE", err)


class OutputTest(CompatCase):
    """redirects_test.py: what a worker and its children write, through whatever layer, is in the file, once and in order."""

    def check(self, redirects, script, expected, nproc=1):
        log_dir = self.dir / "logs"
        rc, out, err = self.run_job("--standalone", f"--nproc-per-node={nproc}", f"--log-dir={log_dir}", f"--redirects={redirects}", *script)
        self.assertEqual(rc, 0, err)
        tree = self.log_tree(log_dir)
        for name, lines in expected.items():
            self.assertEqual(tree[f"attempt_0/0/{name}.log"].decode().splitlines(), lines)
        return out, err

    LAYERS = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
    print(f"{name} from python", file=stream, flush=True)
    libc.dprintf(stream.fileno(), f"{name} from C\\n".encode())
    os.system(f"echo {name} from system >&{stream.fileno()}")
"""

    def layers(self, redirects, redirected):
        all_lines = {name: [f"{name} from {layer}" for layer in ("python", "C", "system")] for name in ("stdout", "stderr")}
        out, err = self.check(redirects, [self.python(self.LAYERS)], {name: all_lines[name] for name in redirected})
        for name, console in (("stdout", out), ("stderr", err)):
            for line in all_lines[name]:
                self.assertEqual(line in console, name not in redirected)

    def test_redirect_invalid_std(self):
        self.assert_refused(self.run_job("--standalone", "--redirects=stdfoo", "--no-python", "true"), 1, "stdfoo")

    def test_redirect_invalid_fd(self):
        """A worker that closes a stream writes nothing there; the other one is kept, and the job is none the worse."""
        script = self.program("exec >&-; echo lost 2>&9; echo kept >&2; true")
        self.check("3", ["--no-python", script], {"stdout": [], "stderr": ["kept"]})

    def test_redirect_stdout(self):
        self.layers("1", ["stdout"])

    def test_redirect_stderr(self):
        self.layers("2", ["stderr"])

    def test_redirect_both(self):
        self.layers("3", ["stdout", "stderr"])

    def volume(self, lines):
        program = [sys.executable, "-c", f"for i in range({lines}): print('line', i)"]
        self.check("1", ["--no-python", *program], {"stdout": [f"line {i}" for i in range(lines)]})

    def test_redirect_large_buffer(self):
        """The original writes 500,000 lines from Python and from C; the soak tier's test of volume has those."""
        self.volume(50_000)


class TailTest(CompatCase):
    """tail_log_test.py: what --tee shows on the console."""

    def shown(self, *words, nproc=2, script="echo out$RANK; echo err$RANK >&2", env=None):
        rc, out, err = self.run_job("--standalone", f"--nproc-per-node={nproc}", "--tee=3", f"--log-dir={self.dir / 'logs'}", *words, "--no-python",
                                    self.program(script), env={"OMP_NUM_THREADS": "1", **(env or {})})
        self.assertEqual(rc, 0, err)
        return out, err

    def test_tail(self):
        """Many files at once, each line whole, none lost."""
        out, _ = self.shown(nproc=16, script='for ((i = 0; i < 500; i++)); do echo "line $i"; done')
        self.assertEqual(sorted(out.splitlines()), sorted(f"[default{rank}]:line {i}" for rank in range(16) for i in range(500)))

    def test_tail_write_to_dst_file(self):
        self.shown()
        tree = self.log_tree(self.dir / "logs")
        self.assertEqual({name: text.decode() for name, text in tree.items()}, {
            f"attempt_0/{rank}/std{stream}.log": f"{stream}{rank}\n" for rank in (0, 1) for stream in ("out", "err")})

    def test_tail_with_custom_prefix(self):
        out, err = self.shown("--role=worker", env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}.${rank}.${local_rank}> "})
        self.assertEqual((sorted(out.splitlines()), sorted(err.splitlines())),
                         (["<worker.0.0> out0", "<worker.1.1> out1"], ["<worker.0.0> err0", "<worker.1.1> err1"]))

    def test_tail_with_custom_filter(self):
        """row_28"""
        out, err = self.shown("--local-ranks-filter=1")
        self.assertEqual((out.splitlines(), err.splitlines()), (["[default1]:out1"], ["[default1]:err1"]))
        self.assertEqual(len([name for name in self.log_tree(self.dir / "logs") if name.endswith(".log")]), 4)

    def test_tail_no_files(self):
        """Workers that write nothing."""
        self.assertEqual(self.shown(script="true"), ("", ""))

    def test_tail_logfile_never_generates(self):
        """The files are removed by a worker: the job goes on."""
        self.shown(nproc=1, script='rm -f "$D"/logs/*/attempt_0/0/std*.log; echo hello')

    def test_tail_err_in_tail_does_not_kill_the_job(self):
        """row_32: nobody reads the console any more."""
        read, write = os.pipe()
        process = self.start("--standalone", "--nproc-per-node=2", "--tee=1", f"--log-dir={self.dir / 'logs'}", "--no-python",
                             self.program('wait_for reader_is_gone; for ((i = 0; i < 3000; i++)); do echo "line $i"; done'), stdout=write,
                             stderr=subprocess.PIPE)
        os.close(write)
        os.close(read)
        (self.dir / "reader_is_gone").touch()
        rc, _, err = self.finish(process)
        self.assertEqual(rc, 0, err)
        for rank in (0, 1):
            self.assertEqual(len(re.findall(rb"^line \d+$", self.log_tree(self.dir / "logs")[f"attempt_0/{rank}/stdout.log"], re.M)), 3000)


if __name__ == "__main__":
    main()
