"""The model and the settings change between two runs of which the second continues the first."""

import json

from train_case import MODEL, TRAIN, TrainCase
from unittest_main import main


class ChangesTest(TrainCase):
    def setUp(self):
        super().setUp()
        self.train_well(*self.settings(4))
        self.before = (self.metrics.read_bytes(), self.steps_saved())

    def settings(self, steps):
        return (*self.saving(every=4), f"train.steps={steps}")

    def describe_model(self, **changes):
        (self.model / "config.json").write_text(json.dumps({**MODEL, **changes}))

    def warnings(self, *settings, ranks=2):
        out, _ = self.train_well(*settings, ranks=ranks)
        self.assertIn("resuming after step 4", out)
        return [line for line in out.splitlines() if "warning: " in line]

    def refuse(self, words):
        """Refused for good, although the weights fit; changes nothing."""
        _, err = self.assert_refused(78, [self.checkpoints / "step-4", "model.on_change", *words],
                                     *self.settings(6), launcher=["--max-restarts=3"])
        self.assertIn("0 of 3 restarts used", err)
        self.assertEqual((self.metrics.read_bytes(), self.steps_saved()), self.before)

    def test_model_that_computes_something_else_from_the_weights(self):
        self.describe_model(rope_theta=500000.0)
        self.refuse(["the model's rope_theta was 10000.0 at the checkpoint and is 500000.0 now"])
        self.describe_model(num_attention_heads=2, num_key_value_heads=1)
        self.refuse(["the model's num_attention_heads was 4 at the checkpoint and is 2 now"])
        told = self.warnings(*self.settings(6), "model.on_change=warn")
        self.assertEqual([line.split(" was ")[0] for line in told],
                         ["warning: the model's num_attention_heads", "warning: the model's num_key_value_heads",
                          "warning: the model's head_dim"])

    def test_samples_of_another_model(self):
        self.describe_model(rope_theta=500000.0)
        rc, _, err = self.run_job("sample", "--checkpoint", self.checkpoints, "--config", self.config, "--bytes", "2",
                                  binary=TRAIN)
        self.assertEqual((rc, err), (0, "warning: the model's rope_theta was 10000.0 at the checkpoint and is "
                                        "500000.0 now\n"))

    def test_longer_text_is_no_other_model(self):
        self.describe_model(max_position_embeddings=128)
        self.assertEqual(self.warnings(*self.settings(6)), [])

    def test_settings_that_change_the_course_are_told(self):
        told = self.warnings(*self.settings(6), "optimizer.lr=0.5", "train.grad_accumulation=2")
        self.assertEqual(told, [
            "warning: optimizer.lr was 0.001 at the checkpoint and is 0.5 now",
            "warning: the number of windows in an optimizer step was 2 at the checkpoint and is 4 now"])

    def test_same_batch_on_another_number_of_ranks_is_no_change(self):
        self.assertEqual(self.warnings(*self.settings(6), "train.micro_batch_size=2", ranks=1), [])

    def test_fewer_steps_than_were_done(self):
        told = self.warnings(*self.settings(2))
        self.assertEqual(told, ["warning: train.steps is 2, and the checkpoint has done 4 steps already: "
                                "nothing is left to train"])
        self.assertEqual(self.steps_saved(), [4])


if __name__ == "__main__":
    main()
