"""Configurations of accelerate, and what workers are told because of them."""

import yaml
from job_case import JobCase

# Whatever the worker is, it says its variables; one without ranks is the only one.
PRINT_VARIABLES = ["sh", "-c", 'f="$D/variables.${RANK:-0}" && env -0 > "$f.part" && mv "$f.part" "$f"']

FSDP2 = {"distributed_type": "FSDP", "num_processes": 2, "mixed_precision": "bf16", "fsdp_config": {
    "fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_offload_params": False,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
    "fsdp_cpu_ram_efficient_loading": True, "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_activation_checkpointing": True}}
CPU = {"distributed_type": "MULTI_CPU", "num_processes": 2, "use_cpu": True, "mixed_precision": "no"}


class AccelerateCase(JobCase):
    def setUp(self):
        super().setUp()
        for name in [name for name in self.env if name.startswith(("ACCELERATE_", "FSDP_", "KMP_", "SLURM_"))]:
            del self.env[name]
        self.env["CUDA_VISIBLE_DEVICES"] = ""

    def write(self, config, name="config.yaml"):
        """As `accelerate config` does."""
        path = self.dir / name
        path.write_text(config if isinstance(config, str) else yaml.safe_dump(
            {"compute_environment": "LOCAL_MACHINE", "debug": False, "downcast_bf16": "no", "machine_rank": 0,
             "main_training_function": "main", "num_machines": 1, "rdzv_backend": "static", "same_network": True,
             "use_cpu": False} | config))
        return path

    def variables(self, rank=0):
        """Of the worker that has ended."""
        words = (self.dir / f"variables.{rank}").read_text().split("\0")
        return dict(word.split("=", 1) for word in words if word)
