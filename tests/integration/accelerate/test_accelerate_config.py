#!/usr/bin/env python3
"""fsdprun --accelerate-config gives workers what accelerate's launcher would; wrong files are errors with a line."""

import json
import os
import pathlib
import sys
import unittest.mock

from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env
from accelerate_case import CPU, FSDP2, PRINT_VARIABLES, AccelerateCase
from daemon_case import DaemonCase
from job_case import BIN, free_port
from unittest_main import main

CONFIGS = {
    "fsdp 2": FSDP2,
    "fsdp 1, all keys": {
        "distributed_type": "FSDP", "num_processes": 2, "debug": True, "enable_cpu_affinity": True, "gpu_ids": "0,1",
        "fsdp_config": {
            "fsdp_version": 1, "fsdp_sharding_strategy": "SHARD_GRAD_OP", "fsdp_offload_params": True,
            "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 2000, "fsdp_forward_prefetch": True,
            "fsdp_backward_prefetch": "BACKWARD_PRE", "fsdp_state_dict_type": "FULL_STATE_DICT", "fsdp_use_orig_params": False,
            "fsdp_cpu_ram_efficient_loading": False, "fsdp_sync_module_states": False, "fsdp_ignored_modules": "head.*"}},
    "fsdp, no keys": {"distributed_type": "FSDP", "num_processes": 1, "mixed_precision": "fp16", "use_cpu": True},
    "keys without prefix": {"distributed_type": "FSDP", "num_processes": 1, "fsdp_config": {
        "reshard_after_forward": "HYBRID_SHARD", "activation_checkpointing": True}},
    "parallelism": {"distributed_type": "FSDP", "num_processes": 1, "fsdp_config": {"fsdp_version": 2}, "parallelism_config": {
        "parallelism_config_dp_replicate_size": 2, "parallelism_config_cp_size": 2, "parallelism_config_sp_size": 2}},
    "gpus": {"distributed_type": "MULTI_GPU", "num_processes": 2, "dynamo_config": {
        "dynamo_backend": "INDUCTOR", "dynamo_mode": "max-autotune", "dynamo_use_dynamic": True}},
    "cpu": CPU,
    "one process": {"distributed_type": "NO", "num_processes": 1, "dynamo_backend": "EAGER"},
}
# What a launcher says of the workers' places, and what accelerate's own process has from its start.
OF_LAUNCHER = {"MASTER_ADDR", "MASTER_PORT"}
RANKS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT",
         "TORCHELASTIC_RUN_ID"}
ACCELERATE = pathlib.Path(sys.prefix) / "bin/accelerate"
PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_", "KMP_", "OMP_", "CUDA_")


def by_accelerate(config, environment):
    """The variables that `accelerate launch --config_file` adds or changes, and its arguments for torchrun."""
    with unittest.mock.patch.dict(os.environ, environment, clear=True):
        args, _, _ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", str(config), "script.py"]))
        if args.use_fsdp or args.multi_gpu:
            variables = prepare_multi_gpu_env(args)
        else:
            _, variables = prepare_simple_launcher_cmd_env(args)
    return {name: value for name, value in variables.items() if environment.get(name) != value and name not in OF_LAUNCHER}, args


