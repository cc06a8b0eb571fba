"""A training over two launchers into which `fsdprun chaos` injects random faults, pauses included: every loss is that of
a training that nothing disturbs."""

import json
import os
import subprocess
import time

from events import left_s
from job_case import BIN
from train_case import TRAIN, TrainCase
from unittest_main import main

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


if __name__ == "__main__":
    main()
