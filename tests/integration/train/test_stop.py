"""How a training ends early: on request, and when its loss is no number."""

import fcntl
import os
import pathlib
import re
import signal
import socket

from events import wait_for_files
from job_case import wait_until
from train_case import TrainCase
from unittest_main import main

ENDLESS = 100_000_000  # steps; nobody waits for that many


class StopTest(TrainCase):
    def settings(self, steps=ENDLESS):
        return (*self.saving(every=1000), f"train.steps={steps}")

    def wait_for_steps(self, count):
        wait_for_files(lambda: len(self.records()) > count, self.dir, "steps", writes=True)

    def test_sigterm_saves_and_the_same_command_goes_on(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            launcher = self.start_training(*self.settings())
            self.wait_for_steps(len(self.records()) + 15)
            launcher.send_signal(number)
            rc, out, err = self.finish(launcher)
            self.assert_nothing_left()
            self.assertNotEqual(rc, 0)
            self.assertEqual(self.own_lines(out, err), [])
            last = self.records()[-1]["step"]
            self.assertIn(f"stopped on request after step {last}", out)
            self.assertEqual(self.steps_saved()[-1], last)
        out, _ = self.train_well(*self.settings(last + 10))
        self.assertIn(f"resuming after step {last}", out)
        reference = self.dir / "reference.jsonl"
        self.train_well(f"train.steps={last + 10}", f"metrics.jsonl={reference}")
        self.assertEqual(self.losses(), self.losses(reference))

    def test_sigterm_of_a_single_process(self):
        worker = self.start_training(*self.settings(), ranks=0)
        self.wait_for_steps(15)
        worker.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(worker)
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(self.steps_saved(), [self.records()[-1]["step"]])

    def test_signal_before_the_first_step_ends_at_once(self):
        """Ranks that wait for a peer that never comes: a world of 2 of which 1 is started."""
        segments = self.segments()
        binary, arguments = self.arguments(ranks=0)
        launcher = self.start("--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c",
                              'if [ "$RANK" = 0 ]; then sleep 600; else exec "$0" "$@"; fi', binary, *arguments)
        self.wait_for_worker()
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)
        self.assert_nothing_left()
        self.assertEqual(self.segments() - segments, set())

    @staticmethod
    def segments():
        """Without the folders that launchers of other tests make there."""
        return {name for name in os.listdir("/dev/shm") if not name.startswith("fsdprun_vitals_")}

    def wait_for_worker(self):
        """Nothing tells of an exec: processes are looked at again and again."""
        wait_until(self.processes_that_train, "a worker")


