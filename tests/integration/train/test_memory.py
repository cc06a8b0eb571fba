"""What a run takes before it is started, and what it does where there is not enough: estimate, check, smaller micro batches."""

import json
import shutil
import subprocess

from job_case import BIN
from train_case import TRAIN, TrainCase
from unittest_main import main

# Memory of more than LIMIT bytes in one piece is not to be had on the rank that RANKS names, or on all; but more than tensors here
# take is, which libraries have for themselves.
SMALL_MEMORY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#define MOST (1 << 20)

int posix_memalign(void **memory, size_t alignment, size_t size) {
    static int (*next)(void **, size_t, size_t);
    if (!next) next = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    const char *rank = getenv("RANK"), *ranks = getenv("RANKS"), *limit = getenv("LIMIT");
    const int is_meant = ranks && (!strcmp(ranks, "all") || (rank && !strcmp(rank, ranks)));
    if (is_meant && limit && size > strtoul(limit, 0, 10) && size <= MOST) return ENOMEM;
    return next(memory, alignment, size);
}
"""
# Of a window of 64 tokens, and of what is computed of them: more than anything else has that training allocates.
LOGITS = 64 * 256 * 4


class OutOfMemoryTest(TrainCase):
    def setUp(self):
        super().setUp()
        self.shim = self.dir / "small_memory.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.shim, "-x", "c", "-", "-ldl"], input=SMALL_MEMORY, text=True, check=True)
        self.settings = ("data.seq_len=64", "train.micro_batch_size=8", "data.shuffle=false", "train.on_out_of_memory=shrink",
                         "checkpoint.async=false", *self.saving(every=2))

    def train_in(self, windows, *settings, ranks="1", launcher=("--max-restarts=3",)):
        """With memory for the logits of so many windows on the ranks that are named."""
        wrapper = self.dir / "small"
        wrapper.write_text(f'#!/bin/sh\nLD_PRELOAD={self.shim} RANKS={ranks} LIMIT={int(windows * LOGITS) + 100} exec "{TRAIN}" "$@"\n')
        wrapper.chmod(0o755)
        arguments = ["--config", self.config, *(word for text in (*self.settings, *settings) for word in ("--set", text))]
        return self.finish(self.start("--standalone", "--nproc-per-node=2", *launcher, "--no-python", wrapper, *arguments,
                                      binary=BIN / "fsdprun"))

    def test_forwards_are_halved_until_they_fit_and_losses_stay(self):
        self.train_well(*self.settings)
        expected = self.losses()
        self.metrics.unlink()
        shutil.rmtree(self.checkpoints)
        rc, _, err = self.train_in(2)
        self.assertEqual(rc, 0, err)
        self.assertIn("no memory for a forward and backward of 8 windows", err)
        self.assertIn("no memory for a forward and backward of 4 windows", err)
        self.assertIn("train.micro_batch_size is 8, and 2 are used, because step 1 had no memory for more", err)
        limit = json.loads((self.checkpoints / "micro-batch.json").read_text())
        self.assertEqual((limit["windows"], limit["step"]), (2, 1))
        losses = self.losses()
        self.assertEqual(sorted(losses), sorted(expected))
        for step, loss in losses.items():
            self.assertAlmostEqual(loss, expected[step], delta=1e-4)
        # Who resumes the run begins with what has fitted.
        rc, _, err = self.train_in(2, "train.steps=8", launcher=())
        self.assertEqual(rc, 0, err)
        self.assertNotIn("no memory for a forward", err)

    def test_one_window_that_does_not_fit_ends_the_job(self):
        rc, out, err = self.train_in(0.75, "train.micro_batch_size=1", ranks="all")
        self.assertNotEqual(rc, 0)
        self.assertIn("there is nothing smaller; set ", out + err)
        self.assertRegex(err, r"exitcode  : 78 ")
        self.assertFalse((self.checkpoints / "micro-batch.json").exists())

    def test_without_the_policy_there_is_advice(self):
        rc, out, err = self.train_in(2, "train.on_out_of_memory=stop", launcher=())
        self.assertNotEqual(rc, 0)
        self.assertIn("with train.on_out_of_memory=shrink a run divides its batches", out + err)
        self.assertFalse((self.checkpoints / "micro-batch.json").exists())


class EstimateTest(TrainCase):
    def ask(self, command, *arguments):
        return self.run_job(command, "--config", self.config, *arguments, binary=TRAIN)

    def test_estimate_of_a_world_that_is_not_there(self):
        rc, out, err = self.ask("estimate", "--world", "64", "--device", "H100", "--device-memory", "80GiB", "--json")
        self.assertEqual((rc, err), (0, ""))
        answer = json.loads(out)
        self.assertEqual(answer["ranks"], 64)
        self.assertTrue(answer["verdict"]["fits"])
        self.assertGreater(answer["time"]["tokens_per_second"], 0)
        rc, out, err = self.ask("estimate", "--world", "64", "--device-memory", "100KB")
        self.assertEqual((rc, err), (0, ""))
        self.assertIn("does not fit", out)

    def test_a_check_and_its_run_refuse_the_same(self):
        rc, out, err = self.ask("check", "--world", "2")
        self.assertEqual((rc, err), (0, ""))
        self.assertIn("at step 0", out)
        for setting, words in (("data.seq_len=65", "data.seq_len = 65: expected"), ("train.steps=-1", "train.steps = -1: expected"),
                               ('optimizer.no_decay=["x"]', 'optimizer.no_decay has "x": expected'),
                               ("checkpoint.dir=/dev/null/x", "/dev/null/x")):
            with self.subTest(setting):
                for command in ("check", "train"):
                    rc, _, err = self.run_job(command, "--config", self.config, "--set", setting, binary=TRAIN)
                    self.assertEqual(rc, 78, err)
                    self.assertIn(words, err)

    def test_a_check_names_the_checkpoint_that_a_run_would_go_on_from(self):
        self.train_well(*self.saving())
        before = sorted(self.checkpoints.rglob("*"))
        rc, out, err = self.ask("check", *(word for text in (*self.saving(), "train.steps=9") for word in ("--set", text)))
        self.assertEqual((rc, err), (0, ""))
        self.assertIn(f"after step 6, from {self.checkpoints}/step-6", out)
        self.assertEqual(sorted(self.checkpoints.rglob("*")), before)


if __name__ == "__main__":
    main()
