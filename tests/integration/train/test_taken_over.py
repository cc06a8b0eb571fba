"""A training whose coordinator is killed and started again: no step is lost, and no worker notices."""

import itertools
import os
import random
import shutil
import signal
import unittest

from etcd_server import REASON_TO_SKIP, EtcdServer
from events import wait_for_files
from job_case import BIN, free_port, wait_until
from train_case import TRAIN, TrainCase
from unittest_main import main

ENDLESS = 100_000_000  # steps; nobody waits for that many
KILLS = int(os.environ.get("FSDPRUN_KILLS", "4"))
LONGEST_COMPARED = 2000  # steps of a training that is left alone
GLOO = "parallel.backend=gloo"


class TakenOverTest(TrainCase):
    """The coordinator has one address, and its journal is in a folder."""

    def setUp(self):
        super().setUp()
        self.journal = self.dir / "journal"
        self.rendezvous = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=kept"]

    def start_coordinator(self):
        return self.start("--coordinator", *self.rendezvous, f"--journal={self.journal}", binary=BIN / "fsdprun")

    def start_nodes(self):
        train = ["--config", self.config, "--set", GLOO, "--set", f"train.steps={ENDLESS}"]
        return [self.start(*self.rendezvous, "--rdzv-conf=is_host=0", f"--log-dir={self.dir}/logs{node}", "--no-python",
                           TRAIN, *train, binary=BIN / "fsdprun") for node in range(2)]

    def times_admitted(self):
        """By any coordinator, of each node; docs/EVENTS.md."""
        return [sum(file.read_text().count('"event":"coordinator_found"') for file in (self.dir / f"logs{node}").rglob("events.jsonl"))
                for node in range(2)]

    def wait_until_nodes_are_back(self, before):
        wait_until(lambda: all(now > then for now, then in zip(self.times_admitted(), before)), "the nodes")

    def kept(self):
        """Something else for each record."""
        record = (self.journal / "record").stat()
        return record.st_ino, record.st_mtime_ns

    def wait_until_kept_anew(self, before):
        wait_for_files(lambda: self.kept() != before, self.journal, "the coordinator")

    def wait_for_steps(self, more):
        count = len(self.records()) + more
        wait_for_files(lambda: len(self.records()) >= count, self.dir, "steps", writes=True)

    def test_killed_coordinator_costs_no_step(self):
        """Of five kills one comes as soon as the process is there again, whatever it has come to by then, one when it has
        taken the job over, whether its nodes are there or not, and three later."""
        chance = random.Random(KILLS)
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        self.wait_for_steps(3)
        workers = sorted(self.processes_that_train())
        self.assertEqual(len(workers), 2)
        for number in range(KILLS):
            coordinator.kill()
            coordinator.wait()
            kept, admitted = self.kept(), self.times_admitted()
            coordinator = self.start_coordinator()
            if number % 5 == 1:
                continue
            self.wait_until_kept_anew(kept)  # The first thing that it does.
            if number % 5 != 3:
                self.wait_until_nodes_are_back(admitted)
            self.wait_for_steps(chance.randrange(1, 40))
        self.wait_until_nodes_are_back(admitted)
        self.wait_for_steps(3)
        self.assertEqual(sorted(self.processes_that_train()), workers)
        coordinator.send_signal(signal.SIGTERM)
        ends = [self.finish(launcher) for launcher in (coordinator, *nodes)]
        out = "".join(stdout for _, stdout, _ in ends)
        self.assertEqual([rc for rc, _, _ in ends], [1, 1, 1], ends)
        self.assertEqual(out.count("starting at step 0"), 1, out)
        disturbed, steps = self.losses(), [record["step"] for record in self.records() if "loss" in record]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.metrics.unlink()
        compared = min(len(steps), LONGEST_COMPARED)
        self.train_well(GLOO, f"train.steps={compared}")
        self.assertEqual({step: loss for step, loss in disturbed.items() if step <= compared}, self.losses())


@unittest.skipIf(REASON_TO_SKIP, REASON_TO_SKIP)
class TakenOverElsewhereTest(TakenOverTest):
    """Each coordinator has another address, which the nodes find in etcd; the journal is there, too. One in five runs where
    its successor cannot see what has become of it, as on another machine: then the end of its lease is waited for."""

    def setUp(self):
        super().setUp()
        self.etcd = EtcdServer(self.dir, self.env)
        self.etcd.start()
        self.journal = f"etcd://127.0.0.1:{self.etcd.port}/journals"
        self.rendezvous = ["--nnodes=2", "--rdzv-backend=etcd", f"--rdzv-endpoint=127.0.0.1:{self.etcd.port}", "--rdzv-id=kept"]
        self.numbers = itertools.count()

    def tearDown(self):
        self.etcd.stop()
        super().tearDown()

    def start_coordinator(self):
        number = next(self.numbers)
        words = ["--coordinator", *self.rendezvous, f"--journal={self.journal}", f"--local-addr=127.0.1.{number % 200 + 1}"]
        if number % 5 == 4 and number < KILLS:
            return self.start("--pid", "--fork", "--kill-child", BIN / "fsdprun", *words, binary=shutil.which("unshare"))
        return self.start(*words, binary=BIN / "fsdprun")

    def kept(self):
        return self.etcd.entry("/journals/kept/record")["mod_revision"]

    def wait_until_kept_anew(self, before):
        wait_until(lambda: self.kept() != before, "the coordinator")


if __name__ == "__main__":
    main()