class LongPhaseTest(TrainCase):
    """A request to stop in the middle of a phase that is longer than anybody waits for."""

    def assert_goes_on(self, step, *settings):
        """The next start continues after the step, which is the last that was trained, as if nothing had been."""
        self.assertEqual((sorted(self.losses())[-1], self.steps_saved()[-1]), (step, step))
        out, _ = self.train_well(*self.saving(), f"train.steps={step + 3}", *settings)
        self.assertIn(f"resuming after step {step} ", out)
        reference = self.dir / "reference.jsonl"
        self.train_well(f"train.steps={step + 3}", f"metrics.jsonl={reference}")
        self.assertEqual(self.losses(), self.losses(reference))

    def evaluations(self):
        return {r["step"]: r["eval_loss"] for r in self.records() if "eval_loss" in r}

    def evaluating(self, size):
        (self.dir / "valid.txt").write_bytes((self.dir / "train.txt").read_bytes()[:1000] * (size // 1000 + 1))
        return (f'data.valid=["{self.dir / "valid.txt"}"]', "train.eval_every=3")

    def start_long_evaluation(self):
        launcher = self.start_training(*self.saving(every=1000), f"train.steps={ENDLESS}", *self.evaluating(20_000_000))
        wait_for_files(lambda: 3 in self.losses(), self.dir, "the step before the evaluation", writes=True)
        return launcher

    def test_evaluation_is_left_and_done_by_the_next_start(self):
        launcher = self.start_long_evaluation()
        launcher.send_signal(signal.SIGTERM)
        rc, out, err = self.finish(launcher)
        self.assertEqual(self.own_lines(out, err), [])
        self.assertIn("the evaluation after step 3 was left unfinished", out)
        self.assertIn("stopped on request after step 3", out)
        self.assertEqual(self.evaluations(), {})
        self.assert_goes_on(3, *self.evaluating(1000))
        self.assertEqual(sorted(self.evaluations()), [3, 6])

    def test_all_ranks_leave_an_evaluation_in_which_one_was_asked_to(self):
        launcher = self.start_long_evaluation()
        os.kill(self.workers()[1], signal.SIGTERM)
        rc, out, err = self.finish(launcher)
        self.assertEqual((rc, self.own_lines(out, err)), (0, []))
        self.assert_goes_on(3)

    def test_last_evaluation_is_left_too(self):
        launcher = self.start_training(*self.saving(every=1000), "train.steps=4", *self.evaluating(20_000_000),
                                       "train.eval_every=100")
        wait_for_files(lambda: 4 in self.losses(), self.dir, "the last step", writes=True)
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)
        self.assert_goes_on(4)

    def stop_in_a_save(self, *settings):
        """The step of a save that is being written when a stop is asked for."""
        launcher = self.start_training(*self.saving(every=50), f"train.steps={ENDLESS}", *settings)
        wait_for_files(self.losses, self.dir, "the first step", writes=True)
        with open(self.checkpoints / ".lock", "r+b") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)  # A save waits with its publication.
            saving = wait_for_files(lambda: next(self.checkpoints.glob("step-*.tmp-*"), None), self.checkpoints, "a save")
            worker = self.workers()[0]
            os.kill(worker, signal.SIGTERM)
            self.wait_until_heard(worker, signal.SIGTERM)
        rc, out, err = self.finish(launcher)
        self.assertEqual((rc, self.own_lines(out, err)), (0, []))
        return int(saving.name.split(".")[0][5:])

    def test_periodic_save_is_finished_and_no_step_follows(self):
        self.assert_goes_on(self.stop_in_a_save("checkpoint.async=false"))

    def test_save_beside_steps_is_finished_and_the_last_step_is_saved_too(self):
        begun = self.stop_in_a_save()
        self.assertIn(begun, self.steps_saved())
        self.assert_goes_on(max(self.losses()))

    def wait_until_heard(self, pid, number):
        """Nothing tells of a signal that was handled: its pending bit is looked at again and again."""
        wait_until(lambda: not int(re.search(r"ShdPnd:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1], 16) >> number - 1 & 1,
                   "a signal to be handled")

    def test_step_that_does_not_fit_into_the_grace_is_left(self):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # A step of hours, so that a grace in which every machine saves a checkpoint is too short for it.
            binary, arguments = self.arguments(*self.saving(every=1000), f"train.steps={ENDLESS}",
                                               "train.grad_accumulation=10000000", ranks=0)
            worker = self.start(*arguments, binary=binary, env={"FSDPRUN_CONTROL_FD": str(theirs.fileno())},
                                pass_fds=[theirs.fileno()])
            # The step is the first to look for it, once it has used some of the text.
            ours.sendall(b'{"v":1,"type":"stop","grace_ms":60000}\n')
            rc, out, err = self.finish(worker)
        self.assertEqual((rc, err), (0, ""))
        self.assertIn("step 1 was left unfinished", out)
        self.assertEqual((self.losses(), self.steps_saved()), ({}, [0]))
        # The next start begins the step anew, with the same text.
        out, _ = self.train_well(*self.saving(), "train.steps=3", ranks=0)
        self.assertIn("resuming after step 0 ", out)
        reference = self.dir / "reference.jsonl"
        self.train_well("train.steps=3", f"metrics.jsonl={reference}", ranks=0)
        self.assertEqual(self.losses(), self.losses(reference))


class DivergenceTest(TrainCase):
    def test_no_weights_that_are_no_numbers_are_saved(self):
        line, _ = self.assert_refused(1, ["step 2", "not updated", "lr 1e+30", "optimizer.lr"], *self.saving(every=1),
                                      "optimizer.lr=1e30")
        self.assertRegex(line, r"the (loss|gradient norm) is -?(nan|inf)")
        self.assertEqual(self.steps_saved(), [1])
        self.assertEqual(sorted(self.losses()), [1])

    def test_no_weights_that_the_last_update_made_infinite_are_saved(self):
        self.assert_refused(1, ["step 1", "weights infinite or NaN", "no checkpoint"], *self.saving(every=1),
                            "optimizer.lr=3e38", "optimizer.weight_decay=1", "optimizer.betas=[0,0]",
                            "train.steps=1")
        self.assertEqual(self.steps_saved(), [])


if __name__ == "__main__":
    main()
