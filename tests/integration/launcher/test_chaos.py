"""`fsdprun chaos`: faults in jobs that it starts and in jobs that run already, its verdict, and what it leaves behind."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shlex
import signal
import subprocess
import termios
import time

from fsdpctl_case import FsdpctlCase
from job_case import BIN, JobCase, wait_until
from unittest_main import main

# Runs until the test has it end.
WORKER = """
    note("pid")
    wait_for("end")
"""
# In 13 faults every kind comes to every target.
SEED, FAULTS = 2660, 13
# Comes up again, and crashes then.
CRASHES_AFTER_A_RESTART = """
    note("pid")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        time.sleep(0.3)
        sys.exit(3)
    wait_for("end")
"""
QUICK = ("--every=0", "--settle=300ms")
# Rank 0 starts a job of its own, as an evaluation.
NESTS = """
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("FSDPRUN_", "TORCHELASTIC_"))}
    nested = subprocess.Popen(sys.argv[1:], env=mine) if RANK == 0 else None
    note("pid")
    wait_for("end")
    sys.exit(nested.wait() if nested else 0)
"""


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


class ChaosCase(FsdpctlCase):
    def start_chaos(self, *words, **popen):
        return self.start("chaos", *words, **popen)

    def job_of_two_nodes(self, *more, worker=WORKER):
        return [BIN / "fsdprun", "--nnodes=2", "--nproc-per-node=2", *more, self.script(worker)]

    def job_of_one(self, *more, worker=WORKER, name="worker.py"):
        return [BIN / "fsdprun", "--standalone", "--nproc-per-node=1", *more, self.script(worker, name)]

    def shell_script(self, *lines):
        script = self.dir / "run.sh"
        script.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        script.chmod(0o755)
        return script

    def unread(self):
        """A pipe that takes no byte more, since nobody reads it."""
        ours, its = os.pipe()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, its)
        os.set_blocking(its, False)
        for size in (65536, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(its, b"x" * size)
        os.set_blocking(its, True)
        return its

    def wait_until_stopped(self, chaos, rank):
        """The worker's pid, once it stands still."""
        line = self.wait_for_line(chaos, f" stop worker {rank} (pid ")
        pid = int(re.search(r"\(pid (\d+)\)", line)[1])
        wait_until(lambda: state_of(pid) == "T", "the worker to stand still")
        return pid

    def let_end(self):
        (self.dir / "end").touch()

    def run_to_end(self, *words):
        """(exit code, stdout, stderr): the job is let go when the last fault is over."""
        chaos = self.start_chaos(*words)
        said = self.wait_for_line(chaos, "waiting for the job's end")
        self.let_end()
        rc, out, err = self.finish(chaos)
        return rc, out, said + err


