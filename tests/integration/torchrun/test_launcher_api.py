"""PyTorch's launcher/api_test.py and launcher/test_api.py."""

import os
import re
import signal

from compat_case import CompatCase, c10d, free_port, main, wait_for_ends

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
# Tells that it runs and then waits for a signal, or for the end of the test.
WAIT = """
trap 'echo $$ > "$D/signalled.$GROUP_RANK"; exit 1' TERM INT HUP QUIT
echo $$ > "$D/part.$$"; mv "$D/part.$$" "$D/runs.$WORLD_SIZE.$GROUP_RANK.$RANK"
wait_for finish
"""


class ApiTest(CompatCase):
    def options(self, *words, nnodes="1", nproc=4):
        return [f"--nnodes={nnodes}", f"--nproc-per-node={nproc}", *c10d(free_port(), *words), "--monitor-interval=0.1"]

    def test_launch_script_python(self):
        self.assert_success(self.run_job(*self.options(), self.python_probe(), f"--touch-file-dir={self.files}"))
        self.assert_world(4)

    def test_launch_script_python_local_rank_transfer(self):
        script = self.python("import os, sys\nopen(f\"{os.environ['D']}/rank.{os.environ['RANK']}\", 'w').write(sys.argv[2])\n")
        self.assert_success(self.run_job(*self.options(), script, "--rank", "${local_rank}"))
        self.assertEqual([self.lines(f"rank.{rank}") for rank in range(4)], [[str(rank)] for rank in range(4)])

    def test_launch_script_bash(self):
        self.assert_success(self.run_job(*self.options(), "--no-python", self.bash_probe(), str(self.files)))
        self.assert_world(4)

    def test_launch_elastic(self):
        self.assert_success(self.run_job(*self.options("--rdzv-conf=join_timeout=60,last_call_timeout=1", nnodes="1:2"), "--no-python",
                                         self.bash_probe(), str(self.files)))
        self.assert_world(4)

    def test_launch_elastic_worker_raise_exception(self):
        rc, _, err = self.run_job(*self.options("--rdzv-conf=join_timeout=60,last_call_timeout=1", nnodes="1:2"), "--no-python",
                                  self.bash_probe(), str(self.files), "--fail")
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "exitcode  : 1 (pid:")

    def test_launch_elastic_agent_raise_exception(self):
        """Something else than a rendezvous listens where the rendezvous should be."""
        rc, _, err = self.run_job("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:1", "--rdzv-conf=is_host=0,"
                                  "join_timeout=1,read_timeout=1", "--no-python", self.bash_probe(), str(self.files))
        self.assertEqual(rc, 1, err)
        self.assert_world(0)

    def test_launch_elastic_multiple_agents(self):
        words = [*self.options("--rdzv-conf=join_timeout=60,last_call_timeout=20", nnodes="1:2"), "--no-python", self.bash_probe(),
                 str(self.files)]
        for result in self.run_jobs(words, words):
            self.assert_success(result)
        self.assert_world(8)

    def test_get_entrypoint_name(self):
        """The summary's title is the script, or the command where there is no interpreter."""
        fail, module = self.python("import sys; sys.exit(1)\n", "fails.py"), self.dir / "package"
        module.mkdir()
        (module / "__init__.py").touch()
        (module / "broken.py").write_text("import sys; sys.exit(1)\n")
        command = self.program("exit 1", "fails.sh")
        for words, title in (([fail], fail), (["-m", "package.broken"], "package.broken"), (["--no-python", command, "x"], command)):
            rc, _, err = self.run_job("--standalone", *words, cwd=self.dir)
            self.assertEqual(rc, 1, err)
            self.assertRegex(err, rf"(?m)^{re.escape(title)} FAILED$")

    def test_rdzv_handler_shutdown_on_agent_signal(self):
        """An agent that ended by a signal has not closed the rendezvous: under the same id another one is admitted."""
        for name in SIGNALS:
            with self.subTest(name):
                for path in [*self.dir.glob("runs.*"), *self.dir.glob("signalled.*"), *self.dir.glob("finish")]:
                    path.unlink()
                words = [*self.options("--rdzv-conf=join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2",
                                       nnodes="1:2", nproc=1), "--max-restarts=3", "--no-python", self.program(WAIT)]
                first = self.start(*words)
                self.wait_for("runs.1.0.0")
                second = self.start(*words)
                self.wait_for("runs.2.0.0", "runs.2.1.1")
                second.send_signal(signal.Signals[name])
                self.assertEqual(self.finish(second)[0], 1)
                for path in self.dir.glob("runs.2.*"):
                    path.unlink()
                third = self.start(*words)
                self.wait_for("runs.2.0.0", "runs.2.1.1")
                (self.dir / "finish").touch()
                for process in (first, third):
                    self.assert_success(self.finish(process))

    def test_rdzv_handler_shutdown_on_agent_error(self):
        """A job that failed has closed its id: who joins while its host is still there ends at once."""
        script = self.program('if [[ $GROUP_RANK == 0 ]]; then exit 9; fi; touch "$D/other"; sleep 1000 & wait')
        words = [*self.options("--rdzv-conf=join_timeout=60", nnodes="2", nproc=1), "--no-python", script]
        for rc, _, err in self.run_jobs(words, words):
            self.assertEqual(rc, 1, err)

    def test_launch_agent_sets_signals_env_var(self):
        self.assert_success(self.run_job(*self.options(nproc=1), "--signals-to-handle=SIGTERM,SIGUSR1,SIGUSR2", "--no-python", self.dump(),
                                         env={"TORCHELASTIC_SIGNALS_TO_HANDLE": "overwritten"}))
        self.assertEqual(self.environments()[0]["TORCHELASTIC_SIGNALS_TO_HANDLE"], "SIGTERM,SIGUSR1,SIGUSR2")

    def test_launch_agent_default_signals(self):
        self.assert_success(self.run_job(*self.options(nproc=1), "--no-python", self.dump()))
        self.assertEqual(self.environments()[0]["TORCHELASTIC_SIGNALS_TO_HANDLE"], ",".join(SIGNALS))

    def test_launch_agent_failing_rdzv_shutdown_does_not_mask_child_failed_error(self):
        """The host of the rendezvous answers no more when a worker of the other node fails, and then it is gone."""
        script = self.program("""
            echo $$ > "$D/part.$GROUP_RANK"; mv "$D/part.$GROUP_RANK" "$D/runs.$GROUP_RANK"
            wait_for host_is_stopped
            exit $((GROUP_RANK * 5))""")
        words = ["--nnodes=2", f"--master-port={free_port()}", "--no-python", script]
        host = self.start("--node-rank=0", *words)
        other = self.start("--node-rank=1", *words)
        self.wait_for("runs.0", "runs.1")
        host.send_signal(signal.SIGSTOP)
        (self.dir / "host_is_stopped").touch()
        wait_for_ends([int(self.lines("runs.1")[0])], "the worker to fail")
        os.kill(host.pid, signal.SIGKILL)
        rc, _, err = self.finish(other)
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "exitcode  : 5 (pid:")


if __name__ == "__main__":
    main()
