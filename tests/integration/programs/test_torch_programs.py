#!/usr/bin/env python3
"""Programs that use nothing but PyTorch run unchanged, and train as under torchrun."""

from program_case import HERE, TORCHRUN, ProgramCase
from unittest_main import main


class TorchCase(ProgramCase):
    def assert_met(self, *methods, world):
        met = {path.name: path.read_text() for path in self.dir.glob("met.*")}
        self.assertEqual(met, {f"met.{restart}.{rank}": method for restart, method in enumerate(methods)
                               for rank in range(world)})


class QuickTest(TorchCase):
    """What every change must pass: one training, on two nodes, since each process imports PyTorch."""

    def test_ddp_trains_as_under_torchrun(self):
        ours = self.losses("train_ddp.py", nodes=2, ranks=1)
        self.assertEqual(ours, self.losses("train_ddp.py", launcher=TORCHRUN))
        self.assertLess(ours[-1], ours[0])


class MoreTest(TorchCase):
    """On one node and on two, with more workers."""

    def test_row_21_two_nodes_meet_by_env_and_after_a_restart_by_tcp(self):
        self.run_program(HERE / "meet.py", "env://,tcp", self.dir, nodes=2, restarts=1)
        self.assert_met("env://", "tcp", world=4)

    def test_a_checkpoint_of_two_ranks_on_two_nodes_is_loaded_by_one(self):
        saved = self.losses("train_fsdp2.py", self.dir / "checkpoint", "save", nodes=2, ranks=1)
        loaded = self.losses("train_fsdp2.py", self.dir / "checkpoint", "load", ranks=1)
        self.assertAlmostEqual(saved[-1], loaded[0], delta=1e-6)
        self.assertLess(saved[-1], saved[0])

    def test_rpc_between_roles_on_two_nodes(self):
        self.run_program(HERE / "call_others.py", self.dir, nodes=2, ranks=1, roles=("server", "trainer"))
        self.assertEqual((self.dir / "answers").read_text(), "server0 trainer0 server0 trainer0")

    def test_fsdp2_trains_as_under_torchrun(self):
        torchrun = self.losses("train_fsdp2.py", "-", "train", launcher=TORCHRUN)
        for nodes, ranks in ((1, 2), (2, 1)):
            self.assertEqual(self.losses("train_fsdp2.py", "-", "train", nodes=nodes, ranks=ranks), torchrun)

    def test_ddp_on_one_node_trains_as_on_two(self):
        self.assertEqual(self.losses("train_ddp.py", ranks=4), self.losses("train_ddp.py", nodes=2))

    def test_a_checkpoint_is_loaded_by_other_numbers_of_ranks(self):
        for nodes, ranks in ((1, 2), (2, 2)):
            checkpoint = self.dir / f"checkpoint.{nodes}"
            saved = self.losses("train_fsdp2.py", checkpoint, "save", nodes=nodes, ranks=ranks)
            for other_nodes, other_ranks in ((1, 3), (2, 1)):
                loaded = self.losses("train_fsdp2.py", checkpoint, "load", nodes=other_nodes, ranks=other_ranks)
                self.assertAlmostEqual(saved[-1], loaded[0], delta=1e-6)

    def test_row_21_one_node(self):
        self.run_program(HERE / "meet.py", "tcp,env://", self.dir, ranks=4, restarts=1)
        self.assert_met("tcp", "env://", world=4)

    def test_row_21_two_nodes_the_other_way_round_and_twice(self):
        self.run_program(HERE / "meet.py", "tcp,tcp,env://,env://", self.dir, nodes=2, restarts=3)
        self.assert_met("tcp", "tcp", "env://", "env://", world=4)

    def test_rpc_between_several_workers_of_each_role(self):
        for nodes, roles in ((1, ("worker",)), (2, ("server", "trainer")), (2, ("same", "same"))):
            self.run_program(HERE / "call_others.py", self.dir, nodes=nodes, ranks=2, roles=roles)
            count = {role: 2 * roles.count(role) for role in roles}
            names = [f"{role}{number}" for role in sorted(count) for number in range(count[role])]
            self.assertEqual((self.dir / "answers").read_text(), " ".join(names + names))


if __name__ == "__main__":
    main()
