"""A fine-tuning with transformers' Trainer, of a tiny random model on random tokens. Argument: where the first rank
writes the losses."""

import json
import os
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from leaving import leave


class Tokens(torch.utils.data.Dataset):
    def __init__(self):
        self.tokens = torch.randint(0, 64, (32, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main(output):
    set_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, per_device_train_batch_size=4, max_steps=4, logging_steps=1,
                                      save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True)
        assert arguments.world_size == int(os.environ["WORLD_SIZE"]), arguments.world_size
        assert arguments.local_process_index == int(os.environ["LOCAL_RANK"])
        trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
        trainer.train()
        if trainer.is_world_process_zero():
            with open(output, "w") as file:
                json.dump([entry["loss"] for entry in trainer.state.log_history if "loss" in entry], file)
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
