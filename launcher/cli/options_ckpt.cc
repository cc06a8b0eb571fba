#include "launcher/cli/option_groups.h"

// The options of fsdpctl ckpt.

namespace fsdprun {
namespace {

using F = OptionFamily;
using G = OptionGroup;
using V = ValueKind;
using C = Completion;

OptionSpec ConfigOption() {
  return {.name = "config",
          .family = F::kOwn,
          .group = G::kCheckpoint,
          .reads_variable = false,
          .metavar = "FILE",
          .default_text = "what the checkpoint says",
          .completion = C::kFile,
          .help = "The model's config.json."};
}

std::vector<OptionSpec> ExportOptions() {
  return {
      {.name = "format",
       .family = F::kOwn,
       .group = G::kCheckpoint,
       .reads_variable = false,
       .metavar = "FORMAT",
       .default_text = "hf",
       .completion = C::kWords,
       .words = "hf pt adapter",
       .is_choice = true,
       .help = "hf: the folder of a Hugging Face model. pt: one file of torch.save. adapter: the "
               "adapters of a training with lora, as PEFT writes them."},
      {.name = "dtype",
       .family = F::kOwn,
       .group = G::kCheckpoint,
       .reads_variable = false,
       .metavar = "DTYPE",
       .default_text = "as stored",
       .completion = C::kWords,
       .words = "float32 bfloat16 float16",
       .is_choice = true,
       .help = "What floating weights are cast to."},
      {.name = "max-shard-size",
       .family = F::kOwn,
       .group = G::kCheckpoint,
       .reads_variable = false,
       .metavar = "SIZE",
       .default_text = "50GB",
       .help = "Divide the weights into files of at most this size, such as 5GB or 512MiB."},
      {.name = "tokenizer-dir",
       .family = F::kOwn,
       .group = G::kCheckpoint,
       .reads_variable = false,
       .metavar = "DIR",
       .default_text = "the folder of the model's config.json",
       .completion = C::kDirectory,
       .help = "Folder whose files of a tokenizer are copied along."},
      {.name = "base",
       .family = F::kOwn,
       .group = G::kCheckpoint,
       .reads_variable = false,
       .metavar = "PATH",
       .default_text = "what the checkpoint says",
       .completion = C::kDirectory,
       .help = "The weights that adapters were trained on, with which they are merged: a folder, a "
               "file .safetensors or a checkpoint."},
      ConfigOption(),
  };
}

OptionSpec MapOption() {
  return {.name = "map",
          .family = F::kOwn,
          .group = G::kCheckpoint,
          .reads_variable = false,
          .metavar = "MAP",
          .completion = C::kFile,
          .help =
              "File with a JSON object of old and new keys, or a layout: torchtitan, "
              "torchtitan-0.2, from-torchtitan, accelerate, from-accelerate. See "
              "docs/CHECKPOINTS.md."};
}

OptionSpec Switch(const char* name, const char* help) {
  return {.name = name,
          .family = F::kOwn,
          .group = G::kCheckpoint,
          .reads_variable = false,
          .value = V::kSwitch,
          .default_text = "off",
          .help = help};
}

}  // namespace

std::vector<OptionSpec> CkptOptionSpecs(CliProgram program) {
  std::vector<OptionSpec> options;
  if (program == CliProgram::kCkptExport) {
    options = ExportOptions();
  }
  if (program == CliProgram::kCkptConvert) {
    options = {MapOption(), ConfigOption()};
  }
  if (program >= CliProgram::kCkptExport) {
    options.push_back(Switch("force",
                             "Replace the files of an earlier output. Files of other "
                             "names in its folder stay."));
  }
  options.push_back(Switch("json", "Print one JSON object, see docs/CHECKPOINTS.md."));
  return options;
}

}  // namespace fsdprun