class StartedJobTest(ChaosCase):
    def filled(self):
        """The options that take some 64 MiB of the test's own disk, and no more."""
        room = os.statvfs(self.dir)
        blocks = room.f_bfree if os.geteuid() == 0 else room.f_bavail  # root may have all
        return [f"--fill={self.dir}", f"--fill-leave={max(0, blocks * room.f_frsize - (64 << 20))}"]

    def test_two_nodes_come_through_every_kind_of_fault(self):
        checkpoints = self.dir / "checkpoints"
        for step in range(1, 6):
            (checkpoints / f"step-{step}").mkdir(parents=True)
            (checkpoints / f"step-{step}" / "weights").write_bytes(b"w" * 5000)
        rc, out, err = self.run_to_end(
            f"--faults={FAULTS}", f"--seed={SEED}", "--every=200ms", "--settle=300ms", "--length=100ms:4s", "--json", "--verify=echo verified",
            *self.filled(), f"--corrupt={checkpoints}", "--",
            *self.job_of_two_nodes(f"--max-restarts={FAULTS}", "--quarantine-after=0"))
        self.assertEqual(rc, 0, err)
        report = json.loads(out)
        faults = report["faults"]
        self.assertTrue(report["survived"])
        self.assertEqual([fault["state"] for fault in faults], ["answered"] * FAULTS, err)
        self.assertEqual({fault["fault"] for fault in faults}, {"kill", "stop", "partition", "delay", "fill", "corrupt"})
        self.assertEqual({fault["target"] for fault in faults}, {"", "worker", "keeper", "agent", "coordinator"})
        self.assertEqual((report["job_exit_code"], report["verify_exit_code"], report["seed"]), (0, 0, SEED))
        self.assertGreater(report["generations"], sum(fault["fault"] in ("kill", "corrupt") for fault in faults) // 2)
        weights = [(checkpoints / f"step-{step}" / "weights").read_bytes() for step in range(1, 6)]
        damaged = [step for step, content in enumerate(weights, 1) if content != b"w" * 5000]
        corrupt = sum(fault["fault"] == "corrupt" for fault in faults)
        self.assertEqual(damaged, list(range(6 - corrupt, 6)))

    def test_a_job_without_restarts_is_warned_of_and_not_survived(self):
        chaos = self.start_chaos("--faults=3", "--kinds=kill", "--targets=worker", *QUICK, "--",
                                 *self.job_of_two_nodes("--max-restarts=0"))
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 1, err)
        self.assertIn("warning: 3 kills may use up as many restarts, and the job has 0 left", err)
        self.assertRegex(err, r"verdict: not survived: fault 1, kill worker \d \(pid \d+\): ")
        self.assertIn("--max-restarts", err[err.index("verdict"):])

    def test_ctrl_c_ends_the_job_whatever_is_under_way(self):
        schedule = self.dir / "faults.txt"
        schedule.write_text("0 stop worker:1 1h\n0 delay agent:0 1h 50ms\n")
        chaos = self.start_chaos(f"--schedule={schedule}", "--", *self.job_of_two_nodes())
        lines = [self.wait_for_line(chaos, " for 1 h") for _ in range(2)]  # The worker may not be there at first.
        self.assertEqual({line.split()[2] for line in lines}, {"1/2", "2/2"})
        chaos.send_signal(signal.SIGINT)
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 1, err)
        self.assertIn("verdict: interrupted after 2 faults", err)

    def test_workers_that_crash_when_they_are_back_have_not_come_through(self):
        chaos = self.start_chaos("--faults=1", "--kinds=kill", "--targets=worker", "--every=0", "--settle=1h", "--",
                                 *self.job_of_one("--max-restarts=2", worker=CRASHES_AFTER_A_RESTART))
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 1, err)
        self.assertIn("verdict: not survived: fault 1, kill worker 0", err)

    def test_a_script_is_ended_with_the_job_that_it_has_started(self):
        script = self.shell_script('"$@"', "echo over")
        chaos = self.start_chaos("--faults=1", "--kinds=kill", "--targets=worker", "--every=1h", "--", script, *self.job_of_one())
        self.wait_for_notes("pid", 1, [0])
        chaos.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 1, err)
        self.assertIn("verdict: interrupted after 0 faults", err)

    def test_a_script_may_start_another_job_after_its_first(self):
        evaluation = self.job_of_one(worker='note("other")\nwait_for("end_of_other")\n', name="evaluation.py")
        script = self.shell_script('"$@" || exit 1', "exec " + shlex.join(map(str, evaluation)))
        chaos = self.start_chaos("--faults=2", "--kinds=kill", "--targets=worker", "--every=0", "--settle=1h", "--overlap", "--", script,
                                 *self.job_of_one("--max-restarts=2"))
        self.wait_for_line(chaos, " 2/2 kill worker 0 (pid ")  # No world is old enough to be an answer.
        self.wait_for_notes("pid", 3, [0])
        self.let_end()
        self.wait_for_line(chaos, "another one has begun, which is not disturbed")
        self.wait_for_notes("other", 1, [0])
        (self.dir / "end_of_other").touch()
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 0, err)
        self.assertIn("verdict: survived 2 faults, and ended with 0", err)
        self.assertEqual(list(self.notes("other")), [(1, 0)])

    def test_jobs_that_workers_start_are_not_the_job(self):
        schedule = self.dir / "faults.txt"
        schedule.write_text("6 kill coordinator\n8 stop worker:0 100ms\n")
        nested = self.job_of_one(worker='note("nested")\nwait_for("end")\n', name="nested.py")
        chaos = self.start_chaos(f"--schedule={schedule}", "--settle=300ms", "--", *self.job_of_two_nodes(worker=NESTS), *nested)
        self.wait_for_line(chaos, " 1/2 kill coordinator (pid ")
        if not self.notes("nested"):
            self.let_end()
            self.skipTest("this machine is too slow: the job that a worker starts is not there when faults begin")
        self.assertIn(f"(pid {self.notes('pid')[1, 0]})", self.wait_for_line(chaos, " 2/2 stop worker 0 (pid "))
        self.wait_for_line(chaos, "waiting for the job's end")
        self.let_end()
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 0, err)  # Rank 0 ends as what it has started.
        self.assertIn("verdict: survived 2 faults, and ended with 0", err)
        self.assertEqual(list(self.notes("nested")), [(1, 0)])

    def test_another_job_of_the_same_name_is_not_touched(self):
        other = self.start("--nproc-per-node=1", "--max-restarts=3", self.script(WORKER.replace("pid", "other"), "other.py"))
        self.wait_for_notes("other", 1, [0])
        rc, _, err = self.run_to_end("--faults=3", "--kinds=kill", "--targets=worker,keeper", *QUICK, "--", BIN / "fsdprun",
                                     "--nproc-per-node=1", "--max-restarts=3", self.script(WORKER))
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.finish(other)[0], 0)
        self.assertEqual(list(self.notes("other")), [(1, 0)])

    def test_any_command_may_start_the_job(self):
        rc, _, err = self.run_to_end("--faults=2", "--kinds=kill,stop", "--length=100ms", *QUICK, "--", "/bin/sh", "-c",
                                     'exec "$@"', "sh", *self.job_of_one("--max-restarts=2"))
        self.assertEqual(rc, 0, err)
        self.assertIn("verdict: survived 2 faults, and ended with 0", err)

    def test_the_verdict_asks_the_last_command(self):
        rc, _, err = self.run_to_end("--faults=1", "--kinds=stop", "--length=100ms", *QUICK, "--verify=exit 3", "--",
                                     *self.job_of_one())
        self.assertEqual(rc, 1, err)
        self.assertIn("--verify says 3", err)

    def test_what_it_says_on_the_disk_that_it_fills_is_there_when_that_has_room_again(self):
        disk = self.dir / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], capture_output=True).returncode != 0:
            self.skipTest("a file system cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk])
        schedule = self.dir / "faults.txt"
        schedule.write_text("0 fill 5s\n3 stop worker:0 100ms\n")
        log = disk / "log"
        log.write_text("Has a block.\n")
        with open(log, "a") as said:
            chaos = self.start_chaos(f"--schedule={schedule}", f"--fill={disk}", "--fill-leave=0", "--settle=300ms", "--", *self.job_of_one(),
                                     stderr=said)
            wait_until(lambda: " 1/2 fill " in log.read_text(), "a full disk")
            os.write(said.fileno(), b"x" * 4096)  # All of that block.
        wait_until(lambda: "waiting for the job's end" in log.read_text(), "the last fault to be over")
        self.let_end()
        rc, _, _ = self.finish(chaos)
        self.assertEqual(rc, 0, log.read_text())
        self.assertIn("verdict: survived 2 faults, and ended with 0", log.read_text())

    def test_a_terminal_that_stops_who_writes_in_the_background_stops_nothing_that_is_started(self):
        ours, its = pty.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, its)
        modes = termios.tcgetattr(its)
        modes[3] |= termios.TOSTOP
        termios.tcsetattr(its, termios.TCSANOW, modes)
        job = self.job_of_one(worker='    print("heard", flush=True)' + WORKER)
        chaos = self.start_chaos("--faults=1", "--kinds=stop", "--length=100ms", *QUICK, "--", *job, stdin=its, stdout=its, stderr=its,
                                 start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        said = ""

        def has_said(words):
            nonlocal said
            while select.select([ours], [], [], 0)[0]:
                said += os.read(ours, 65536).decode(errors="replace")
            return words in said
        wait_until(lambda: has_said("waiting for the job's end"), "the last fault to be over")
        self.let_end()
        wait_until(lambda: has_said("verdict: survived 1 fault, and ended with 0"), "the verdict")
        self.assertEqual(self.finish(chaos)[0], 0, said)
        self.assertIn("heard", said)

    def test_notices_are_the_jobs(self):
        worker = '    signal.signal(signal.SIGUSR1, lambda *_: note("notice"))' + WORKER
        chaos = self.start_chaos("--faults=1", "--kinds=stop", "--length=100ms", *QUICK, "--",
                                 *self.job_of_one("--forward-signals=SIGUSR1", worker=worker))
        self.wait_for_line(chaos, "waiting for the job's end")
        chaos.send_signal(signal.SIGUSR1)
        self.wait_for_notes("notice", 1, [0])
        self.let_end()
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 0, err)

    def test_a_job_that_ends_badly_is_no_success(self):
        rc, _, err = self.run_to_end("--faults=1", "--kinds=stop", "--length=100ms", *QUICK, "--",
                                     *self.job_of_one(worker=WORKER + "    sys.exit(7)\n"))
        self.assertEqual(rc, 1, err)
        self.assertIn("verdict: the job has ended with 1 after 1 fault", err)


