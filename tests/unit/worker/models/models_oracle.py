"""What Hugging Face's transformers (from PyPI) makes of a set of models: the oracle of models_oracle_test.cc.

`models_oracle.py DIR` writes DIR/models/<case> and DIR/fields/<case>, each with config.json, the weights in safetensors
and, where transformers accepts the configuration, expected.safetensors: tokens, targets, logits, loss and the gradient
of every parameter, in float32 on one thread. Nothing is downloaded: the weights are random.

models  Whole models as save_pretrained writes them; ours must agree.
fields  One key of config.json each, changed from the family's base. expectation.json says what ours must do: "honour" (the key
        changes transformers' results, ours must be the same), "ignore" (it does not, ours must be the same) or "refuse".
"""

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel  # noqa: E402
from transformers.integrations import sdpa_attention  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "parity"))
import llama_reference  # noqa: E402
from family_cases import FAMILIES, Family  # noqa: E402

def make_model(config) -> PreTrainedModel:
    """Random weights that follow from the seed and the shapes alone; norms and biases too, so that each of them shows."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    torch.manual_seed(5)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.1)
    return model.eval()


def evaluate(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """One forward and backward pass on tokens below the smallest vocabulary, among them the padding tokens of the cases."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, 96, (2, 49), generator=generator)
    tokens[:, 3], tokens[:, 11] = 5, 95
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    output = model(input_ids=inputs, labels=inputs, shift_labels=targets)
    output.loss.backward()
    results = {"tokens": inputs, "targets": targets, "logits": output.logits.detach().clone(), "loss": output.loss.detach()}
    return results | {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}


def make_config(config: dict):
    return AutoConfig.for_model(**config)


def write_model(folder: Path, config: dict, save_options: dict, dtype: torch.dtype, body_only: bool = False) -> None:
    folder.mkdir(parents=True)
    model = make_model(make_config(config)).to(dtype)
    (model.base_model if body_only else model).save_pretrained(folder, **save_options)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    save_file(evaluate(model.eval()), folder / "expected.safetensors")


def results_of_file(folder: Path, config: dict) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    model = make_model(AutoConfig.from_pretrained(folder))
    return model, evaluate(model)


def write_field(folder: Path, base: dict, key: str, changes: dict, expectation: str) -> None:
    """The file is written as given, for save_pretrained would write what transformers understood of it."""
    config = {**base, **changes}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "expectation.json").write_text(json.dumps(expectation))
    if expectation == "refuse":
        return
    model, results = results_of_file(folder, config)
    save_file(dict(model.named_parameters()), folder / "model.safetensors")
    save_file(results, folder / "expected.safetensors")
    without = {k: v for k, v in changes.items() if k != key}
    with tempfile.TemporaryDirectory() as scratch:
        other = results_of_file(Path(scratch), {**base, **without})[1]
    is_same = results.keys() == other.keys() and all(torch.equal(results[name], other[name]) for name in other)
    assert is_same == (expectation == "ignore"), f"{folder.name}: transformers' results do {'not ' * is_same}change"


def check_parity_reference(folder: Path) -> None:
    """The plain Llama that tests/parity shards with FSDP2 computes what transformers does, too."""
    model = llama_reference.LlamaForCausalLM(llama_reference.LlamaConfig.from_file(folder))
    model.load_state_dict(load_file(folder / "model.safetensors"), strict="tied" not in folder.name)
    expected = load_file(folder / "expected.safetensors")
    logits = model(expected["tokens"])
    loss = llama_reference.next_token_loss(logits, expected["targets"])
    loss.backward()
    results = {"logits": logits, "loss": loss} | {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    wrong = [name for name, value in results.items() if not torch.equal(value, expected[name])]
    assert not wrong and len(results) + 2 == len(expected), f"{folder.name}: tests/parity/llama_reference.py differs: {wrong}"


def check_every_key_has_a_case(family: Family) -> None:
    """A later transformers may know keys that ours neither honours nor refuses."""
    known = {name.split("-")[0] for name in family.fields} | set(family.covered)
    unknown = {field.name for field in dataclasses.fields(make_config(family.base))} - known
    assert not unknown, f"{family.name}: this transformers' configuration has fields without a case: {sorted(unknown)}"


def main() -> None:
    torch.set_num_threads(1)
    # transformers has two ways to share key and value heads, which round differently in the last bit: within the kernel
    # and by repeat_kv before it. Ours is repeat_kv.
    sdpa_attention.use_gqa_in_sdpa = lambda *_: False
    root = Path(sys.argv[1])
    for family in FAMILIES:
        check_every_key_has_a_case(family)
        for name, (changes, *options) in family.models.items():
            write_model(root / "models" / f"{family.name}.{name}", {**family.base, **changes}, *options)
        for name, (changes, expectation) in family.fields.items():
            write_field(root / "fields" / f"{family.name}.{name}", family.base, name.split("-")[0], changes, expectation)
    for name in ("grouped", "multi_query", "one_group_wide_head", "tied", "large_eps"):
        check_parity_reference(root / "models" / f"llama.{name}")


if __name__ == "__main__":
    main()
