#!/usr/bin/env python3
"""accelerate launch itself, and a script of its wheel under fsdprun with the same file."""

import importlib.util
import pathlib
import sys

from accelerate_case import CPU, FSDP2, PRINT_VARIABLES, AccelerateCase
from unittest_main import main

ACCELERATE = pathlib.Path(importlib.util.find_spec("accelerate").origin).parent / "test_utils/scripts"
PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_", "KMP_", "OMP_", "CUDA_")


class LaunchTest(AccelerateCase):
    def test_workers_are_told_the_same(self):
        for config in (FSDP2, FSDP2 | {"distributed_type": "MULTI_GPU", "main_process_port": 0}):
            with self.subTest(config["distributed_type"]):
                file = self.write(config)
                told = []
                for binary, words in ((pathlib.Path(sys.prefix) / "bin/accelerate", ["launch", "--config_file", file, "--no_python"]),
                                      ("fsdprun", ["--accelerate-config", file, "--no-python"])):
                    code, _, err = self.run_job(*words, *PRINT_VARIABLES, binary=binary)
                    self.assertEqual(code, 0, err)
                    told.append({name: value for name, value in self.variables(1).items() if name.startswith(PREFIXES)})
                self.assertEqual(told[0], told[1])

    def test_a_script_of_accelerate(self):
        self.env.update({"HF_HUB_OFFLINE": "1", "HOME": str(self.dir)})
        code, out, err = self.run_job("--accelerate-config", self.write(CPU), ACCELERATE / "test_ops.py")
        self.assertEqual(code, 0, out + err)

    def test_what_the_accelerator_makes_of_it(self):
        """Its plugin is the one that a script on GPUs has; on CPUs an Accelerator does without."""
        script = self.dir / "script.py"
        script.write_text("""
import json, os, pathlib
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
accelerator, plugin = Accelerator(), FullyShardedDataParallelPlugin()
told = [accelerator.mixed_precision, accelerator.num_processes, plugin.fsdp_version, plugin.reshard_after_forward,
        plugin.activation_checkpointing, plugin.transformer_cls_names_to_wrap, str(plugin.state_dict_type)]
(pathlib.Path(os.environ["D"]) / f"told.{accelerator.process_index}").write_text(json.dumps(told))
""")
        code, out, err = self.run_job("--accelerate-config", self.write(FSDP2), script, env={"ACCELERATE_USE_CPU": "true"})
        self.assertEqual(code, 0, out + err)
        self.assertEqual((self.dir / "told.1").read_text(),
                         '["bf16", 2, 2, true, true, ["LlamaDecoderLayer"], "StateDictType.SHARDED_STATE_DICT"]')


if __name__ == "__main__":
    main()