class RunningJobTest(ChaosCase):
    def test_a_job_that_runs_already_is_attached_to_and_left_running(self):
        nodes = self.start_job()
        rc, out, err = self.finish(self.start_chaos("--job=kept", "--faults=2", "--kinds=kill", *QUICK, "--json"))
        self.assertEqual(rc, 0, err)
        report = json.loads(out)
        self.assertEqual((report["job"], report["job_exit_code"], report["restarts_used"]), ("kept", None, 2))
        self.assertEqual([node.poll() for node in nodes], [None, None])
        self.let_end()
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def test_what_failed_before_is_not_told(self):
        nodes = self.start_job()
        os.kill(int(self.notes("pid")[1, 0]), signal.SIGKILL)
        self.wait_for_notes("pid", 2, self.ranks)
        rc, out, err = self.finish(self.start_chaos("--faults=1", "--kinds=stop", "--length=100ms", *QUICK, "--json"))
        self.assertEqual(rc, 0, err)
        self.assertEqual(json.loads(out)["unexplained_failures"], [])
        self.let_end()
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def test_who_reads_nothing_of_what_it_says_holds_up_no_fault(self):
        nodes = self.start_job()
        rc, out, _ = self.finish(self.start_chaos("--faults=2", "--kinds=stop", "--length=100ms", *QUICK, "--json", stderr=self.unread()))
        self.assertEqual(rc, 0)
        self.assertTrue(json.loads(out)["survived"])
        self.let_end()
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def test_who_closes_standard_output_has_not_got_the_report(self):
        nodes = self.start_job()
        ours, its = os.pipe()
        chaos = self.start_chaos("--faults=1", "--kinds=stop", "--length=100ms", *QUICK, "--json", stdout=its)
        os.close(its)
        os.close(ours)
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 1)
        self.assertIn("could not be written to standard output: verdict: survived 1 fault", err)
        self.let_end()
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def test_another_job_of_the_same_id_is_not_the_job(self):
        jobs = []
        for kind in ("pid", "other"):
            worker = self.script(WORKER.replace("pid", kind), f"{kind}.py")
            jobs.append(self.start("--nproc-per-node=1", "--max-restarts=1000", worker))
            self.wait_for_notes(kind, 1, [0])
        chaos = self.start_chaos(f"--job={jobs[0].pid}", "--faults=1000", "--kinds=kill", "--targets=worker", "--every=300ms", "--overlap")
        self.wait_for_line(chaos, " kill worker 0 (pid ")
        self.end_abruptly(jobs[0])
        self.wait_for_line(chaos, ": left out, ")
        chaos.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 1, err)
        self.let_end()
        self.assertEqual(self.finish(jobs[1])[0], 0)
        self.assertEqual(list(self.notes("other")), [(1, 0)])

    def test_its_end_is_waited_for_when_asked(self):
        nodes = self.start_job()
        chaos = self.start_chaos("--faults=1", "--kinds=stop", "--targets=agent", "--length=100ms", *QUICK, "--until-end")
        self.wait_for_line(chaos, "waiting for the job's end")
        self.let_end()
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 0, err)
        self.assertIn("verdict: survived 1 fault, and ended with 0", err)
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def test_who_does_not_wait_for_the_end_knows_nothing_of_it(self):
        nodes = self.start_job()
        chaos = self.start_chaos("--faults=1", "--kinds=stop", "--length=100ms", *QUICK, "--until-end", f"--verify=touch {self.dir}/verified")
        self.wait_for_line(chaos, "waiting for the job's end")
        chaos.send_signal(signal.SIGINT)
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 1, err)
        self.assertIn("verdict: interrupted after 1 fault", err)
        self.assertFalse((self.dir / "verified").exists())
        self.let_end()
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def test_a_time_in_which_it_stands_still_itself_is_no_fault_of_the_job(self):
        nodes = self.start_job()
        schedule = self.dir / "faults.txt"
        schedule.write_text("0 kill worker:0\n1h stop worker:0 1s\n")
        chaos = self.start_chaos(f"--schedule={schedule}", "--patience=5s", "--settle=300ms")
        self.wait_for_line(chaos, " 1/2 kill worker 0 (pid ")
        chaos.send_signal(signal.SIGSTOP)
        end = time.monotonic() + 6
        wait_until(lambda: time.monotonic() > end, "more than there is patience")
        self.wait_for_notes("pid", 2, self.ranks)
        chaos.send_signal(signal.SIGCONT)
        self.wait_for_line(chaos, " 1/2 kill worker 0 (pid ", ": all workers got on")
        chaos.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(chaos)
        self.assertEqual(rc, 1, err)
        self.assertIn("verdict: interrupted after 1 fault", err)
        self.let_end()
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def test_what_ends_it_leaves_the_job_as_it_was(self):
        nodes = self.start_job()
        schedule = self.dir / "faults.json"
        schedule.write_text(json.dumps([{"at": 0, "fault": "stop", "target": "worker:3", "length": "1h"}]))
        for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGALRM, signal.SIGXCPU):
            chaos = self.start_chaos(f"--schedule={schedule}")
            pid = self.wait_until_stopped(chaos, 3)
            chaos.send_signal(signal.SIGUSR1)  # Nothing to a job that was not started here.
            chaos.send_signal(signal.SIGTSTP)  # Ctrl-Z
            self.wait_for_line(chaos, "cannot be suspended")
            chaos.send_signal(number)
            rc, _, err = self.finish(chaos)
            self.assertEqual(rc, 1, err)
            self.assertIn("interrupted", err)
            wait_until(lambda pid=pid: state_of(pid) != "T", "the worker to go on")
        self.let_end()
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def start_job(self):
        """Its workers run until the test has them end."""
        nodes = super().start_job(worker=WORKER)
        self.wait_for_notes("pid", 1, self.ranks)
        return nodes


