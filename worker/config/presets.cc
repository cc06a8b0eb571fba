#include "worker/config/presets.h"

#include <algorithm>
#include <sstream>

namespace fsdprun::worker {
namespace {

constexpr std::string_view kTinyCpu = R"({
  "data": {"seq_len": 128},
  "train": {"steps": 300, "micro_batch_size": 8},
  "optimizer": {"lr": 0.003, "betas": [0.9, 0.95], "weight_decay": 0.1},
  "schedule": {"kind": "cosine", "warmup_steps": 20, "min_lr_ratio": 0.1},
  "metrics": {"every_steps": 10}
})";

// Rates and decays as GPT-3's and Llama's reports have them for models of about a billion
// parameters.
constexpr std::string_view kPretrain = R"({
  "data": {"seq_len": 2048},
  "train": {"steps": 50000, "micro_batch_size": 8, "max_grad_norm": 1.0, "activation_checkpointing": true},
  "optimizer": {"lr": 0.0003, "betas": [0.9, 0.95], "weight_decay": 0.1},
  "schedule": {"kind": "cosine", "warmup_steps": 2000, "min_lr_ratio": 0.1},
  "precision": {"param": "bfloat16", "reduce": "float32", "output": "float32"},
  "checkpoint": {"every_minutes": 15, "keep": 3},
  "metrics": {"every_steps": 10}
})";

constexpr std::string_view kFineTune = R"({
  "data": {"seq_len": 1024},
  "train": {"steps": 1000, "micro_batch_size": 4, "max_grad_norm": 1.0, "activation_checkpointing": true},
  "optimizer": {"lr": 0.00002, "betas": [0.9, 0.999], "weight_decay": 0.0},
  "schedule": {"kind": "cosine", "warmup_steps": 30, "min_lr_ratio": 0.0},
  "precision": {"param": "bfloat16", "reduce": "float32", "output": "float32"},
  "checkpoint": {"every_minutes": 15, "keep": 2},
  "metrics": {"every_steps": 1}
})";

}  // namespace

const std::vector<Preset>& Presets() {
  static const std::vector<Preset> presets = {
      {"tiny-cpu", "to see a small model learn on the cores of one machine, in minutes", kTinyCpu},
      {"pretrain", "to train a model of about a billion parameters from random weights on GPUs",
       kPretrain},
      {"finetune", "to go on from a model's weights (model.weights) on GPUs", kFineTune},
  };
  return presets;
}

Json PresetSettings(const std::string& name, const std::string& source) {
  const auto preset = std::find_if(Presets().begin(), Presets().end(),
                                   [&](const Preset& one) { return one.name == name; });
  if (preset == Presets().end()) {
    std::string names;
    for (const Preset& one : Presets()) {
      names.append(names.empty() ? "" : ", ").append(one.name);
    }
    throw ConfigError(source + ": " + Excerpt(name) + ": expected the name of a preset: " + names +
                      " (see fsdp-train config --list-presets)");
  }
  return ParseStrictJson(preset->settings, "preset " + name);
}

std::string DescribePresets() {
  std::ostringstream out;
  for (const Preset& preset : Presets()) {
    out << preset.name << ": " << preset.purpose << "\n";
    const Json settings = ParseStrictJson(preset.settings, "preset");
    for (const auto& [section, keys] : settings.items()) {
      for (const auto& [name, value] : keys.items()) {
        out << "  " << section << "." << name << " = " << value.dump() << "\n";
      }
    }
  }
  return out.str();
}

}  // namespace fsdprun::worker
