"""Checkpoints to and from the layouts of torchtitan and of accelerate: what is computed from them is the same."""

import json
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckpt_case import CkptCase
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from unittest_main import main

SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64}
GROUP = {"lr": 1e-4, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.2}


def read_all(path):
    """All tensors of a checkpoint, by key."""
    metadata = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    state = {key: torch.zeros(item.size, dtype=item.properties.dtype) for key, item in metadata.items()
             if hasattr(item, "size")}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    return state


def trained(model):
    """The model after a step of AdamW, and the optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=GROUP["lr"], betas=tuple(GROUP["betas"]), eps=GROUP["eps"],
                                  weight_decay=GROUP["weight_decay"])
    model(torch.arange(40).view(2, 20)).logits.square().mean().backward()
    optimizer.step()
    return model, optimizer


class LayoutCase(CkptCase):
    def make(self, model):
        """A checkpoint with fsdp-train's keys, and the model's config.json."""
        model, optimizer = trained(model)
        names = {parameter: name for name, parameter in model.named_parameters()}
        state = {names[parameter]: values for parameter, values in optimizer.state.items()}
        group = GROUP | {"params": sorted(state)}
        checkpoint = self.save("checkpoint", {"model": dict(model.named_parameters()),
                                              "optim": {"state": state, "param_groups": [group]}})
        config = self.dir / "config.json"
        config.write_text(json.dumps(model.config.to_dict()))
        return model, checkpoint, config


def turned(x, interleaved):
    """Queries or keys [heads, positions, size] with a rotary embedding, each half or pair beside the other."""
    size = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[1]).double(), 10000.0 ** (-torch.arange(0, size, 2).double() / size))
    pairs = x.unflatten(-1, (size // 2, 2)) if interleaved else x.unflatten(-1, (2, size // 2)).transpose(-1, -2)
    return torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles))


def scores(x, query, key, interleaved):
    """What attention compares: products of turned queries and keys [heads, positions, positions]."""
    q = turned((x @ query.T).unflatten(-1, (4, -1)).transpose(0, 1), interleaved)
    k = turned((x @ key.T).unflatten(-1, (2, -1)).transpose(0, 1), interleaved).repeat_interleave(2, dim=0)
    return torch.einsum("hipc,hjpc->hij", q, k)


class TitanTest(LayoutCase):
    def test_what_torchtitan_does_not_have_is_refused(self):
        _, checkpoint, config = self.make(LlamaForCausalLM(LlamaConfig(**SMALL, attention_bias=True)))
        out = self.dir / "out"
        self.refuse([checkpoint, "--config FILE"], "convert", checkpoint, out, "--map", "torchtitan")
        self.refuse(["k_proj.bias", "torchtitan's llama"], "convert", checkpoint, out, "--map=torchtitan", "--config", config)
        plain = self.save_model("plain", LlamaForCausalLM(LlamaConfig(**SMALL)))
        for change, words in (({"model_type": "mistral"}, ["model_type", "mistral"]),
                              ({"num_attention_heads": 0}, ["num_attention_heads"]),
                              ({"num_attention_heads": 5}, ["q_proj.weight", "5 heads"])):
            with self.subTest(change):
                other = self.dir / "other.json"
                other.write_text(json.dumps(json.loads(config.read_text()) | change))
                self.refuse(words, "convert", plain, out, "--map", "torchtitan", "--config", other)
        self.refuse(["tok_embeddings"], "convert", self.save("empty", {"train_state": {"step": torch.tensor(1)}}), out,
                    "--map", "from-torchtitan", "--config", config)
        self.assertFalse(out.exists())
        self.assertEqual(self.leftovers(), [])

    def test_llama_is_the_same_with_interleaved_rows(self):
        model, checkpoint, config = self.make(LlamaForCausalLM(LlamaConfig(**SMALL)))
        for layout, wq, head in (("torchtitan", "attention.qkv_linear.wq", "lm_head.weight"),
                                 ("torchtitan-0.2", "attention.wq", "output.weight")):
            with self.subTest(layout):
                out = self.dir / layout
                text, _ = self.ckpt("convert", checkpoint, out, "--map", layout, "--config", config)
                self.assertIn("optimizer's state stays behind", text)
                self.ckpt("verify", out)
                titan = read_all(out)
                self.assertEqual(len(titan), len(list(model.parameters())))
                self.assertTrue(torch.equal(titan[head], model.lm_head.weight))
                self.assertTrue(torch.equal(titan["layers.1.feed_forward.w3.weight"], model.model.layers[1].mlp.up_proj.weight))
                attention = model.model.layers[1].self_attn
                query, key = titan[f"layers.1.{wq}.weight"], titan[f"layers.1.{wq[:-1]}k.weight"]
                self.assertFalse(torch.equal(query, attention.q_proj.weight))
                x = torch.randn(7, 32).double()
                torch.testing.assert_close(
                    scores(x, query.double(), key.double(), interleaved=True),
                    scores(x, attention.q_proj.weight.double(), attention.k_proj.weight.double(), interleaved=False))

    def test_moments_come_back_with_their_weights(self):
        _, checkpoint, config = self.make(LlamaForCausalLM(LlamaConfig(**SMALL)))
        ours = read_all(checkpoint)
        self.ckpt("convert", checkpoint, self.dir / "titan", "--map", "torchtitan", "--config", config)
        titan = read_all(self.dir / "titan")
        # Moments have the rows of their weights: made by the same expression as torchtitan's own.
        state = dict(titan)
        for name, weight in titan.items():
            state |= {f"optimizer.state.{name}.exp_avg": weight * 2, f"optimizer.state.{name}.exp_avg_sq": weight * weight,
                      f"optimizer.state.{name}.step": torch.tensor(1.0)}
        state |= {"optimizer.param_groups.norm.weight.lr": 0.1, "train_state": {"step": torch.tensor(1)}, "dataloader": {"a": b"x"}}
        dcp.save(state, checkpoint_id=self.dir / "theirs", no_dist=True)
        self.ckpt("convert", self.dir / "theirs", self.dir / "back", "--map", "from-torchtitan", "--config", config)
        back = read_all(self.dir / "back")
        weights = {key: tensor for key, tensor in ours.items() if key.startswith("model.")}
        expected = dict(weights)
        for key, weight in weights.items():
            name = key.removeprefix("model.")
            expected |= {f"optim.state.{name}.exp_avg": weight * 2, f"optim.state.{name}.exp_avg_sq": weight * weight,
                         f"optim.state.{name}.step": torch.tensor(1.0)}
        self.assert_tensors_equal(back, expected)

    def test_a_tied_head_is_there_twice(self):
        model, checkpoint, config = self.make(Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8, tie_word_embeddings=True)))
        self.ckpt("convert", checkpoint, self.dir / "titan", "--map", "torchtitan", "--config", config)
        titan = read_all(self.dir / "titan")
        self.assertTrue(torch.equal(titan["lm_head.weight"], titan["tok_embeddings.weight"]))
        self.assertTrue(torch.equal(titan["layers.0.attention.qkv_linear.wq.weight"],
                                    model.model.layers[0].self_attn.q_proj.weight), "qwen3 has halves there, too")
        self.assertIn("layers.1.attention.k_norm.weight", titan)
        self.ckpt("convert", self.dir / "titan", self.dir / "back", "--map", "from-torchtitan", "--config", config)
        self.assert_tensors_equal(read_all(self.dir / "back"), {f"model.{name}": parameter.detach()
                                                                for name, parameter in model.named_parameters()})
        titan["lm_head.weight"][0, 0] += 1
        dcp.save(titan, checkpoint_id=self.dir / "untied", no_dist=True)
        self.refuse(["lm_head.weight", "tie_word_embeddings"], "convert", self.dir / "untied", self.dir / "out", "--map",
                    "from-torchtitan", "--config", config)

    def test_a_model_of_hugging_face(self):
        model = LlamaForCausalLM(LlamaConfig(**SMALL))
        model.save_pretrained(self.dir / "model")
        self.ckpt("convert", self.dir / "model", self.dir / "titan", "--map", "torchtitan")
        self.assertTrue(torch.equal(read_all(self.dir / "titan")["norm.weight"], model.model.norm.weight))


class AccelerateTest(LayoutCase):
    """accelerate itself writes and reads its folders, with FSDP2 on one CPU."""

    @classmethod
    def setUpClass(cls):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        from accelerate import PartialState
        PartialState(cpu=True)  # which accelerate's log messages look for

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def sharded(self, seed):
        """A trained model under FSDP2, its optimizer, and what accelerate's functions want to know."""
        from types import SimpleNamespace

        from accelerate.utils import FullyShardedDataParallelPlugin
        from torch.distributed.fsdp import fully_shard
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**SMALL))
        mesh = dist.init_device_mesh("cpu", (1,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model, optimizer = trained(model)
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
        accelerator = SimpleNamespace(num_processes=1, process_index=0, is_main_process=True, wait_for_everyone=lambda: None)
        return plugin, accelerator, model, optimizer

    def values(self, model, optimizer):
        """Weights and moments by fsdp-train's keys."""
        state = {}
        for name, parameter in model.named_parameters():
            state[f"model.{name}"] = parameter.full_tensor().detach().clone()
            for leaf, value in optimizer.state[parameter].items():
                state[f"optim.state.{name}.{leaf}"] = (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        return state

    def test_there_and_back(self):
        from accelerate.utils import fsdp_utils
        plugin, accelerator, model, optimizer = self.sharded(1)
        expected = self.values(model, optimizer)
        theirs = self.dir / "theirs"
        fsdp_utils.save_fsdp_model(plugin, accelerator, model, theirs)
        fsdp_utils.save_fsdp_optimizer(plugin, accelerator, optimizer, model, theirs)
        self.ckpt("convert", theirs, self.dir / "ours", "--map", "from-accelerate")
        self.assert_tensors_equal(read_all(self.dir / "ours"), expected)

        out = self.dir / "out"
        self.ckpt("convert", self.dir / "ours", out, "--map", "accelerate")
        self.assertEqual(sorted(path.name for path in out.iterdir()), ["optimizer_0", "pytorch_model_fsdp_0"])
        plugin, accelerator, model, optimizer = self.sharded(2)
        optimizer.param_groups[0]["lr"] = 3.0
        fsdp_utils.load_fsdp_model(plugin, accelerator, model, out)
        fsdp_utils.load_fsdp_optimizer(plugin, accelerator, optimizer, model, out)
        self.assert_tensors_equal(self.values(model, optimizer), expected)
        self.assertEqual(optimizer.param_groups[0]["lr"], GROUP["lr"])
        self.assertEqual(list(optimizer.param_groups[0]["betas"]), GROUP["betas"])

    def test_nothing_old_is_overwritten_unless_asked_for(self):
        _, checkpoint, _ = self.make(LlamaForCausalLM(LlamaConfig(**SMALL)))
        out = self.dir / "out"
        self.ckpt("convert", checkpoint, out, "--map", "accelerate")
        before = (out / "optimizer_0" / ".metadata").read_bytes()
        weights = self.save("weights", {"model": {"a": torch.ones(2)}})
        self.refuse([out, "--force"], "convert", weights, out, "--map", "accelerate")
        self.assertEqual((out / "optimizer_0" / ".metadata").read_bytes(), before)
        (out / "notes.txt").write_text("mine")
        self.ckpt("convert", weights, out, "--map", "accelerate", "--force")
        self.assertEqual(list(read_all(out / "pytorch_model_fsdp_0")), ["model.a"])
        self.assertEqual((out / "notes.txt").read_text(), "mine")
        self.assertEqual(self.leftovers(), [])

    def test_folders_that_are_none(self):
        empty = self.dir / "empty"
        empty.mkdir()
        self.refuse([empty, "pytorch_model_fsdp_0"], "convert", empty, self.dir / "out", "--map", "from-accelerate")
        (empty / "pytorch_model_fsdp_0").mkdir()
        self.refuse([empty], "convert", empty, self.dir / "out", "--map", "from-accelerate")
        other = self.save("other", {"x": torch.ones(1)})
        self.refuse([other, "model."], "convert", other, self.dir / "out", "--map", "accelerate")
        self.assertFalse((self.dir / "out").exists())


if __name__ == "__main__":
    main()