class VariablesTest(AccelerateCase):
    maxDiff = None

    def test_they_are_accelerates(self):
        for name, config in CONFIGS.items():
            with self.subTest(name):
                file = self.write(config)
                expected, args = by_accelerate(file, self.env)
                code, _, err = self.run_job("--accelerate-config", file, "--no-python", *PRINT_VARIABLES)
                self.assertEqual(code, 0, err)
                self.assertEqual("warning" in err, config.get("enable_cpu_affinity", False), err)
                found = self.variables(config["num_processes"] - 1)
                if config["num_processes"] > 1:
                    expected.pop("KMP_AFFINITY", None)  # It is for processes that mpirun has bound.
                self.assertEqual({key: value for key, value in found.items()
                                  if key.startswith(PREFIXES) and self.env.get(key) != value}, expected)
                if name == "one process":
                    self.assertFalse(RANKS & found.keys())
                else:
                    self.assertEqual(found["WORLD_SIZE"], str(args.num_processes))

    def test_threads_that_are_given_stay(self):
        file = self.write(CPU)
        for words, variables, expected in (([], {"OMP_NUM_THREADS": "3"}, "3"), (["--omp-threads=2"], {}, "2")):
            code, _, _ = self.run_job("--accelerate-config", file, *words, "--no-python", *PRINT_VARIABLES, env=variables)
            self.assertEqual((code, self.variables()["OMP_NUM_THREADS"]), (0, expected))

    def test_two_machines(self):
        port = free_port()
        launchers = []
        for rank in range(2):
            file = self.write(FSDP2 | {"num_machines": 2, "machine_rank": rank, "main_process_ip": "127.0.0.1",
                                       "main_process_port": port}, f"{rank}.yaml")
            launchers.append(self.start("--accelerate-config", file, "--no-python", *PRINT_VARIABLES))
        for launcher in launchers:
            self.assertEqual(self.finish(launcher)[0], 0)
        for rank in range(2):
            found = self.variables(rank)
            _, args = by_accelerate(self.dir / f"{rank}.yaml", self.env | {"PET_NNODES": "1"})
            self.assertEqual((found["WORLD_SIZE"], found["GROUP_RANK"], found["LOCAL_WORLD_SIZE"]),
                             ("2", str(args.node_rank), args.nproc_per_node))
            self.assertEqual(f"{found['MASTER_ADDR']}:{found['MASTER_PORT']}", args.rdzv_endpoint)

    def test_what_the_command_line_says_counts(self):
        file = self.write(FSDP2)
        code, out, _ = self.run_job("--accelerate-config", file, "--nproc-per-node=1", "--dry-run", "--no-python", "true",
                                    env={"PET_NPROC_PER_NODE": "7", "PET_NNODES": "3"})
        self.assertEqual(code, 0)
        self.assertIn("workers_per_node: 1\n", out)
        self.assertRegex(out, r"nodes: 1\b")


class OtherNodesTest(AccelerateCase, DaemonCase):
    def on_a_daemon(self, config):
        """What its worker has, where no variable was to travel."""
        code, _, err = self.finish(self.start_job([self.port], "--forward-env=none", "--accelerate-config", self.write(config),
                                                  "--no-python", *PRINT_VARIABLES))
        self.assertEqual(code, 0, err)
        return self.variables(), err

    def test_variables_reach_a_daemon(self):
        self.port = self.start_daemon()
        found, err = self.on_a_daemon(CPU | {"gpu_ids": "0,1", "mixed_precision": "bf16"})
        self.assertEqual((found["ACCELERATE_MIXED_PRECISION"], found["WORLD_SIZE"], found["CUDA_VISIBLE_DEVICES"]), ("bf16", "2", ""))
        self.assertIn("gpu_ids: not sent", err)
        found, _ = self.on_a_daemon({"distributed_type": "NO"})
        self.assertEqual(found["ACCELERATE_MIXED_PRECISION"], "no")
        self.assertFalse(RANKS & found.keys())


class OneProcessTest(AccelerateCase):
    def test_the_model_is_what_accelerate_launch_makes_of_it(self):
        """Ranks in its environment would make DistributedDataParallel of it, whose keys begin with `module.`."""
        script = self.dir / "script.py"
        script.write_text("""
import os, pathlib, torch
from accelerate import Accelerator
accelerator = Accelerator()
model = accelerator.prepare(torch.nn.Linear(2, 2))
told = f"{accelerator.distributed_type} {accelerator.num_processes} {type(model).__name__} {sorted(model.state_dict())}"
(pathlib.Path(os.environ["D"]) / "told").write_text(told)
""")
        file = self.write({"distributed_type": "NO", "num_processes": 1, "use_cpu": True})
        told = []
        for binary, words in (("fsdprun", ["--accelerate-config", file]), (ACCELERATE, ["launch", "--config_file", file])):
            code, _, err = self.run_job(*words, script, binary=binary)
            self.assertEqual(code, 0, err)
            told.append((self.dir / "told").read_text())
        self.assertEqual(told, ["DistributedType.NO 1 Linear ['bias', 'weight']"] * 2)

    def test_fsdp_train_needs_no_ranks(self):
        """It is one process of a launcher, whose usage errors are not worth a restart."""
        file = self.write({"distributed_type": "NO", "num_processes": 1})
        code, _, err = self.run_job("--accelerate-config", file, "--no-python", BIN / "fsdp-train", "--nothing")
        self.assertEqual(code, 1)
        self.assertRegex(err, r"exitcode +: 78 ")


