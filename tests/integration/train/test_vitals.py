"""What fsdp-train says of itself in the page that it shares with its agent, read from outside; checkpoints on request."""

import math
import os
import re
import signal
import socket
import subprocess

from events import patience
from job_case import BIN, wait_until
from train_case import TrainCase
from unittest_main import main
from vitals_page import path_of, read

ENDLESS = 10_000_000
FORWARD, BACKWARD = 3, 4


class VitalsTest(TrainCase):
    def pages(self):
        """{rank: page} of two ranks that train."""
        found = {}

        def all_are_there():
            for pid in self.processes_that_train():
                page = path_of(pid)
                if page is not None:
                    found[int(page.name.split(".")[1])] = page, pid
            return len(found) == 2
        wait_until(all_are_there, "two ranks that have pages")
        return found

    def test_two_ranks_tell_their_steps_and_collectives(self):
        launcher = self.start_training(f"train.steps={ENDLESS}")
        (first, first_pid), (second, second_pid) = (self.pages()[rank] for rank in range(2))
        for page, pid in ((first, first_pid), (second, second_pid)):
            wait_until(lambda page=page: read(page)["step"] > 3, "steps")
            told = read(page)
            self.assertEqual((told["version"], told["pid"], told["total"]), (1, pid, ENDLESS))
            self.assertTrue(0 < told["loss"] < 10 and math.isfinite(told["tokens_per_second"]))
            self.assertGreater(told["step_ns"], told["collective_wait_ns"] + told["data_wait_ns"])
            self.assertGreater(told["data_wait_ns"], 0)
            self.assertGreater(told["collectives_begun"], 0)
            self.assertGreater(told["tokens"], 0)
        # One that is stopped makes the other wait, in a collective for a unit.
        os.kill(second_pid, signal.SIGSTOP)
        before = None

        def stands_still():
            nonlocal before
            last, before = before, read(first)
            return before == last and before["collective_began_ns"] != 0
        wait_until(stands_still, "a rank that waits")
        told = read(first)
        self.assertEqual(told["text_lock"] % 2, 0)
        self.assertIn(told["collective"], ("all_gather", "reduce_scatter", "all_reduce", "barrier"))
        self.assertGreater(told["collectives_begun"], told["collectives_ended"])
        os.kill(second_pid, signal.SIGCONT)
        wait_until(lambda: read(first)["collectives_ended"] > told["collectives_begun"], "the rank to go on")
        wait_until(lambda: read(first)["step"] > told["step"] + 1, "whole steps")
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)
        self.assertFalse(first.parent.exists())

    def test_a_save_is_a_part_of_its_step(self):
        page = self.dir / "page"
        page.write_bytes(bytes(4096))
        env = {"FSDPRUN_VITALS_FILE": str(page)}
        self.train_well(*self.saving(every=1), "train.steps=3", ranks=0, env=env)
        told = read(page)
        self.assertEqual((told["step"], told["total"], told["phase"]), (3, 3, 0))
        self.assertGreater(told["save_ns"], 0)
        self.assertGreater(told["step_ns"], told["save_ns"])
        self.assertEqual(told["collectives_begun"], told["collectives_ended"])
        self.assertEqual(told["collective_wait_ns"], 0)  # one rank waits for nobody

    def test_what_is_no_page_is_left_alone(self):
        text = self.dir / "text"
        text.write_text("mine")
        for path in (text, self.dir, "/none/at/all"):
            with self.subTest(path):
                self.train_well("train.steps=1", ranks=0, env={"FSDPRUN_VITALS_FILE": str(path)})
        self.assertEqual(text.read_text(), "mine")


class SaveTest(TrainCase):
    SAVE = b'{"v":1,"type":"save"}\n'

    def train_with_socket(self, *settings, records=(), until=None):
        """A rank alone that gets `records` before its first step."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for record in records:
                ours.sendall(record)
            binary, arguments = self.arguments(*settings, ranks=0)
            worker = self.start(*arguments, binary=binary, env={"FSDPRUN_CONTROL_FD": str(theirs.fileno())}, pass_fds=[theirs.fileno()])
            if until is not None:
                until(ours)
            rc, out, err = self.finish(worker)
        self.assertEqual((rc, err), (0, ""))
        return out

    def test_a_checkpoint_on_request_changes_nothing_else(self):
        reference = self.dir / "reference.jsonl"
        self.train_well(f"metrics.jsonl={reference}", ranks=0)
        self.train_with_socket(*self.saving(every=1000), records=[self.SAVE])
        self.assertEqual(self.steps_saved(), [1, 6])  # once, after the first step, and at the end
        self.assertEqual(self.losses(), self.losses(reference))
        # What was saved is whole: a run that goes on from there gives the same bits.
        (self.checkpoints / "step-6").rename(self.dir / "step-6")
        again = self.dir / "again.jsonl"
        out, _ = self.train_well(f"checkpoint.resume={self.checkpoints / 'step-1'}", f"metrics.jsonl={again}", ranks=0)
        self.assertIn("resuming after step 1 ", out)
        self.assertEqual(self.losses(again), {step: loss for step, loss in self.losses(reference).items() if step > 1})

    def test_while_it_trains(self):
        def ask(ours):
            ours.sendall(self.SAVE)
            wait_until(lambda: self.checkpoints.exists() and self.steps_saved(), "a checkpoint")
            wait_until(lambda: max(self.losses()) > self.steps_saved()[0] + 2, "steps after it")
            ours.sendall(b'{"v":1,"type":"stop","grace_ms":60000}\n')
        out = self.train_with_socket(*self.saving(every=0), f"train.steps={ENDLESS}", until=ask)
        saved = self.steps_saved()
        self.assertEqual(len(saved), 2, out)
        self.assertIn(f"stopped on request after step {saved[1]}", out)

    def test_an_operator_has_two_ranks_save_once_each_time(self):
        env = {"XDG_RUNTIME_DIR": str(self.dir)}
        launcher = self.start_training(*self.saving(every=0), f"train.steps={ENDLESS}", env=env)
        wait_until(lambda: len(self.losses()) > 3, "steps")
        saved = []
        for _ in range(2):
            asked = subprocess.run([BIN / "fsdpctl", "checkpoint", "now"], env={**self.env, **env}, capture_output=True, text=True,
                                   timeout=patience())
            self.assertEqual(asked.returncode, 0, asked.stderr)
            saved.append(int(re.match(r"step (\d+) is saved in ", asked.stdout)[1]))
            self.assertEqual(self.steps_saved(), saved)
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)
        self.assertEqual(len(self.steps_saved()), 3)  # and the last

    def test_without_a_folder_it_is_said(self):
        out = self.train_with_socket(records=[self.SAVE])
        self.assertEqual(out.count("was asked for, and not saved: checkpoint.dir is not set; training goes on"), 1, out)
        self.assertIn("done: 6 steps", out)


if __name__ == "__main__":
    main()
