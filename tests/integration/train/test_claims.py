"""Two jobs on one checkpoint directory, and a job that was replaced but still runs."""

import errno
import fcntl
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time

from events import patience, wait_for_files
from job_case import processes_with, wait_until
from train_case import TRAIN, TrainCase
from unittest_main import main

ENDLESS = "train.steps=100000000"  # nobody waits for that many
KEEP = 20  # so many that none is removed while another start reads it, or the test counts them
CLAIM_OF_ANOTHER = {"job_id": "another", "generation": 1, "claim": "0123456789abcdef", "host": "elsewhere", "pid": 7}


class ClaimCase(TrainCase):
    def start_endless(self, *settings, **kwargs):
        """A job that has saved and goes on saving."""
        job = self.start_training(*self.saving(every=10, keep=KEEP), ENDLESS, *settings, **kwargs)
        self.wait_for_save_after(0)
        return job

    def wait_for_save_after(self, step):
        def newest():
            try:
                return self.steps_saved()[-1]
            except (FileNotFoundError, IndexError):
                return 0
        wait_for_files(lambda: newest() > step, self.dir, f"a checkpoint after step {step}", writes=True)

    def assert_goes_on_saving(self, job):
        for _ in range(2):
            self.wait_for_save_after(self.steps_saved()[-1])
        self.assertIsNone(job.poll())

    def stop(self, job):
        job.terminate()
        return self.finish(job)

    def claim(self):
        return json.loads((self.checkpoints / ".claim").read_text())

    def wait_until_stopped(self, process):
        """Nothing tells of a stop: its state is looked at again and again."""
        stat = pathlib.Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T", "a stop")

    def is_publishing(self):
        """Whether a process holds the lock of the directory."""
        with open(self.checkpoints / ".lock", "r+b") as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self.assertIn(error.errno, (errno.EACCES, errno.EAGAIN))
                return True
            return False

    def pause(self, process, while_publishing=False):
        """Stops a process that saves again and again, where it holds the lock of its directory, or where it trains."""
        end = time.monotonic() + patience()
        while True:
            process.send_signal(signal.SIGSTOP)
            self.wait_until_stopped(process)
            is_saving = any(self.checkpoints.glob("step-*.tmp-*"))
            if self.is_publishing() if while_publishing else not (is_saving or self.is_publishing()):
                return
            self.assertLess(time.monotonic(), end, "it is never stopped there")
            process.send_signal(signal.SIGCONT)

    def waiting_lines(self, err):
        return [line for line in err.splitlines() if "waiting for" in line]


