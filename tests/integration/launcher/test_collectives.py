"""Unmodified PyTorch programs: gloo over env://, on one node and on two."""


from job_case import JobCase, free_port
from unittest_main import main

ALL_REDUCE = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    assert dist.is_torchelastic_launched()
    one_hot = torch.zeros(WORLD)
    one_hot[RANK] = 1
    dist.all_reduce(one_hot)
    assert one_hot.tolist() == [1.0] * WORLD, one_hot
    dist.barrier()
    note("sum", int(one_hot.sum()))
    if os.environ.get("FAIL_ONCE") and RESTART == 0 and RANK == WORLD - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()
"""


class CollectivesTest(JobCase):
    def test_standalone_four_workers(self):
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=4", self.script(ALL_REDUCE))
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.notes("sum"), {(1, r): "4" for r in range(4)})

    def test_a_restarted_job_meets_again(self):
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=1", self.script(ALL_REDUCE),
                                  env={"FAIL_ONCE": "1"})
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.notes("sum"), {(g, r): "2" for g in (1, 2) for r in range(2)})

    def two_nodes(self, *args, per_node):
        script = self.script(ALL_REDUCE)
        nodes = [self.start("--nnodes=2", "--nproc-per-node=1", *args, *extra, script) for extra in per_node]
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
        self.assertEqual(self.notes("sum"), {(1, r): "2" for r in range(2)})

    def test_two_nodes_c10d(self):
        self.two_nodes("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=pair",
                       per_node=[[], []])

    def test_two_nodes_static(self):
        self.two_nodes(f"--master-port={free_port()}", per_node=[["--node-rank=1"], ["--node-rank=0"]])


if __name__ == "__main__":
    main()