class WrongFileTest(AccelerateCase):
    def refuse(self, config, *words):
        file = self.write(config)
        code, out, err = self.run_job("--accelerate-config", file, "--no-python", "touch", self.dir / "started")
        self.assertEqual((code, out), (2, ""))
        self.assertEqual(err.count("\n"), 1, err)
        for word in words:
            self.assertIn(word.replace("FILE", str(file)), err)
        self.assertFalse((self.dir / "started").exists())

    def test_errors_name_line_key_and_what_is_allowed(self):
        self.refuse("distributed_type: FSDP\nnum_processes: 2\nmixed_precision: fp8\n",
                    "FILE:3: mixed_precision = 'fp8': expected one of no, fp16, bf16")
        self.refuse("distributed_type: FSDP\nnum_processes: x\n", "FILE:2: num_processes = 'x': expected a whole number")
        self.refuse("distributed_type: FSDP\n", "FILE: num_processes is missing")

    def test_hostile_files(self):
        bang = self.dir / "bang"
        self.refuse(f"a: !!python/object/apply:os.system ['touch {bang}']\n", "FILE:1: a tag")
        self.assertFalse(bang.exists())
        bomb = "a: &a [x]\n" + "".join(f"{b}: &{b} [{', '.join(f'*{a}' for _ in range(9))}]\n" for a, b in zip("abcdefgh", "bcdefghi"))
        self.refuse(bomb, "FILE:1: an anchor")
        self.refuse("debug: true\ndebug: false\n", "FILE:2: the key debug is there twice, first in line 1")
        self.refuse("a: " + "x" * (1 << 20), "FILE: larger than")
        self.refuse("[" * 100_000, "FILE:1: ")
        code, _, err = self.run_job("--accelerate-config", self.dir / "none.yaml", "true")
        self.assertEqual(code, 2)
        self.assertIn("none.yaml", err)

    def test_unknown_keys_are_warnings(self):
        file = self.write("distributed_type: 'NO'\nnum_proceses: 2\n")
        code, _, err = self.run_job("--accelerate-config", file, "--no-python", *PRINT_VARIABLES)
        self.assertEqual(code, 0)
        self.assertEqual(err, f"fsdprun: warning: {file}:2: num_proceses: this key is not known, and has no effect\n")


class NativeTest(AccelerateCase):
    """fsdp-train with the same files."""

    def print_config(self, config, *words):
        file = self.write(config)
        return self.run_job("--accelerate-config", file, "--set", "model.config=m", "--set", 'data.train=["t"]', *words,
                            "--print-config", binary="fsdp-train")

    def test_what_it_does_not_do_is_refused(self):
        for change, word in (({"mixed_precision": "fp16"}, "mixed_precision"),
                             ({"fsdp_config": {"fsdp_offload_params": True}}, "fsdp_offload_params")):
            code, out, err = self.print_config(FSDP2 | change)
            self.assertEqual((code, out, err.count("\n")), (78, "", 1))
            self.assertIn(word, err)

    def test_the_file_stands_behind_what_is_given(self):
        own = self.dir / "train.json"
        own.write_text(json.dumps({"precision": {"reduce": "float32"}}))
        code, out, err = self.print_config(FSDP2, "--config", own, "--set", "train.activation_checkpointing=false")
        self.assertEqual(code, 0, err)
        config = json.loads(out)
        self.assertEqual(config["precision"], {"param": "bfloat16", "reduce": "float32", "output": "float32"})
        self.assertFalse(config["train"]["activation_checkpointing"])
        self.assertEqual(config["parallel"]["strategy"], "full_shard")
        self.assertIn("has no meaning here: debug, downcast_bf16, fsdp_config.fsdp_auto_wrap_policy", err)
        self.assertIn("for the launcher (fsdprun --accelerate-config): ", err)


if __name__ == "__main__":
    main()