class SecondStartTest(ClaimCase):
    def test_it_is_refused_while_the_first_runs(self):
        first = self.start_endless()
        rc, out, err = self.train(*self.saving(), "train.steps=1", launcher=["--max-restarts=3"])
        self.assertNotEqual(rc, 0, out)
        lines = self.own_lines(out, err)
        self.assertEqual(len(lines), 1, err)
        holder = json.loads((self.checkpoints / ".claim").read_text())
        for word in (self.checkpoints, "is using it", f"job '{holder['job_id']}'", f"process {holder['pid']} on host",
                     os.uname().nodename, "checkpoint.takeover"):
            self.assertIn(str(word), lines[0])
        self.assertRegex(err, r"exitcode  : 78 ")
        self.assertIn("0 of 3 restarts used", err)
        self.assert_goes_on_saving(first)
        self.stop(first)

    def test_it_changes_nothing_if_it_fails_on_its_model(self):
        first = self.start_endless()
        claim = (self.checkpoints / ".claim").read_bytes()
        other = self.dir / "other"
        shutil.copytree(self.model, other)
        config = other / "config.json"
        config.write_text(config.read_text().replace('"intermediate_size": 64', '"intermediate_size": 96'))
        metrics = f"metrics.jsonl={self.dir / 'second.jsonl'}"
        rc, out, err = self.train(*self.saving(), "train.steps=1", f"model.config={other}", metrics)
        self.assertNotEqual(rc, 0, out)
        self.assertIn("shape", self.own_lines(out, err)[0])
        self.assertEqual((self.checkpoints / ".claim").read_bytes(), claim)
        self.assert_goes_on_saving(first)
        self.stop(first)

    def test_takeover_ends_the_first(self):
        first = self.start_endless(launcher=["--max-restarts=3"])
        _, err = self.train_well(*self.saving(), "train.steps=1", "checkpoint.takeover=true",
                                 f"metrics.jsonl={self.dir / 'second.jsonl'}")
        self.assertEqual(self.waiting_lines(err), [])
        second = json.loads((self.checkpoints / ".claim").read_text())
        rc, out, err = self.finish(first)
        self.assertNotEqual(rc, 0)
        self.assertIn(f"job '{second['job_id']}', generation 1, process {second['pid']} on host", err)
        self.assertIn("has claimed it since", self.own_lines(out, err)[0])
        self.assertRegex(err, r"exitcode  : 78 ")
        self.assertIn("0 of 3 restarts used", err)

    def test_restart_does_not_take_over(self):
        metrics = f"metrics.jsonl={self.dir / 'second.jsonl'}"
        second = self.start_endless("checkpoint.takeover=true", metrics, launcher=["--max-restarts=3"])
        rank0 = self.claim()["pid"]
        os.kill(rank0, signal.SIGSTOP)
        (self.checkpoints / "claim").write_text(json.dumps(CLAIM_OF_ANOTHER))
        (self.checkpoints / "claim").rename(self.checkpoints / ".claim")
        os.kill(rank0, signal.SIGKILL)
        keeper = threading.Thread(target=self.beat, args=[second])
        keeper.start()
        rc, out, err = self.finish(second)
        keeper.join()
        self.assertNotEqual(rc, 0, out)
        self.assertIn("process 7 on host elsewhere is using it", err)
        self.assertRegex(err, r"exitcode  : 78 ")
        self.assertIn("1 of 3 restarts used", err)

    def beat(self, job):
        """As the holder of the claim does, until the job has ended."""
        while job.poll() is None:
            os.utime(self.checkpoints / ".claim")
            time.sleep(0.1)

    def test_it_is_refused_while_the_first_restarts(self):
        script = self.dir / "delayed"
        script.write_text(f'''#!/bin/sh
            if [ "$FSDPRUN_GENERATION" = 2 ]; then
                echo > "$D/restarts.$RANK"
                while [ ! -e "$D/go" ]; do sleep 0.05; done
            fi
            exec {TRAIN} "$@"
            ''')
        script.chmod(0o755)
        binary, arguments = self.arguments(*self.saving(every=10, keep=KEEP), ENDLESS, launcher=["--max-restarts=3"])
        first = self.start(*[script if word == TRAIN else word for word in arguments], binary=binary)
        self.wait_for_save_after(0)
        claim = self.claim()
        os.kill(claim["pid"], signal.SIGKILL)
        wait_for_files(lambda: (self.dir / "restarts.0").exists(), self.dir, "the restart")
        errors = self.dir / "errors"
        with open(errors, "w") as stream:
            binary, arguments = self.arguments(*self.saving(), "train.steps=1",
                                               f"metrics.jsonl={self.dir / 'second.jsonl'}")
            second = self.start(*arguments, binary=binary, stderr=stream)
            wait_for_files(lambda: "waiting for" in errors.read_text() or self.claim() != claim, self.dir,
                           "the second to wait", writes=True)
            self.assertEqual(self.claim(), claim)
            (self.dir / "go").touch()
            rc, out, _ = self.finish(second)
        self.assertNotEqual(rc, 0, out)
        self.assertRegex(errors.read_text(), r"exitcode  : 78 ")
        self.wait_for_save_after(self.steps_saved()[-1])
        self.assert_goes_on_saving(first)
        self.assertEqual((self.claim()["job_id"], self.claim()["generation"]), (claim["job_id"], 2))
        self.stop(first)

    def test_it_does_not_wait_for_one_that_has_ended_or_was_killed(self):
        self.stop(self.start_endless())
        before = self.claim()
        killed = self.start_training(*self.saving(every=10, keep=KEEP), ENDLESS)
        self.wait_for_save_after(max(self.steps_saved()))
        self.assertNotEqual(self.claim(), before)
        for pid in processes_with(self.marker):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.finish(killed)
        self.assert_nothing_left()
        out, err = self.train_well(*self.saving(), "train.steps=1")
        self.assertIn("resuming after step", out)
        self.assertEqual(self.waiting_lines(err), [])

    def test_it_takes_over_from_one_that_shows_no_life(self):
        settings = ("checkpoint.claim_timeout_seconds=0.3", f"metrics.jsonl={self.dir / 'second.jsonl'}")
        silent = self.start_endless(settings[0], ranks=0)
        self.pause(silent)
        out, err = self.train_well(*self.saving(), "train.steps=1", *settings)
        self.assertEqual(len(self.waiting_lines(err)), 1, err)
        for word in (self.checkpoints, f"process {silent.pid} on host", "checkpoint.takeover"):
            self.assertIn(str(word), self.waiting_lines(err)[0])
        self.assertIn("resuming after step", out)
        silent.send_signal(signal.SIGCONT)
        rc, out, err = self.finish(silent)
        self.assertEqual(rc, 78, err)
        self.assertIn("has claimed it since", err)

    def test_it_fails_if_one_that_publishes_is_stopped(self):
        """Nobody else may publish before that has ended, so no claim and no takeover helps."""
        holder = self.start_endless("checkpoint.every_steps=1", ranks=0)
        self.pause(holder, while_publishing=True)
        before = (self.claim(), self.steps_saved())
        begin = time.monotonic()
        rc, out, err = self.train(*self.saving(), "train.steps=1", f"metrics.jsonl={self.dir / 'second.jsonl'}",
                                  "checkpoint.takeover=true", ranks=0)
        self.assertEqual(rc, 1, err)
        lines = self.own_lines(out, err)
        self.assertEqual(len(lines), 1, err)
        for word in ("cannot lock", self.checkpoints / ".lock", "for more than 10 s", "end it, or choose another"):
            self.assertIn(str(word), lines[0])
        self.assertGreater(time.monotonic() - begin, 10)
        self.assertEqual((self.claim(), self.steps_saved()), before)
        holder.send_signal(signal.SIGCONT)
        self.assert_goes_on_saving(holder)
        self.stop(holder)

    def train_after_waiting(self, change):
        """Trains to step 4 where steps 1 and 2 were saved; `change` is called while it waits for the directory."""
        (self.checkpoints / ".claim").write_text(json.dumps(CLAIM_OF_ANOTHER))
        errors = self.dir / "errors"
        with open(errors, "w") as stream:
            binary, arguments = self.arguments(*self.saving(every=1), "train.steps=4",
                                               "checkpoint.claim_timeout_seconds=300")
            job = self.start(*arguments, binary=binary, stderr=stream)
            wait_for_files(lambda: "waiting for" in errors.read_text(), self.dir, "the job to wait", writes=True)
            change()
            (self.checkpoints / ".claim").unlink()
            rc, out, _ = self.finish(job)
        return rc, out, errors.read_text()

    def test_what_was_saved_while_it_waited_is_loaded(self):
        self.train_well(*self.saving(every=1), "train.steps=3")
        newer = self.checkpoints / "step-3"
        newer.rename(self.dir / "step-3")
        rc, out, err = self.train_after_waiting(lambda: (self.dir / "step-3").rename(newer))
        self.assertEqual(rc, 0, err)
        self.assertEqual(re.findall(r"resuming after step (\d)", out), ["2", "3"])
        self.assertEqual(sorted(self.losses()), [1, 2, 3, 4])

    def test_what_was_loaded_and_is_gone_after_it_waited_is_an_error(self):
        """New weights would be trained with the optimizer and the steps of what was loaded."""
        self.train_well(*self.saving(every=1), "train.steps=2")

        def move_all_away():
            for step in self.steps_saved():
                (self.checkpoints / f"step-{step}").rename(self.dir / f"step-{step}")
        rc, out, err = self.train_after_waiting(move_all_away)
        self.assertEqual(rc, 1, err)
        self.assertEqual(re.findall(r"resuming after step (\d)", out), ["2"])
        self.assertNotIn("starting at step 0", out)
        self.assertIn("cannot resume: the checkpoint of step 2 was removed after it was loaded", err)
        self.assertEqual((self.steps_saved(), sorted(self.losses())), ([], [1, 2]))


