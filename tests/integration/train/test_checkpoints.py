"""Damaged checkpoints, full disks: the older good checkpoint is used or kept, and the reason is said."""

import json
import pathlib
import shutil
import signal
import subprocess
import tempfile

import torch
from torch.distributed.checkpoint import format_utils

from events import wait_for_files
from job_case import BIN
from train_case import TrainCase
from unittest_main import main


def flip_bit(path, at=None):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


class DamageTest(TrainCase):
    """Steps 2, 4 and 6 are saved by 2 ranks; then something happens to the newest."""

    @classmethod
    def setUpClass(cls):
        cls.trained = pathlib.Path(tempfile.mkdtemp(prefix="fsdprun_test_"))
        cls.addClassCleanup(shutil.rmtree, cls.trained)

    def setUp(self):
        """The training is the same for all: the first test does it, the others begin with a copy of what it left."""
        super().setUp()
        if not (self.trained / "metrics.jsonl").exists():
            self.train_well(*self.saving())
            shutil.copytree(self.checkpoints, self.trained / "checkpoints", symlinks=True)
            shutil.copy(self.metrics, self.trained)
        else:
            shutil.copytree(self.trained / "checkpoints", self.checkpoints, symlinks=True)
            shutil.copy(self.trained / "metrics.jsonl", self.metrics)
        self.assertEqual(self.steps_saved(), [2, 4, 6])
        self.reference = self.losses()
        self.newest = self.checkpoints / "step-6"

    def assert_passed_over(self, *words):
        """The run goes on from step 4, says why once, repeats steps 5 and 6 with the same losses."""
        out, err = self.train_well(*self.saving(), "train.steps=8")
        warnings = [line for line in err.splitlines() if "warning: checkpoint:" in line]
        self.assertEqual(len(warnings), 1, err)
        for word in (str(self.newest), str(self.checkpoints / "step-4"), *words):
            self.assertIn(str(word), warnings[0])
        self.assertIn("resuming after step 4", out)
        losses = self.losses()
        self.assertEqual(sorted(losses), list(range(1, 9)))
        self.assertEqual({step: losses[step] for step in self.reference}, self.reference)
        self.assertIn(8, self.steps_saved())

    def test_truncated_data(self):
        truncate(self.newest / "__1_0.distcp")
        self.assert_passed_over("__1_0.distcp", "truncated")

    def test_flipped_bit_in_data(self):
        flip_bit(self.newest / "__0_0.distcp")
        self.assert_passed_over("__0_0.distcp", "checksum")

    def test_missing_data(self):
        (self.newest / "__1_0.distcp").unlink()
        self.assert_passed_over("__1_0.distcp", "No such file")

    def test_truncated_metadata(self):
        truncate(self.newest / ".metadata")
        self.assert_passed_over(".metadata", "checksum")

    def test_flipped_bit_in_metadata(self):
        flip_bit(self.newest / ".metadata")
        self.assert_passed_over(".metadata", "checksum")

    def test_flipped_bit_in_manifest(self):
        flip_bit(self.newest / "fsdprun.json")
        self.assert_passed_over("fsdprun.json")

    def test_missing_metadata(self):
        (self.newest / ".metadata").unlink()
        out, err = self.train_well(*self.saving(), "train.steps=8")
        self.assertIn(f"skipped {self.newest}: it is incomplete", err)
        self.assertIn("resuming after step 4", out)

    def test_all_damaged(self):
        for step in (2, 4, 6):
            flip_bit(self.checkpoints / f"step-{step}" / "__0_0.distcp")
        before = sorted(path.name for path in self.checkpoints.iterdir())
        self.assert_refused(1, ["none of the 3 checkpoints is valid", "step-6/__0_0.distcp", "checksum"],
                            *self.saving(), "train.steps=8")
        self.assertEqual(sorted(path.name for path in self.checkpoints.iterdir()), before)

    def test_named_checkpoint_is_damaged(self):
        flip_bit(self.newest / "__0_0.distcp")
        self.assert_refused(78, ["checkpoint.resume", "step-6/__0_0.distcp"], *self.saving(), "train.steps=8",
                            f"checkpoint.resume={self.newest}")

    def test_missing_manifest_is_why_verify_cannot_tell(self):
        (self.newest / "fsdprun.json").unlink()
        done = subprocess.run([BIN / "fsdpctl", "ckpt", "verify", self.newest, "--json"], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(done.stdout)
        self.assertIsNone(report["intact"])
        self.assertGreater(report["without_checksum"], 0)
        self.assertEqual(report["doubt"], f"{report['without_checksum']} of them have no checksum, since fsdprun.json, where "
                                          "fsdp-train's checkpoints have them, is missing: whether their content is what was "
                                          "written cannot be told")

    def test_named_older_checkpoint(self):
        out, _ = self.train_well(f"checkpoint.resume={self.checkpoints / 'step-2'}", "train.steps=3", ranks=3)
        self.assertIn("resuming after step 2", out)
        self.assertIn("written by 2 ranks, now 3", out)

    def test_other_model(self):
        config = self.model / "config.json"
        config.write_text(config.read_text().replace('"intermediate_size": 64', '"intermediate_size": 96'))
        self.assert_refused(78, ["step-6", "mlp", "shape"], *self.saving(), "train.steps=8")


class OthersTest(TrainCase):
    """Another program has made a directory that has the name of a checkpoint."""

    def others(self, step):
        path = self.checkpoints / f"step-{step}"
        path.mkdir(parents=True)
        (path / "weights.bin").write_text("precious")
        return path

    def assert_intact(self, path):
        self.assertEqual([(file.name, file.read_text()) for file in path.iterdir()], [("weights.bin", "precious")])

    def test_refused_before_the_first_step(self):
        path = self.others(6)
        _, err = self.assert_refused(78, ["refused to replace", path, "another program", "fsdprun.json", "move it away",
                                          "checkpoint.dir"], *self.saving(every=4), launcher=["--max-restarts=3"])
        self.assertIn("0 of 3 restarts used", err)
        self.assert_intact(path)
        self.assertEqual((self.steps_saved(), self.records()), ([6], []))

    def others_in_the_way(self, every):
        """Such a directory, made while it trains, at a step that is saved soon: not at once, as its last records may be on their way."""
        wait_for_files(self.records, self.dir, "the first step", writes=True)
        with self.paused():
            return self.others((self.records()[-1]["step"] // every + 2) * every)

    def test_refused_at_the_save_if_it_came_later(self):
        launcher = self.start_training(*self.saving(every=50), "train.steps=100000000", "checkpoint.on_failure=stop")
        path = self.others_in_the_way(every=50)
        rc, out, err = self.finish(launcher)
        self.assertNotEqual(rc, 0)
        lines = self.own_lines(out, err)
        self.assertEqual(len(lines), 1, err)
        for word in (f"checkpoint of step {path.name[5:]} failed", "refused to replace", path, "move it away",
                     "checkpoint.on_failure is stop"):
            self.assertIn(str(word), lines[0])
        self.assert_intact(path)

    def test_told_and_left_out_at_the_save_if_it_came_later(self):
        launcher = self.start_training(*self.saving(every=50), "train.steps=100000000")
        path = self.others_in_the_way(every=50)
        step = int(path.name[5:])
        wait_for_files(lambda: self.records()[-1]["step"] > step, self.dir, "steps after it", writes=True)
        wait_for_files(lambda: self.steps_saved()[-1] > step, self.checkpoints, "a later checkpoint")
        launcher.send_signal(signal.SIGTERM)
        _, out, err = self.finish(launcher)
        self.assertEqual(self.own_lines(out, err), [])
        warnings = [line for line in err.splitlines() if "warning: " in line and "refused to replace" in line]
        self.assertEqual(len(warnings), 1, err)
        self.assertIn(f"checkpoint of step {step} failed", warnings[0])
        self.assertIn("training goes on and tries again at the next period", warnings[0])
        self.assert_intact(path)

    def test_others_that_are_not_in_the_way(self):
        paths = [self.others(5), self.others(7)]
        self.train_well(*self.saving(keep=1))
        self.assertEqual(self.steps_saved(), [5, 6, 7])
        for path in paths:
            self.assert_intact(path)


class StepCountTest(TrainCase):
    """Each parameter's AdamW state has a `step` of its own, and Python may have written different ones."""

    def setUp(self):
        super().setUp()
        self.train_well(*self.saving())

    def state_of(self, checkpoint):
        whole = self.dir / "whole.pt"
        format_utils.dcp_to_torch_save(checkpoint, whole)
        return torch.load(whole)

    def rewritten(self, changed, step):
        """The path of step 6 written by Python, with another `step` where the parameter's name has `changed`."""
        state = self.state_of(self.checkpoints / "step-6")
        names = [name for name in state["optim"]["state"] if changed in name]
        self.assertTrue(names)
        for name in names:
            state["optim"]["state"][name]["step"] = torch.tensor(float(step))
        torch.save(state, self.dir / "changed.pt")
        path = self.dir / "rewritten"
        format_utils.torch_save_to_dcp(self.dir / "changed.pt", path)
        return path

    def expect_to_go_on(self, changed):
        path = self.rewritten(changed, 3)
        self.train_well(f"checkpoint.dir={self.dir / 'second'}", f"checkpoint.resume={path}", "train.steps=8",
                        "checkpoint.every_steps=8")
        for name, values in self.state_of(self.dir / "second" / "step-8")["optim"]["state"].items():
            self.assertEqual(values["step"].item(), 5 if changed in name else 8, name)

    def test_each_block_goes_on_with_its_own(self):
        self.expect_to_go_on("layers.0.")

    def test_each_parameter_of_a_block_goes_on_with_its_own(self):
        self.expect_to_go_on("layers.1.mlp.up_proj")


class FullDiskTest(TrainCase):
    def test_disk_that_fills_up_in_the_middle(self):
        reference = self.dir / "reference.jsonl"
        self.train_well("train.steps=40", f"metrics.jsonl={reference}")
        self.checkpoints = self.disk("2m") / "run"
        # Room for two checkpoints of 0.6 MB and a third while it is being written, not for more.
        settings = (*self.saving(every=4, keep=2), "train.steps=40")
        self.train_well(*self.saving(every=4, keep=2), "train.steps=8")
        self.assertEqual(self.steps_saved(), [4, 8])
        filler = self.fill(self.checkpoints.parent, leave=100_000)
        rc, out, err = self.train(*settings)
        self.assertNotEqual(rc, 0)
        lines = self.own_lines(out, err)
        self.assertEqual(len(lines), 1, err)
        for word in ("the last checkpoint of step 40 failed", self.checkpoints, "full", "bytes are free",
                     "checkpoint.keep", "the newest is of step 8"):
            self.assertIn(str(word), lines[0])
        warnings = [line for line in err.splitlines() if line.startswith("warning: checkpoint of step")]
        self.assertLess(len(warnings), 4, err)  # of eight failures; more than one if it took over a minute
        self.assertIn("checkpoint of step 12 failed", warnings[0])
        recorded = [record["step"] for record in self.records() if "warning" in record]
        self.assertEqual((recorded[0], len(recorded)), (12, len(warnings)))
        self.assertEqual(self.losses(), self.losses(reference))
        self.assertEqual(sorted(p.name for p in self.checkpoints.iterdir() if not p.name.startswith(".")),
                         ["latest", "step-4", "step-8"])
        filler.unlink()
        out, _ = self.train_well(*settings)
        self.assertIn("resuming after step 8", out)
        self.assertEqual(self.steps_saved(), [36, 40])
        self.assertEqual(self.losses(), self.losses(reference))

    def test_restart_goes_on_without_room_for_its_metrics(self):
        self.metrics = self.disk("64k") / "metrics.jsonl"
        at = f"metrics.jsonl={self.metrics}"
        self.train_well(*self.saving(), "train.steps=4", at)
        before = self.losses()
        filler = self.fill(self.metrics.parent)
        log = self.dir / "errors"
        with open(log, "w") as errors:
            binary, arguments = self.arguments(*self.saving(every=1000), "train.steps=100000000", at,
                                               "metrics.every_steps=100")
            job = self.start(*arguments, binary=binary, stderr=errors)
            wait_for_files(lambda: "training goes on" in log.read_text(), self.dir, "a warning", writes=True)
            self.assertEqual(self.losses(), before)
            filler.unlink()
            wait_for_files(lambda: len(self.losses()) > 4, self.metrics.parent, "a record", writes=True)
            job.terminate()
            self.finish(job)
        self.assertRegex(log.read_text(), "warning: cannot begin the new metrics file .* No space left on device")
        self.assertNotIn("fsdp-train:", log.read_text())
        self.assertLess(before.items(), self.losses().items())
        self.assertEqual([path.name for path in self.metrics.parent.iterdir()], ["metrics.jsonl"])

    def test_disk_that_has_room_again(self):
        self.checkpoints = self.disk("2m") / "run"
        self.train_well(*self.saving(every=4, keep=1), "train.steps=4")
        filler = self.fill(self.checkpoints.parent, leave=100_000)
        log = self.dir / "errors"
        with open(log, "w") as errors:
            binary, arguments = self.arguments(*self.saving(every=4, keep=1), "train.steps=100000000")
            job = self.start(*arguments, binary=binary, stderr=errors)
            wait_for_files(lambda: "training goes on" in log.read_text(), self.dir, "a save to fail", writes=True)
            filler.unlink()
            wait_for_files(lambda: (self.steps_saved() or [0])[-1] > 4, self.checkpoints, "a checkpoint", writes=True)
            job.terminate()
            self.finish(job)
        self.assertNotIn("fsdp-train:", log.read_text())
        self.assertEqual(self.steps_saved(), [self.records()[-1]["step"]])


if __name__ == "__main__":
    main()
