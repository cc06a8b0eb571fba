"""The defaults of the installed torchrun, asked of torchrun itself, are fsdprun's."""

import inspect

from torch.distributed.elastic.multiprocessing.api import PContext
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import get_args_parser

from job_case import JobCase
from unittest_main import main

# Of options without a default that do not take any text.
ONLY_VALUE = {"logs_specs": "default", "numa_binding": "node", "local_addr": "some.name"}  # No name of a host has a blank.
TWO_NODES = ["--nnodes=2"]  # Where the rendezvous can be seen.


class TorchrunDefaultsTest(JobCase):
    @classmethod
    def setUpClass(cls):
        # Options only: what is positional is the program. An option without a value has nargs 0.
        cls.options = [a for a in get_args_parser()._actions if a.option_strings and a.dest != "help"]
        cls.default = {option.dest: option.default for option in cls.options}
        cls.answers = []

    def dry_run(self, *args, env=None):
        return self.run_job("--dry-run", *args, "train.py", env=env)

    def plan(self, *args, env=None):
        rc, out, err = self.dry_run(*args, env=env)
        self.assertEqual((rc, err), (0, ""), args)
        return dict(line.split(": ", 1) for line in out.splitlines())

    def tries(self):
        """(option, spelling, how fsdprun takes it) of all that torchrun offers. Options that take a value are given their
        default, or some text if they have none."""
        if self.answers:
            return self.answers
        for option in self.options:
            for spelling in option.option_strings:
                some = ONLY_VALUE.get(option.dest, "some text") if option.default is None else option.default
                value = [] if option.nargs == 0 else [some]
                rc, _, err = self.dry_run(spelling, *value)
                self.answers.append((option, spelling, (rc, err)))
        return self.answers

    def test_the_plan_without_options_has_torchruns_values(self):
        default, plan = self.default, self.plan()
        lowest, _, highest = default["nnodes"].partition(":")
        self.assertEqual(lowest, highest)
        grace_s = inspect.signature(PContext.close).parameters["timeout"].default
        self.assertFalse(default["standalone"] or default["module"] or default["no_python"])
        self.assertIsNone(default["log_dir"])
        self.assertEqual(plan, {
            "nodes": lowest, "workers_per_node": default["nproc_per_node"], "role": default["role"],
            "coordinator": "in this process", "run_id": default["rdzv_id"], "rendezvous": default["rdzv_backend"],
            # Static rendezvous has one time-out only.
            "join_timeout_s": str(LaunchConfig(1, 1, 1).rdzv_configs["timeout"]),
            "last_call_timeout_s": f"{RendezvousTimeout().last_call.total_seconds():g}",
            "master_addr": default["master_addr"], "max_restarts": str(default["max_restarts"]),
            "shutdown_timeout_s": str(grace_s), "abort_timeout_s": "2", "log_dir": "temporary, removed after success",
            "signals": default["signals_to_handle"], "program_kind": "python script", "program": "train.py",
        })
        self.assertEqual(self.plan("--rdzv-backend=c10d")["join_timeout_s"], f"{RendezvousTimeout().join.total_seconds():g}")
        two_nodes = self.plan(*TWO_NODES)
        self.assertEqual(two_nodes["coordinator"], f"{default['master_addr']}:{default['master_port']}")
        self.assertEqual(two_nodes["node_rank"], str(default["node_rank"]))

    def test_every_option_of_torchrun_is_known(self):
        for _, spelling, answer in self.tries():
            with self.subTest(spelling):
                self.assertEqual(answer, (0, ""))

    def test_giving_a_default_is_giving_nothing(self):
        without = {True: self.plan(), False: self.plan(*TWO_NODES)}
        compared = set()
        for option, spelling, _ in self.tries():
            if option.default is None or not spelling.startswith("--"):
                continue
            is_nodes = option.dest == "nnodes"
            base = [] if is_nodes else TWO_NODES
            with self.subTest(spelling):
                # The default of an option without a value can only be given by the environment; that of a list is written
                # as its elements.
                default = ",".join(option.default) if isinstance(option.default, list) else option.default
                twin = {f"PET_{option.dest.upper()}": str(int(default) if option.nargs == 0 else default)}
                self.assertEqual(self.plan(*base, env=twin), without[is_nodes])
                if option.nargs != 0:
                    self.assertEqual(self.plan(*base, f"{spelling}={default}"), without[is_nodes])
                compared.add(option.dest)
        self.assertLessEqual({"nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "standalone",
                              "max_restarts", "monitor_interval", "role", "module", "no_python", "node_rank", "master_addr",
                              "master_port"}, compared)


if __name__ == "__main__":
    main()