class ShellTest(ClaimCase):
    """Trainings that somebody starts from one shell, without a launcher: each is a launch of its own."""

    def start_from_shell(self):
        """Two at the same directory: the first is killed once the second has been refused, and then a third starts."""
        def command(*settings):
            binary, arguments = self.arguments(*settings, ranks=0)
            return shlex.join(map(str, (binary, *arguments)))
        first = command(*self.saving(every=10, keep=KEEP), ENDLESS)
        second = command(*self.saving(), "train.steps=1", f"metrics.jsonl={self.dir / 'second.jsonl'}")
        third = command(*self.saving(), "train.steps=1", f"metrics.jsonl={self.dir / 'third.jsonl'}")
        script = f"""
            {first} > $D/first.out 2>&1 & training=$!
            while [ ! -e $D/saved ]; do sleep 0.05; done
            {second} > $D/second.out 2>&1; echo $? > $D/second.rc
            kill -KILL $training; wait $training
            {third} > $D/third.out 2>&1; echo $? > $D/third.rc
            """
        return self.start("-c", script, binary="/bin/sh")

    def test_they_are_no_restarts_of_each_other(self):
        shell = self.start_from_shell()
        self.wait_for_save_after(0)
        claim = self.claim()
        self.assertEqual((claim["job_id"], claim["launcher_pid"]), ("", 0))
        (self.dir / "saved").touch()
        self.finish(shell)
        said = {name: (self.dir / f"{name}.out").read_text() for name in ("second", "third")}
        ends = {name: (self.dir / f"{name}.rc").read_text().strip() for name in ("second", "third")}
        self.assertEqual(ends, {"second": "78", "third": "0"}, said)
        self.assertIn(f"process {claim['pid']} on host", said["second"])
        self.assertIn("is using it", said["second"])
        self.assertEqual(self.waiting_lines(said["third"]), [])
        self.assertIn("resuming after step", said["third"])

    def test_shell_is_not_the_launcher_of_a_training_with_a_job_id(self):
        training = self.start_endless(ranks=0, env={"FSDPRUN_JOB_ID": "mine"})
        self.assertEqual((self.claim()["job_id"], self.claim()["launcher_pid"]), ("mine", 0))
        self.stop(training)


