"""How workers are started, what they read, and who gets which signal."""

import os
import signal
import time

from events import PATIENCE_S
from job_case import JobCase, free_port
from unittest_main import main

FOREVER = f"{5 * PATIENCE_S:.0f}"  # Who waits for it to pass fails the test.

# Stands for a data loader: notes whether it was signalled itself, and when its worker asks.
LOADER = """
    for s in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(s, lambda number, frame: note("signalled", number))
    signal.signal(signal.SIGWINCH, lambda number, frame: note("asked"))
    note("loader")
    live_on()
"""
# Starts the other script. Ends well once it has been told and the other, still alive, has answered: what was sent to
# both has arrived there too by then.
SAVER = """
    control = os.fdopen(int(os.environ["FSDPRUN_CONTROL_FD"]))
    def on_signal(number, frame):
        loader.send_signal(signal.SIGWINCH)
        wait_for(f"asked.{GENERATION}.{RANK}")
        note("told", f"{control.readline().strip()} {number}")
        os._exit(0)
    for s in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(s, on_signal)
    loader = subprocess.Popen([sys.executable, sys.argv[1]])
    wait_for(f"loader.{GENERATION}.{RANK}")
    note("ready")
    live_on()
"""


class ProcessesTest(JobCase):
    def saver(self):
        return [self.script(SAVER), self.script(LOADER, "loader.py")]

    def test_row_50_a_notice_reaches_the_workers_alone_and_the_job_ends_well(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", "--forward-signals=SIGUSR1", *self.saver())
        self.wait_for_notes("ready", 1, range(2))
        launcher.send_signal(signal.SIGUSR1)
        rc, _, err = self.finish(launcher)
        self.assertEqual((rc, err), (0, ""))
        number = int(signal.SIGUSR1)
        notice = f'{{"v":1,"type":"notice","signal":{number}}} {number}'
        self.assertEqual(self.notes("told"), {(1, rank): notice for rank in range(2)})
        self.assertEqual(self.notes("signalled"), {})
        self.assert_nothing_left()

    def test_row_50_each_node_passes_on_what_it_gets(self):
        worker = """
            signal.signal(signal.SIGUSR1, lambda number, frame: note("told", number))
            note("ready")
            wait_for("go")
        """
        args = ["--nnodes=2", f"--master-port={free_port()}", "--forward-signals=SIGUSR1"]
        nodes = [self.start(*args, f"--node-rank={n}", self.script(worker)) for n in range(2)]
        self.wait_for_notes("ready", 1, range(2))
        nodes[1].send_signal(signal.SIGUSR1)
        self.wait_for_notes("told", 1, [1])
        (self.dir / "go").touch()
        for node in nodes:
            self.assertEqual(self.finish(node)[0], 0)
        self.assertEqual(set(self.notes("told")), {(1, 1)})

    def test_a_notice_without_workers_is_only_warned_of(self):
        launcher = self.start("--nnodes=2", f"--master-port={free_port()}", "--forward-signals=SIGUSR1", self.script(""),
                              env={"LOGLEVEL": "WARNING"})
        self.wait_for_run_directory()
        launcher.send_signal(signal.SIGUSR1)
        self.assertIn("SIGUSR1 came while no worker ran", launcher.stderr.readline())
        launcher.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(launcher)[0], 1)

    def test_the_signal_that_stops_a_worker_goes_to_all_its_processes_or_to_it_alone(self):
        for target in ("leader", "group"):
            with self.subTest(target):
                launcher = self.start("--standalone", f"--stop-signal-to={target}", f"--shutdown-timeout={FOREVER}",
                                      *self.saver())
                self.wait_for_notes("ready", 1, [0])
                launcher.send_signal(signal.SIGTERM)
                rc, _, err = self.finish(launcher)
                self.assertEqual((rc, set(self.notes("told"))), (1, {(1, 0)}), err)
                self.assertEqual(set(self.notes("signalled")), set() if target == "leader" else {(1, 0)})
                self.assert_nothing_left()
                for path in self.dir.glob("*.1.0"):
                    path.unlink()

    def test_row_33_who_reads_the_launchers_input(self):
        (self.dir / "input").write_text("a line\n")
        worker = self.script("note('input', os.readlink('/proc/self/fd/0') + '|' + sys.stdin.read())")
        given, nothing = f"{self.dir}/input|a line\n", "/dev/null|"
        for option, first, second in (("rank0", given, nothing), ("none", nothing, nothing)):
            with self.subTest(option), open(self.dir / "input") as stdin:
                rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", f"--stdin={option}", worker, stdin=stdin)
                self.assertEqual((rc, self.notes("input")), (0, {(1, 0): first, (1, 1): second}), err)
        worker = self.script("note('input', os.readlink('/proc/self/fd/0'))")
        for options in ([], ["--stdin=inherit"]):
            with self.subTest(options), open(self.dir / "input") as stdin:
                rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", *options, worker, stdin=stdin)
                self.assertEqual((rc, set(self.notes("input").values())), (0, {f"{self.dir}/input"}), err)

    def test_row_74_habits_of_the_old_launcher(self):
        worker = self.script("note('seen', ' '.join([*sys.argv[1:], os.environ['LOCAL_RANK']]))")
        for options, first in ((["--compat=launch"], "--local-rank={} "), (["--compat=launch", "--use_env"], ""),
                               (["--use-env"], ""), ([], "")):
            with self.subTest(options):
                rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", *options, worker, "a")
                self.assertEqual(rc, 0, err)
                self.assertEqual(self.notes("seen"), {(1, r): first.format(r) + f"a {r}" for r in range(2)})
        self.assert_one_line_error(self.run_job("--compat=launch", "--no-python", "true"), 1, "--use-env")
        self.assertEqual(self.run_job("--compat=launch", "--use-env", "--no-python", "true")[0], 0)

    def test_each_worker_may_have_a_script_of_its_own(self):
        body = "note('script', pathlib.Path(sys.argv[0]).name)"
        self.script(body, "worker_0.py")
        template = f"{self.dir}/worker_${{local_rank}}.py"
        self.assert_one_line_error(self.run_job("--standalone", "--nproc-per-node=2", template), 1, "worker_1.py")
        self.script(body, "worker_1.py")
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", template)
        self.assertEqual((rc, self.notes("script")), (0, {(1, r): f"worker_{r}.py" for r in range(2)}), err)

    def test_row_08_python_does_not_buffer_its_output(self):
        self.env.pop("PYTHONUNBUFFERED", None)
        launcher = self.start("--standalone", self.script("""
            print("early")
            wait_for("go")
        """))
        self.assertEqual(launcher.stdout.readline(), "early\n")
        (self.dir / "go").touch()
        self.assertEqual(self.finish(launcher)[0], 0)

    def test_row_10_workers_per_cpu_that_may_be_used(self):
        usable = sorted(os.sched_getaffinity(0))
        for cpus in ([usable[-1]], usable):
            for word in ("auto", "cpu"):
                rc, out, err = self.run_job(f"--nproc-per-node={word}", "--dry-run", "s.py",
                                            preexec_fn=lambda cpus=cpus: os.sched_setaffinity(0, cpus),
                                            env={"CUDA_VISIBLE_DEVICES": ""})
                self.assertEqual(rc, 0, err)
                self.assertIn(f"workers_per_node: {len(cpus)}\n", out)

    def test_row_40_the_shutdown_timeout_bounds_every_end(self):
        """Rank 0 fails, rank 1 ignores SIGTERM, and nothing but the shutdown timeout can end it in time."""
        worker = self.script("""
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            note("ready")
            wait_for("ready.1.0", "ready.1.1")
            note("failed_at", time.monotonic())
            if RANK == 0:
                sys.exit(3)
            live_on()
        """)
        for options, env, least_s in ((["--shutdown-timeout=0"], {}, 0), (["--shutdown-timeout=2"], {}, 2),
                                      ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "0"}, 0)):
            with self.subTest(options or env):
                rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", f"--abort-timeout={FOREVER}", *options, worker,
                                          env=env)
                ended_at = time.monotonic()
                self.assertEqual(rc, 1, err)
                self.assertIn("exitcode  : 3", err)
                self.assertGreaterEqual(ended_at - float(self.notes("failed_at")[1, 0]), least_s)
                self.assert_nothing_left()
                for path in self.dir.glob("*.1.*"):
                    path.unlink()


if __name__ == "__main__":
    main()