class CommandLineTest(ChaosCase):
    def test_what_cannot_be_done_is_refused_before_anything_starts(self):
        two = self.job_of_two_nodes()
        for code, words, line in ((1, ["kinds", "fill"], ["--kinds=fill", "--", *two]), (1, ["partition", "--nnodes 2"], ["--kinds=partition"]),
                                  (1, ["'5:2'"], ["--length=5:2"]), (2, ["--nothing"], ["--nothing"]),
                                  (1, ["no job of this user"], []), (1, ["cannot read"], ["--schedule=/nowhere/at/all"]),
                                  (1, ["c10d"], ["--", BIN / "fsdprun", "--nnodes=2", "--node-rank=0", "x.py"])):
            with self.subTest(line):
                self.assert_one_line_error(self.finish_chaos(*line), code, *words)

    def test_a_report_in_json_comes_also_if_nothing_could_be_begun(self):
        rc, out, err = self.finish_chaos("--json")
        self.assertEqual((rc, err.count("\n")), (1, 1), err)
        report = json.loads(out)
        self.assertFalse(report["survived"])
        self.assertIn("no job of this user", report["verdict"])

    def finish_chaos(self, *line):
        return self.finish(self.start_chaos(*line))

    def test_the_same_seed_is_the_same_plan(self):
        def plan(seed):
            rc, out, err = self.finish_chaos("--dry-run", f"--seed={seed}", "--faults=30", "--", *self.job_of_two_nodes())
            self.assertEqual((rc, err), (0, ""))
            return out.splitlines()[3:]
        self.assertEqual(len(plan(1)), 30)
        self.assertEqual(plan(1), plan(1))
        self.assertNotEqual(plan(1), plan(2))


if __name__ == "__main__":
    main()