class RetentionTest(ClaimCase):
    def test_checkpoints_of_another_run_are_neither_removed_nor_replaced(self):
        self.train_well(*self.saving(every=2, keep=1), "train.steps=4")
        self.assertEqual(self.steps_saved(), [4])
        self.train_well(*self.saving(every=1, keep=1), "train.steps=3", "checkpoint.resume=none")
        self.assertEqual(self.steps_saved(), [3, 4])
        self.assert_refused(78, ["refused to replace", self.checkpoints / "step-4", "another run", "checkpoint.dir"],
                            *self.saving(every=1, keep=1), "train.steps=6")
        self.train_well(*self.saving(every=3, keep=1), "train.steps=6")  # goes on with the second
        self.assertEqual(self.steps_saved(), [4, 6])


class OldWorldTest(ClaimCase):
    """A rank 0 that was replaced and still runs."""

    def test_its_checkpoints_and_metrics_are_refused(self):
        old = self.start_endless("checkpoint.every_steps=200", ranks=0)  # goes on with a record, not with a save
        self.pause(old)
        out, err = self.train_well(*self.saving(every=10), f"train.steps={self.steps_saved()[-1] + 20}",
                                   "checkpoint.takeover=true")
        steps, content = self.steps_saved(), self.metrics.read_bytes()
        old.send_signal(signal.SIGCONT)
        rc, out, err = self.finish(old)
        self.assertEqual(rc, 78, err)
        self.assertIn("has claimed it since", err)
        self.assertIn(f"metrics file {self.metrics} is another one now", err)
        self.assertEqual((self.steps_saved(), self.metrics.read_bytes()), (steps, content))
        launches = [record["launch"] for record in self.records()]
        self.assertEqual(launches, sorted(launches, key=bool))  # those without a launcher first

    def test_it_opens_no_metrics_of_its_successor(self):
        self.metrics = self.disk("1m", "nr_inodes=2") / "metrics.jsonl"
        at = f"metrics.jsonl={self.metrics}"
        filler = self.fill(self.metrics.parent)  # with the file system itself all that there may be
        log = self.dir / "errors"
        with open(log, "w") as errors:
            binary, arguments = self.arguments(*self.saving(every=100_000_000), ENDLESS, at, ranks=0)
            old = self.start(*arguments, binary=binary, stderr=errors)
            wait_for_files(lambda: "training goes on" in log.read_text(), self.dir, "a warning", writes=True)
            old.send_signal(signal.SIGSTOP)
            self.wait_until_stopped(old)
            self.assertFalse(self.metrics.exists())
            filler.unlink()
            # Of a start there are two for a moment: a new one takes the place of the old.
            subprocess.run(["mount", "-o", "remount,nr_inodes=9", self.metrics.parent], check=True)
            self.train_well(*self.saving(), at, "checkpoint.takeover=true", "train.steps=3", ranks=0)
            content = self.metrics.read_bytes()
            old.send_signal(signal.SIGCONT)
            wait_for_files(lambda: "no more metrics are written" in log.read_text(), self.dir, "a refusal", writes=True)
            old.terminate()
            rc, *_ = self.finish(old)
        self.assertEqual(rc, 78, log.read_text())
        self.assertIn("another start has taken over", log.read_text())
        self.assertEqual([path.name for path in self.metrics.parent.iterdir()], [self.metrics.name])
        self.assertEqual(self.metrics.read_bytes(), content)


if __name__ == "__main__":
    main()
