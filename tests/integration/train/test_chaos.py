"""Trainings that are disturbed: every loss is that of a training that nothing disturbs. `fsdprun chaos` injects random faults, pauses
included, over two launchers; and ranks are killed while they write a checkpoint beside their steps."""

import json
import os
import random
import re
import signal
import subprocess
import time

from events import left_s, wait_for_files
from job_case import BIN, wait_until
from train_case import TRAIN, TrainCase
from unittest_main import main

KILLS = int(os.environ.get("FSDPRUN_KILLS", "4"))
FAULTS = int(os.environ.get("FSDPRUN_FAULTS", "10"))
SEED = int(os.environ.get("FSDPRUN_SEED", "20"))
ENDLESS = 100_000_000  # steps, until the last fault is over
# What is trained before the workers have heard of the end.
STEPS_MORE = 500
GLOO = "parallel.backend=gloo"


class ChaosTest(TrainCase):
    def setUp(self):
        super().setUp()
        self.runtime = self.dir / "run"
        self.runtime.mkdir()
        self.env["XDG_RUNTIME_DIR"] = str(self.runtime)

    def set_steps(self, steps):
        """For workers that start from now on."""
        config = json.loads(self.config.read_text())
        config["train"]["steps"] = steps
        new = self.config.with_suffix(".new")
        new.write_text(json.dumps(config))
        new.rename(self.config)

    def start_chaos(self):
        settings = (GLOO, "checkpoint.resume=auto", f"checkpoint.dir={self.checkpoints}", "checkpoint.every_steps=20",
                    "checkpoint.keep=4")
        chaos = ["chaos", f"--faults={FAULTS}", f"--seed={SEED}", "--every=500ms", "--length=200ms:4s",
                 f"--corrupt={self.checkpoints}", "--json"]
        return self.start(*chaos, "--", BIN / "fsdprun", "--nnodes=2", f"--max-restarts={2 * FAULTS}", "--quarantine-after=0",
                          f"--log-dir={self.dir}/logs", "--no-python", TRAIN, "--config", self.config,
                          *(word for text in settings for word in ("--set", text)), binary=BIN / "fsdprun")

    def wait_for(self, launcher, words, share):
        """Until standard error has the words, or with None until its end; for that share of the time that is left."""
        end = time.monotonic() + left_s(share)
        while time.monotonic() < end:
            try:
                launcher.wait(1)
                break
            except subprocess.TimeoutExpired:
                if words is not None and words in self.said(launcher):
                    return
        else:
            self.fail(f"waited in vain for {words or 'the end'}:\n{self.said(launcher)[-20000:]}")
        self.assertIsNone(words, f"ended with {launcher.returncode} before {words}:\n{self.said(launcher)[-20000:]}")

    def said(self, launcher):
        _, err = self.said_by(launcher)
        return err

    def end_in_order(self):
        """The workers start again, without charge, and end some steps later. Returns the last step."""
        steps = max(self.losses()) + STEPS_MORE
        self.set_steps(steps)
        subprocess.run([BIN / "fsdpctl", "restart"], env=self.env, check=True, capture_output=True)
        return steps

    def test_every_loss_is_that_of_an_undisturbed_training(self):
        self.set_steps(ENDLESS)
        chaos = self.start_chaos()
        self.wait_for(chaos, "waiting for the job's end", 0.7)
        steps = self.end_in_order()
        self.wait_for(chaos, None, 0.5)
        out, err = self.said_by(chaos)
        self.assertEqual(chaos.returncode, 0, err[-20000:])
        report = json.loads(out)
        print(f"{steps} steps, {report['answered']} faults; {report['verdict']}; {report['restarts_used']} restarts; "
              f"{report['lost_s']:.1f} s of {report['lasted_s']:.1f} s lost")
        # A damaged checkpoint needs another one, which there is not at every moment.
        left = [fault for fault in report["faults"] if fault["state"] == "left out"]
        self.assertEqual({fault["fault"] for fault in left} | {"corrupt"}, {"corrupt"})
        self.assertEqual(report["answered"] + len(left), FAULTS)
        self.assertGreater(report["generations"], FAULTS // 4)
        disturbed = self.losses()
        self.metrics.unlink()
        undisturbed = self.start_training(f"train.steps={steps}")
        self.wait_for(undisturbed, None, 0.9)
        self.assertEqual(undisturbed.returncode, 0, self.said(undisturbed)[-20000:])
        self.assertEqual(sorted(disturbed), list(range(1, steps + 1)))
        self.assertEqual(disturbed, self.losses())


class KilledSaveTest(TrainCase):
    """Two ranks save every third step beside the next ones. At random moments of that one or both are killed."""

    # As soon as a directory is there that a save has not finished, up to so long after it.
    MOMENTS_S = (0.0, 0.001, 0.003, 0.01)

    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)

    def unfinished(self):
        return next(self.checkpoints.glob("step-*.tmp-*"), None) if self.checkpoints.exists() else None

    def kill_in_a_save(self, ranks):
        """Returns the step of the newest checkpoint at that moment, and what the save had written."""
        while True:
            wait_for_files(self.unfinished, self.checkpoints, "a save")
            time.sleep(self.random.choice(self.MOMENTS_S) * self.random.random())  # a point of the save that no event tells
            workers = self.workers()
            if len(workers) != 2:
                continue
            for pid in workers.values():
                os.kill(pid, signal.SIGSTOP)
            at, saved = self.unfinished(), self.steps_saved()
            is_in_a_save = at is not None and saved != []  # before the first one there is nothing to go back to
            if is_in_a_save:
                written = sorted(path.name for path in at.iterdir())
                for rank in ranks:
                    os.kill(workers[rank], signal.SIGKILL)
            for pid in workers.values():
                os.kill(pid, signal.SIGCONT)
            if is_in_a_save:
                return saved[-1], written

    def resumed(self, launcher):
        """After which step each start of the ranks went on."""
        return [int(step) for step in re.findall(r"resuming after step (\d+) ", self.said(launcher))]

    def wait_for_more_steps(self):
        before = max(self.losses(), default=0)
        wait_for_files(lambda: max(self.losses(), default=0) > before + 5, self.dir, "steps", writes=True)

    def test_every_loss_is_that_of_an_undisturbed_training(self):
        self.checkpoints.mkdir()
        launcher = self.start_training(*self.saving(every=3, keep=2), f"train.steps={ENDLESS}",
                                       launcher=[f"--max-restarts={KILLS}", "--quarantine-after=0"])
        for number in range(KILLS):
            self.wait_for_more_steps()
            ranks = [[0], [1], [0, 1]][number % 3]
            newest, written = self.kill_in_a_save(ranks)
            print(f"kill {number + 1} of {ranks} with a checkpoint of step {newest}, after", written, flush=True)
            wait_until(lambda: len(self.resumed(launcher)) > number, "the restart")
            self.assertGreaterEqual(self.resumed(launcher)[number], newest)
        self.wait_for_more_steps()
        launcher.send_signal(signal.SIGTERM)
        _, out, err = self.finish(launcher)
        self.assertEqual((out.count("starting at step 0"), len(self.resumed(launcher))), (1, KILLS), out[-5000:])
        self.assertEqual(self.own_lines(out, err), [])
        last = max(self.losses())
        self.assertEqual(self.steps_saved()[-1], last)
        reference = self.dir / "reference.jsonl"
        self.train_well(f"train.steps={last}", f"metrics.jsonl={reference}")
        self.assertEqual(self.losses(), self.losses(reference))

    def said(self, launcher):
        out, _ = self.said_by(launcher)
        return out


if __name__ == "__main__":
    main()
