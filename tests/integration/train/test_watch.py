"""Hangs and slow ranks of real workers are named, and done with as --on-hang says."""

import json
import os
import re
import signal
import time

from events import wait_for_files
from job_case import wait_until
from train_case import TrainCase
from unittest_main import main

ENDLESS = 100_000_000  # steps; nobody waits for that many
LIMIT_S = 10  # of a job whose steps take less than a second
GIVEN_S = 20  # it is acted upon at once; longer than the start of a worker takes here
RANKS = 4

# Writes the page of proto/worker_vitals.h: steps of 200 ms, all ranks together by the clock; one is slower by a share
# of what it computes, for which the others wait in a collective.
PAGE_WRITER = """
import mmap, os, struct, sys, time
rank, slow, share = int(os.environ["RANK"]), int(sys.argv[1]), float(sys.argv[2])
with open(os.environ["FSDPRUN_VITALS_FILE"], "r+b") as file:
    page = mmap.mmap(file.fileno(), 4096)
def put(word, value):
    struct.pack_into("<q", page, 8 * word, value)
now = time.clock_gettime_ns
step_ns = int(200e6)
began = now(time.CLOCK_MONOTONIC)
put(1, os.getpid()); put(2, 0); put(3, -1); put(0, 1)
step = 0
while True:
    put(2, step); put(4, now(time.CLOCK_MONOTONIC)); put(8, 3)
    own_ns = int(step_ns * 0.7 * (1 + share * (rank == slow)))
    time.sleep(own_ns / 1e9)
    put(13, 2 * step + 1)
    time.sleep(max(0, began + (step + 1) * step_ns - now(time.CLOCK_MONOTONIC)) / 1e9)
    put(14, 2 * step + 1)
    put(9, step_ns); put(10, step_ns - own_ns); put(11, 0); put(12, 0)
    step += 1
"""


class WatchCase(TrainCase):
    def setUp(self):
        super().setUp()
        self.env["LOGLEVEL"] = "WARNING"

    def watched(self, *options):
        self.logs = self.dir / "logs"
        return ("--log-dir", self.logs, *options)

    def workers(self):
        """Pids of the processes that train, by rank."""
        found = {}
        for pid in self.processes_that_train():
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = dict(text.split(b"=", 1) for text in file.read().split(b"\0") if b"=" in text)
            found[int(variables[b"RANK"])] = pid
        return found

    def events(self, name):
        found = []
        for path in self.logs.glob("*/events.jsonl"):
            found += [event for event in self.records(path) if event["event"] == name]
        return found

    def wait_for(self, name, seconds):
        deadline = time.monotonic() + seconds
        while not self.events(name) and time.monotonic() < deadline:
            time.sleep(0.2)  # Nothing tells of a line in a file whose folder is not known yet.
        self.assertTrue(self.events(name), f"no event {name} within {seconds} s")
        return self.events(name)[0]

    def train_and_warm_up(self, *options, **settings):
        launcher = self.start_training(f"train.steps={ENDLESS}", *self.saving(every=50, keep=2), ranks=RANKS,
                                       launcher=self.watched(*options), **settings)
        wait_for_files(lambda: len(self.records()) > 40, self.dir, "steps", writes=True)
        time.sleep(5)  # The watch sees them once a second.
        return launcher

    def end(self, launcher):
        launcher.send_signal(signal.SIGTERM)
        return self.finish(launcher)


    def stop(self, rank):
        pid = self.workers()[rank]
        os.kill(pid, signal.SIGSTOP)
        return pid, time.monotonic()


class HangTest(WatchCase):
    def test_stopped_worker_is_named_with_its_stack_and_goes_on(self):
        launcher = self.train_and_warm_up()
        pid, since = self.stop(2)
        hang = self.wait_for("hang", LIMIT_S + 5)
        self.assertLess(hang["lasted_seconds"], LIMIT_S + 2)
        self.assertGreaterEqual(time.monotonic() - since, hang["lasted_seconds"] - 1)
        self.assertEqual([place["rank"] for place in hang["culprits"]], [2])
        self.assertEqual((hang["culprits"][0]["pid"], hang["kind"], hang["action"]), (pid, "stopped", "report"))
        self.assertRegex(hang["what"], r"others? waits? in \w+")
        report = self.wait_for("hang_report", 5)
        self.assertIn(2, [each["rank"] for each in report["stacks"]])
        text = next(self.logs.glob("*/" + report["file"])).read_text()
        self.assertIn("Stacks of rank 2", text)
        os.kill(pid, signal.SIGCONT)
        self.wait_for("hang_ended", 10)
        _, err = self.end(launcher)[1:]
        self.assertRegex(err, rf"the job hangs: rank 2 \(pid {pid}\) on node .* has been stopped")

    def test_restart_goes_on_with_another_worker(self):
        launcher = self.train_and_warm_up("--on-hang=restart", "--max-restarts=1", f"--hang-timeout={GIVEN_S}")
        pid, _ = self.stop(1)
        self.wait_for("hang", GIVEN_S + 10)
        before = len(self.records())
        wait_for_files(lambda: len(self.records()) > before + 60, self.dir, "steps of the next world", writes=True)
        self.assertNotIn(pid, self.workers().values())
        self.assertEqual(self.events("failure")[0]["kind"], "worker_hung")
        self.end(launcher)


class LongHangTest(WatchCase):
    """For scripts/soak."""

    def test_abort_ends_the_job_with_the_hang_as_its_cause(self):
        launcher = self.train_and_warm_up("--on-hang=abort", "--max-restarts=3", f"--hang-timeout={GIVEN_S}")
        self.stop(3)
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 1)
        self.assertRegex(err, r"rank 3 \(pid \d+\) on node .* has been stopped")
        end = self.events("job_finished")[0]
        self.assertEqual(end["root_cause"]["kind"], "worker_hung")
        self.assertIn("--on-hang=abort", end["why"])
        (path,) = self.logs.glob("*/ledger.json")
        spent = json.loads(path.read_text())["buckets_s"]
        self.assertGreater(spent["hang"], 5, spent)
        self.assertLess(spent["detect"], 1, spent)

    def test_clean_run_is_silent(self):
        launcher = self.train_and_warm_up()
        time.sleep(30)
        _, err = self.end(launcher)[1:]
        self.assertEqual((self.events("hang"), self.events("straggler")), ([], []))
        self.assertIsNone(re.search("hangs|longer than the others", err))


class StragglerTest(WatchCase):
    """For scripts/soak."""

    def start_writers(self, slow, share):
        program = self.dir / "writer.py"
        program.write_text(PAGE_WRITER)
        return self.start("--standalone", f"--nproc-per-node={RANKS}", *self.watched(), program, slow, share)

    def test_rank_that_is_15_percent_slower_is_named_within_a_minute(self):
        launcher = self.start_writers(1, 0.15)
        slow = self.wait_for("straggler", 65)
        self.assertEqual(([place["rank"] for place in slow["ranks"]], slow["in"]), ([1], "computing"))
        self.assertAlmostEqual(slow["excess"], 0.15, delta=0.04)
        self.end(launcher)

    def test_equal_ranks_are_not_named(self):
        launcher = self.start_writers(1, 0.0)
        time.sleep(60)
        self.assertEqual(self.events("straggler"), [])
        self.end(launcher)


if __name__ == "__main__":
    main()
