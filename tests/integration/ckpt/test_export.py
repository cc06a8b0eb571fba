"""Weights out to Hugging Face and .pt, and in again: transformers, torch and safetensors are the judges."""

import json
import os
import selectors
import shutil
import signal
import struct
import subprocess

import torch
import torch.distributed.checkpoint as dcp
from ckpt_case import FSDPCTL, CkptCase
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)
from unittest_main import main

SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 500000.0}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "llama tied": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)),
    "llama 3": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=LLAMA3)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=4)),
}
TOKENS = torch.arange(40).view(2, 20)


def logits(model):
    with torch.no_grad():
        return model.eval()(TOKENS).logits


class ExportTest(CkptCase):
    def make(self, kind="llama"):
        torch.manual_seed(1)
        model = MODELS[kind]()
        config = self.dir / "config.json"
        config.write_text(json.dumps(model.config.to_dict()))
        return model, self.save_model("checkpoint", model), config

    def test_every_family_gives_the_same_logits(self):
        for kind in MODELS:
            with self.subTest(kind):
                model, checkpoint, config = self.make(kind)
                out = self.dir / f"out {kind}"
                self.ckpt("export", checkpoint, out, "--config", config)
                loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
                self.assertTrue(torch.equal(logits(loaded), logits(model)))

    def shards(self, folder, state):
        """What HuggingFaceStorageWriter(save_distributed=True) writes at two ranks."""
        folder.mkdir(exist_ok=True)
        for rank in range(2):
            halves = {name: tensor.chunk(2)[rank].clone() for name, tensor in state.items()}
            info = {name: {"saved_offsets": [rank * (len(state[name]) // 2)] + [0] * (part.ndim - 1)}
                    for name, part in halves.items()}
            save_file(halves, folder / f"shard-{rank + 1:05}-model-00001-of-00001.safetensors",
                      {"DCP_SHARDING_INFO": json.dumps(info)})
        return folder

    def test_every_layout_gives_the_same_weights(self):
        model, checkpoint, config = self.make()
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        folder = self.dir / "folder"
        model.save_pretrained(folder)
        single = self.dir / "single.safetensors"
        save_file(state, single)
        sharded = self.shards(self.dir / "sharded", state)
        ours = self.dir / "ours"
        self.ckpt("import", folder, ours)
        optimizer = torch.optim.AdamW(model.parameters())
        model(TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
        app = self.save("app", {"app": {"model": model.state_dict(), "optim": optimizer.state_dict()}})
        for source, expected in ((checkpoint, state), (folder, state), (single, state), (sharded, state), (ours, state),
                                 (self.save("alone", state), state), (app, dict(model.state_dict()))):
            with self.subTest(source.name):
                out = self.dir / f"out-{source.name}"
                self.ckpt("export", source, out, "--config", config)
                self.assert_tensors_equal(load_file(out / "model.safetensors"), expected)
                self.ckpt("export", source, f"{out}.pt", "--format=pt")
                self.assert_tensors_equal(torch.load(f"{out}.pt"), expected)
                self.assertTrue(self.report("diff", source, out)["equal"])

    def test_shards_are_those_of_the_index(self):
        model, checkpoint, config = self.make()
        out = self.dir / "out"
        files = self.report("export", checkpoint, out, "--config", config, "--max-shard-size", "20KB")["files"]
        index = json.loads((out / "model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"].values()), {name for name in files if name.startswith("model-")})
        self.assertGreater(len(set(index["weight_map"].values())), 2)
        self.assertEqual(index["metadata"]["total_size"], sum(t.nbytes for t in model.state_dict().values()))
        self.assertTrue(torch.equal(logits(AutoModelForCausalLM.from_pretrained(out)), logits(model)))
        self.assertIn("bit-equal, and there is no other", self.ckpt("diff", checkpoint, out)[0])

    def test_casts_are_torchs(self):
        torch.manual_seed(2)
        bits = torch.randint(-2**31, 2**31 - 1, (1 << 16,), dtype=torch.int32)
        special = torch.tensor([0.0, -0.0, 1e-8, 65504, 65519.9, 65520, 6e-8, 2.9e-8, 3e-8, float("inf"), float("nan")])
        weights = {"a": bits.view(torch.float32), "b": special, "c": torch.randn(999, dtype=torch.float64),
                   "h": torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.float16), "i": torch.arange(7)}
        checkpoint = self.save("checkpoint", {"model": weights})
        for dtype in ("float32", "bfloat16", "float16"):
            with self.subTest(dtype):
                out = self.dir / f"{dtype}.pt"
                self.ckpt("export", checkpoint, out, "--format", "pt", "--dtype", dtype)
                got = torch.load(out, weights_only=True)
                for name, tensor in weights.items():
                    to = tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
                    self.assertEqual(got[name].dtype, to.dtype)
                    self.assertTrue(torch.equal(got[name].isnan(), to.isnan()), name)
                    self.assertTrue(torch.equal(got[name].nan_to_num(1), to.nan_to_num(1)), name)

    def test_a_pt_file_loads_without_executing_anything(self):
        model, checkpoint, _ = self.make()
        out = self.dir / "model.pt"
        self.ckpt("export", checkpoint, out, "--format=pt")
        self.assert_tensors_equal(torch.load(out, weights_only=True), model.state_dict())

    def test_both_spellings_of_the_rotary_embedding(self):
        _, checkpoint, config = self.make("llama 3")
        out = self.dir / "out"
        self.ckpt("export", checkpoint, out, "--config", config)
        written = json.loads((out / "config.json").read_text())
        self.assertEqual(written["rope_theta"], 500000.0)
        self.assertEqual(written["rope_parameters"], LLAMA3)
        self.assertEqual(written["rope_scaling"], {k: v for k, v in LLAMA3.items() if k != "rope_theta"})
        self.assertEqual(written["torch_dtype"], written["dtype"])

    def test_tied_weights_that_differ_are_refused(self):
        model, _, config = self.make("llama tied")
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state["lm_head.weight"][0, 0] += 1
        checkpoint = self.save("other", {"model": state})
        self.refuse(["lm_head.weight", "tie_word_embeddings"], "export", checkpoint, self.dir / "out", "--config", config)
        self.assertFalse((self.dir / "out").exists())

    def test_weights_of_another_model_are_refused(self):
        model, checkpoint, config = self.make()
        state = model.state_dict()
        layers = self.dir / "layers.json"
        layers.write_text(json.dumps(model.config.to_dict() | {"num_hidden_layers": 5, "layer_types": None}))
        vocabulary = self.dir / "vocabulary.json"
        vocabulary.write_text(json.dumps(model.config.to_dict() | {"vocab_size": 999}))
        headless = self.save("headless", {"model": {k: v for k, v in state.items() if k != "lm_head.weight"}})
        titan = self.save("titan", {k.replace("model.", "").replace("embed_tokens", "tok_embeddings"): v for k, v in state.items()})
        more = self.save("more", {"model": state | {"model.layers.2.mlp.up_proj.weight": torch.ones(2)}})
        for source, file, words in ((checkpoint, layers, ["model.layers.2.self_attn.q_proj.weight", "more"]),
                                    (checkpoint, vocabulary, ["model.model.embed_tokens.weight", "[96, 32]", "[999, 32]"]),
                                    (headless, config, ["it has no lm_head.weight"]),
                                    (titan, config, ["it has no model.embed_tokens.weight"]),
                                    (more, config, ["the model has no model.model.layers.2.mlp.up_proj.weight"])):
            with self.subTest(words):
                self.refuse([source, file, *words], "export", source, self.dir / "out", "--config", file)
                self.assertFalse((self.dir / "out").exists())

    def test_a_last_shard_that_is_missing(self):
        model, _, config = self.make()
        folder = self.dir / "sharded"
        self.shards(folder, model.state_dict())
        self.ckpt("export", folder, self.dir / "all", "--config", config)
        (folder / "shard-00002-model-00001-of-00001.safetensors").unlink()
        self.refuse(["model.embed_tokens.weight", "[48, 32]", "[96, 32]"], "export", folder, self.dir / "out", "--config", config)
        report = self.report("verify", folder)
        self.assertIsNone(report["intact"])
        self.assertIn("last rank", report["doubt"])
        self.assertNotIn("intact", self.ckpt("verify", folder)[0])
        shutil.copy(config, folder / "config.json")
        self.assertIn("[48, 32]", self.report("verify", folder, code=1)["damaged"][0]["problem"])
        self.shards(folder, model.state_dict())
        self.assertTrue(self.report("verify", folder)["intact"])

    def test_models_that_are_not_known_here_are_not_compared(self):
        _, checkpoint, config = self.make()
        written = json.loads(config.read_text())
        for change in ({"model_type": "other"}, {"architectures": ["LlamaForSequenceClassification"]}, {"hidden_act": "gelu"}):
            with self.subTest(change):
                config.write_text(json.dumps(written | change))
                out = self.dir / f"out-{next(iter(change))}"
                report = self.report("export", checkpoint, out, "--config", config)
                self.assertIn(f"{config}: {next(iter(change))}", report["warning"])
                self.assertEqual(report["tensors"], 21)

    def test_names_without_a_prefix_and_buffers(self):
        model, _, config = self.make("gpt2")
        state = model.transformer.state_dict() | {"h.0.attn.bias": torch.ones(1, 1, 8, 8), "h.1.attn.masked_bias": torch.ones(1)}
        folder = self.dir / "folder"
        folder.mkdir()
        save_file(state, folder / "model.safetensors")
        shutil.copy(config, folder)
        expected = {f"transformer.{name}": tensor for name, tensor in model.transformer.state_dict().items()}
        self.ckpt("export", folder, self.dir / "out")
        self.assert_tensors_equal(load_file(self.dir / "out" / "model.safetensors"), expected)
        self.ckpt("import", folder, self.dir / "imported")
        self.assertEqual([tensor["key"] for tensor in self.report("inspect", self.dir / "imported")["tensors"]],
                         sorted(f"model.{name}" for name in expected))

    def test_a_checkpoint_leads_to_an_absolute_folder_alone(self):
        model, _, config = self.make()
        tokenizer = self.dir / "tokenizer"
        tokenizer.mkdir()
        (tokenizer / "tokenizer.json").write_text("{}")
        (tokenizer / "generation_config.json").write_text('{"eos_token_id": [1, 2], "temperature": 0.6}')
        os.chdir(self.dir)
        self.addCleanup(os.chdir, "/")
        for path in ("tokenizer", tokenizer, tokenizer / "config.json"):
            with self.subTest(path):
                config_in = {"model_config": model.config.to_dict(), "config": {"model": {"config": str(path)}}}
                checkpoint = self.save("own", {"model": model.state_dict(), "train": {"state": config_in}})
                report = self.report("export", checkpoint, self.dir / "out")
                generation = json.loads((self.dir / "out" / "generation_config.json").read_text())
                if path == "tokenizer":
                    self.assertIsNone(report["tokenizer_dir"])
                    self.assertIn("the checkpoint names tokenizer, seen from where its job ran", report["warning"])
                    self.assertNotIn("tokenizer.json", report["files"])
                else:
                    self.assertEqual(report["tokenizer_dir"], str(tokenizer))
                    self.assertIn("tokenizer.json", report["files"])
                    self.assertEqual(generation["eos_token_id"], [1, 2])
                shutil.rmtree(self.dir / "out")
                shutil.rmtree(checkpoint)

    def test_a_tokenizer_is_carried_along(self):
        _, checkpoint, config = self.make()
        tokenizer = self.dir / "tokenizer"
        tokenizer.mkdir()
        self.refuse([tokenizer, "--tokenizer-dir"], "export", checkpoint, self.dir / "out", "--config", config,
                    "--tokenizer-dir", tokenizer)
        self.assertFalse((self.dir / "out").exists())
        (tokenizer / "tokenizer.json").write_text("{}")
        (tokenizer / "notes.txt").write_text("mine")
        out, _ = self.ckpt("export", checkpoint, self.dir / "out", "--config", config, "--tokenizer-dir", tokenizer)
        self.assertTrue((self.dir / "out" / "tokenizer.json").exists())
        self.assertFalse((self.dir / "out" / "notes.txt").exists())
        self.assertNotIn("no files of a tokenizer", out)

    def test_nothing_old_is_overwritten_unless_asked_for(self):
        _, checkpoint, config = self.make()
        out = self.dir / "out"
        out.mkdir()
        (out / "model.safetensors").write_bytes(b"old")
        (out / "notes.txt").write_text("mine")
        self.refuse([out, "--force"], "export", checkpoint, out, "--config", config)
        self.assertEqual((out / "model.safetensors").read_bytes(), b"old")
        self.ckpt("export", checkpoint, out, "--config", config, "--force", "--max-shard-size=20KB")
        self.assertEqual((out / "notes.txt").read_text(), "mine")
        self.assertFalse((out / "model.safetensors").exists(), "transformers would prefer it to the index")
        self.ckpt("export", checkpoint, out, "--config", config, "--force")
        self.assertEqual([path.name for path in out.glob("model*")], ["model.safetensors"])
        file = self.dir / "model.pt"
        file.write_bytes(b"old")
        self.refuse([file, "--force"], "export", checkpoint, file, "--format=pt")
        self.assertEqual(file.read_bytes(), b"old")
        self.assertEqual(self.leftovers(), [])

    def test_the_old_output_stays_if_the_new_one_cannot_take_its_place(self):
        _, checkpoint, config = self.make()
        out = self.dir / "out"
        (out / "generation_config.json").mkdir(parents=True)
        (out / "model.safetensors").write_bytes(b"old")
        self.refuse([out / "generation_config.json", "folder"], "export", checkpoint, out, "--config", config, "--force")
        self.assertEqual((out / "model.safetensors").read_bytes(), b"old")
        self.assertEqual([path.name for path in self.dir.iterdir() if path.name.startswith("out")], ["out"])

    def test_an_interrupted_one_leaves_nothing(self):
        source = self.dir / "model.safetensors"
        size = 1 << 30
        header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with source.open("wb") as file:  # without blocks
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)
        out = self.dir / "out.pt"
        for stop in (signal.SIGINT, signal.SIGTERM):
            begun = subprocess.Popen([FSDPCTL, "ckpt", "export", source, out, "--format=pt"], stderr=subprocess.PIPE, text=True,
                                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
            with selectors.DefaultSelector() as ends:
                ends.register(begun.stderr, selectors.EVENT_READ)
                while not self.leftovers() and not ends.select(0.002):
                    pass
            begun.send_signal(stop)
            _, err = begun.communicate(timeout=60)
            self.assertEqual(begun.returncode, -stop, err)
            self.assertIn("interrupted", err)
            self.assertEqual([path.name for path in self.dir.iterdir()], [source.name])

    def test_more_files_than_may_be_open_at_first(self):
        parts = {f"t{i}": torch.full((1,), float(i)) for i in range(60)}
        folder = self.dir / "model"
        folder.mkdir()
        for name, tensor in parts.items():
            save_file({name: tensor}, folder / f"{name}.safetensors")
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {name: f"{name}.safetensors" for name in parts}}))
        done = subprocess.run(["sh", "-c", 'ulimit -Sn 40; exec "$@"', "sh", FSDPCTL, "ckpt", "export", folder, self.dir / "out.pt",
                               "--format=pt"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_tensors_equal(torch.load(self.dir / "out.pt"), parts)

    def test_without_a_configuration(self):
        _, checkpoint, _ = self.make()
        self.refuse([checkpoint, "--config FILE"], "export", checkpoint, self.dir / "out")


class ImportTest(CkptCase):
    def test_python_reads_it_and_it_exports_to_the_same(self):
        torch.manual_seed(3)
        model = LlamaForCausalLM(LlamaConfig(**SMALL))
        source = self.dir / "source"
        model.save_pretrained(source, max_shard_size="20KB")
        imported = self.dir / "imported"
        self.ckpt("import", source, imported)
        state = {"model": {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}}
        dcp.load(state, checkpoint_id=imported, no_dist=True)
        self.assert_tensors_equal(state["model"], model.state_dict())
        self.ckpt("verify", imported)
        self.ckpt("export", imported, self.dir / "again")
        self.assert_tensors_equal(load_file(self.dir / "again" / "model.safetensors"), load_all(source))
        self.assertTrue(torch.equal(logits(AutoModelForCausalLM.from_pretrained(self.dir / "again")), logits(model)))

    def test_all_of_the_model_comes_along(self):
        torch.manual_seed(6)
        model = LlamaForCausalLM(LlamaConfig(**SMALL))
        model.generation_config.eos_token_id = [1, 2]
        source = self.dir / "source"
        model.save_pretrained(source)
        (source / "tokenizer.json").write_text("{}")
        for operand in (source, source / "model.safetensors"):
            with self.subTest(operand.name):
                imported = self.dir / f"imported-{operand.name}"
                os.chdir(self.dir)
                self.addCleanup(os.chdir, "/")
                self.ckpt("import", operand.relative_to(self.dir), imported)
                os.chdir("/")
                self.assertEqual(self.report("inspect", imported)["train_state"]["model_folder"], str(source))
                out = self.dir / f"out-{operand.name}"
                report = self.report("export", imported, out)
                self.assertEqual(report["tokenizer_dir"], str(source))
                self.assertTrue((out / "tokenizer.json").exists())
                self.assertEqual(json.loads((out / "generation_config.json").read_text()),
                                 json.loads((source / "generation_config.json").read_text()))
                self.assert_tensors_equal(load_file(out / "model.safetensors"), load_all(source))

    def test_another_models_configuration(self):
        source = self.dir / "source"
        LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(source)
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
        self.refuse(["the model has no model.layers.1.", "config.json"], "import", source, self.dir / "out")
        (source / "config.json").unlink()
        self.assertIn("no config.json", self.report("import", source, self.dir / "out")["note"])

    def test_every_dtype_and_shape(self):
        from safetensors.torch import save_file
        weights = {f"t{i}": torch.arange(6).to(dtype).view(2, 3) for i, dtype in enumerate(
            (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
             torch.uint8, torch.bool))}
        weights |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "large": torch.randn(40, 1 << 19)}
        source = self.dir / "model.safetensors"
        save_file(weights, source)
        self.ckpt("import", source, self.dir / "out")
        state = {"model": {name: torch.zeros_like(tensor) for name, tensor in weights.items()}}
        dcp.load(state, checkpoint_id=self.dir / "out", no_dist=True)
        self.assert_tensors_equal(state["model"], weights)

    def test_nothing_old_is_overwritten_unless_asked_for(self):
        old = self.save("old", {"model": {"a": torch.ones(3)}})
        source = self.dir / "source"
        LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(source)
        self.refuse([old, "--force"], "import", source, old)
        self.assertEqual([t["key"] for t in self.report("inspect", old)["tensors"]], ["model.a"])
        self.ckpt("import", source, old, "--force")
        self.ckpt("verify", old)
        self.assertGreater(len(self.report("inspect", old)["tensors"]), 10)
        self.assertEqual(self.leftovers(), [])


class ConvertTest(CkptCase):
    def test_keys_are_renamed_and_objects_kept(self):
        state = {"model": {"a.weight": torch.randn(3, 4), "b.weight": torch.randn(2)}, "step": 7, "other": {"x": torch.ones(1)}}
        checkpoint = self.save("checkpoint", state)
        rules = self.dir / "map.json"
        rules.write_text(json.dumps({"model.a.*": "layers.0.*", "model.*": "*", "other.*": None}))
        self.ckpt("convert", checkpoint, self.dir / "out", "--map", rules)
        target = {"layers.0.weight": torch.zeros(3, 4), "b.weight": torch.zeros(2), "step": 0}
        dcp.load(target, checkpoint_id=self.dir / "out", no_dist=True)
        self.assertTrue(torch.equal(target["layers.0.weight"], state["model"]["a.weight"]))
        self.assertTrue(torch.equal(target["b.weight"], state["model"]["b.weight"]))
        self.assertEqual(target["step"], 7)
        self.assertEqual(len(self.report("inspect", self.dir / "out")["tensors"]), 2)

    def test_damaged_objects_are_not_copied(self):
        rules = self.dir / "map.json"
        rules.write_text("{}")
        source = self.dir / "source"
        LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(source)
        ours = self.dir / "ours"
        self.ckpt("import", source, ours)
        pythons = self.save("pythons", {"model": {"a": torch.ones(2)}, "train": {"state": {"model_config": "llama" * 20}}})
        for checkpoint in (ours, pythons):
            with self.subTest(checkpoint.name):
                self.damage(checkpoint / "__0_0.distcp", b"llama")
                words = ["train.state", checkpoint / "__0_0.distcp"]
                self.refuse(words, "convert", checkpoint, self.dir / "out", "--map", rules)
                self.refuse(words, "export", checkpoint, self.dir / "out")
                self.assertFalse((self.dir / "out").exists())
                report = self.report("inspect", checkpoint)
                self.assertIn("train.state", report["problem"])
                self.assertNotIn("train_state", report)
        self.assertEqual(self.leftovers(), [])

    def test_places_in_the_nested_state_dict_stay(self):
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2))
        optimizer = torch.optim.AdamW([{"params": model[0].weight, "lr": 0.5}, {"params": model[0].bias}])
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        nested = get_optimizer_state_dict(model, optimizer)
        flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
        for name, optim in (("nested", nested), ("flat", flat)):
            checkpoint = self.save(name, {"model": model.state_dict(), "optim": optim})
            for rules, top in (({}, "optim"), ({"optim.*": "optimizer.*"}, "optimizer")):
                with self.subTest(f"{name} {top}"):
                    out = self.dir / f"{name}-{top}"
                    file = self.dir / "map.json"
                    file.write_text(json.dumps(rules))
                    self.ckpt("convert", checkpoint, out, "--map", file)
                    dcp_to_torch_save(out, self.dir / "out.pt")
                    got = torch.load(self.dir / "out.pt")
                    self.assertEqual(sorted(got), sorted(["model", top]))
                    self.assert_same(got["model"], dict(model.state_dict()))
                    self.assert_same(got[top], optim)

    def test_torchtitans_layout(self):
        checkpoint = self.save("checkpoint", {"model": {"model.norm.weight": torch.ones(3), "lm_head.weight": torch.ones(2)}})
        rules = self.dir / "map.json"
        rules.write_text(json.dumps({"model.lm_head.*": "output.*", "model.model.*": "*"}))
        self.ckpt("convert", checkpoint, self.dir / "out", "--map", rules)
        dcp_to_torch_save(self.dir / "out", self.dir / "out.pt")
        self.assertEqual(sorted(torch.load(self.dir / "out.pt")), ["norm.weight", "output.weight"])

    def assert_same(self, got, expected):
        if isinstance(expected, torch.Tensor):
            self.assertTrue(torch.equal(got, expected))
        elif isinstance(expected, dict):
            self.assertEqual(set(got), set(expected))
            for key in expected:
                self.assert_same(got[key], expected[key])
        elif isinstance(expected, (list, tuple)):
            self.assertEqual((type(got), len(got)), (type(expected), len(expected)))
            for one, other in zip(got, expected):
                self.assert_same(one, other)
        else:
            self.assertEqual(got, expected)

    def test_bad_maps(self):
        checkpoint = self.save("checkpoint", {"model": {"a": torch.ones(2), "b": torch.ones(2)}})
        rules = self.dir / "map.json"
        for text, words in (('{"a": 1}', ["map.json", "a"]), ('{"a**": "b"}', ["one *"]), ('{"a": "x*"}', ["one *"]),
                            ("[]", ["map.json"]), ('{"a": "b", "a": "c"}', ["map.json"]), ('{"model.*": "same"}', ["same", "taken"])):
            with self.subTest(text):
                rules.write_text(text)
                self.refuse(words, "convert", checkpoint, self.dir / "out", "--map", rules)
                self.assertFalse((self.dir / "out").exists())
        self.assertEqual(self.leftovers(), [])


def load_all(folder):
    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    return tensors


if __name__ == "__main__":
    main()
