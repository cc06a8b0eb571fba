"""What a run takes before it is started, and what it does where there is not enough: estimate, check, smaller micro batches."""

import json
import shutil
import subprocess

from job_case import BIN
from train_case import TRAIN, TrainCase
from unittest_main import main

# Memory of more than LIMIT bytes in one piece is not to be had on the rank that RANKS names, or on all; but more than tensors here
# take is, which libraries have for themselves. With ONCE it is refused one time, which this file tells then, and only in a backward
# behind which the file AFTER exists and a save is in flight: from then on its fsync waits for what is refused.
SMALL_MEMORY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define MOST (1 << 20)
#define FRAMES 200

static volatile int is_saving;

static int is_meant(void) {
    const char *rank = getenv("RANK"), *ranks = getenv("RANKS");
    return ranks && (!strcmp(ranks, "all") || (rank && !strcmp(rank, ranks)));
}

static int exists(const char *variable) {
    const char *path = getenv(variable);
    return path && !access(path, F_OK);
}

static int is_in_backward(void) {
    void *frames[FRAMES];
    Dl_info function;
    for (int i = backtrace(frames, FRAMES); i-- > 0;)
        if (dladdr(frames[i], &function) && function.dli_sname && strstr(function.dli_sname, "autograd6Engine")) return 1;
    return 0;
}

static int is_time(void) {
    if (!getenv("ONCE")) return 1;
    if (exists("ONCE") || !is_saving || !is_in_backward()) return 0;
    close(open(getenv("ONCE"), O_CREAT, 0600));
    return 1;
}

int fsync(int file) {
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    for (int waited = 0; getenv("ONCE") && is_meant() && exists("AFTER") && !exists("ONCE") && waited < 20000; ++waited) {
        is_saving = 1;
        usleep(1000);
    }
    return next(file);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
    static int (*next)(void **, size_t, size_t);
    if (!next) next = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    const char *limit = getenv("LIMIT");
    if (is_meant() && limit && size > strtoul(limit, 0, 10) && size <= MOST && is_time()) return ENOMEM;
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
        # Forwards of 8 windows, two a step without a reduction between them, and an evaluation of one.
        self.large = ("train.grad_accumulation=2", "train.sync_each_micro_batch=false", f'data.valid=["{self.dir / "train.txt"}"]',
                      "train.eval_every=6", "train.eval_batches=1")

    def train_in(self, windows, *settings, ranks="1", launcher=("--max-restarts=3",), variables=""):
        """With memory for the logits of so many windows on the ranks that are named."""
        wrapper = self.dir / "small"
        wrapper.write_text(f'#!/bin/sh\nLD_PRELOAD={self.shim} RANKS={ranks} LIMIT={int(windows * LOGITS) + 100} {variables} '
                           f'exec "{TRAIN}" "$@"\n')
        wrapper.chmod(0o755)
        arguments = ["--config", self.config, *(word for text in (*self.settings, *settings) for word in ("--set", text))]
        return self.finish(self.start("--standalone", "--nproc-per-node=2", *launcher, "--no-python", wrapper, *arguments,
                                      binary=BIN / "fsdprun"))

    def evaluations(self):
        return {record["step"]: record["eval_loss"] for record in self.records() if "eval_loss" in record}

    def test_forwards_are_halved_until_they_fit_and_losses_stay(self):
        self.train_well(*self.settings, *self.large)
        expected, evaluated = self.losses(), self.evaluations()
        self.metrics.unlink()
        shutil.rmtree(self.checkpoints)
        rc, _, err = self.train_in(2, *self.large, launcher=())
        self.assertNotEqual(rc, 0)
        self.assertIn("no memory for a forward and backward of 8 windows", err)
        self.assertEqual(self.steps_saved(), [])
        # Another launch, which finds no checkpoint either, begins with half.
        rc, _, err = self.train_in(2, *self.large)
        self.assertEqual(rc, 0, err)
        self.assertNotIn("no memory for a forward and backward of 8 windows", err)
        self.assertIn("no memory for a forward and backward of 4 windows", err)
        self.assertIn("train.micro_batch_size is 8, and 2 are used, because step 1 had no memory for more", err)
        self.assertIn("each of which reduces its gradients", err)
        limit = json.loads((self.checkpoints / "micro-batch.json").read_text())
        self.assertEqual((limit["windows"], limit["step"]), (2, 1))
        losses = self.losses()
        self.assertEqual(sorted(losses), sorted(expected))
        for step, loss in losses.items():
            self.assertAlmostEqual(loss, expected[step], delta=1e-4)
        # Of the same windows; others would have another loss.
        self.assertEqual(list(evaluated), [6])
        self.assertAlmostEqual(self.evaluations()[6], evaluated[6], delta=1e-4)
        # Who resumes the run begins with what has fitted.
        rc, _, err = self.train_in(2, *self.large, "train.steps=8", launcher=())
        self.assertEqual(rc, 0, err)
        self.assertNotIn("no memory for a forward", err)

    def test_a_backward_of_a_later_step_with_a_save_in_flight(self):
        settings = ("train.steps=12", "checkpoint.every_steps=4", "checkpoint.async=true")
        self.train_well(*self.settings, *settings)
        expected = self.losses()
        for backend in ("shm", "gloo"):
            with self.subTest(backend):
                self.metrics.unlink()
                shutil.rmtree(self.checkpoints)
                once = self.dir / f"refused-{backend}"
                rc, out, err = self.train_in(7, *settings, f"parallel.backend={backend}",
                                             variables=f"AFTER={self.checkpoints}/step-4 ONCE={once}")
                self.assertEqual(rc, 0, err)
                self.assertTrue(once.exists(), "nothing was refused")
                self.assertRegex(err, r"rank 1: step \d+: no memory for a forward and backward of 8 windows")
                # The other one is a victim, and not out of memory itself.
                self.assertNotRegex(err, r"rank 0: step \d+: no memory")
                # What was being saved is whole or not there.
                self.assertRegex(out + err, f"resuming after step [48] from {self.checkpoints}/step-[48]")
                self.assertIn("train.micro_batch_size is 8, and 4 are used", out + err)
                self.assertEqual(self.steps_saved(), [4, 8, 12])
                losses = self.losses()
                self.assertEqual(sorted(losses), sorted(expected))
                for step, loss in losses.items():
                    self.assertAlmostEqual(loss, expected[step], delta=1e-4)

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

    def files(self):
        """Contents by name, and when they were written."""
        return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
                for path in self.dir.rglob("*") if self.checkpoints in path.parents or path == self.metrics}

    def test_a_check_names_the_checkpoint_that_a_run_would_go_on_from(self):
        self.train_well(*self.saving())
        before = self.files()
        rc, out, err = self.ask("check", *(word for text in (*self.saving(), "train.steps=9") for word in ("--set", text)))
        self.assertEqual((rc, err), (0, ""))
        self.assertIn(f"after step 6, from {self.checkpoints}/step-6", out)
        self.assertEqual(self.files(), before)


if __name__ == "__main__":
    main()
