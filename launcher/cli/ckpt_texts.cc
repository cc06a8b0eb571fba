#include "launcher/cli/ckpt_texts.h"

namespace fsdprun {
namespace {

const ProgramTexts& ReadingTexts(CliProgram program) {
  static const ProgramTexts list = {
      .summary = "list the checkpoints of a folder",
      .synopsis = "DIR [options]",
      .description =
          "One line for each checkpoint, the newest first: step, tokens, size, age, how many ranks "
          "wrote it, the run, and whether it is complete; before them, which job has claimed the "
          "folder. Nothing is changed.",
      .examples = {"fsdpctl ckpt list checkpoints", "fsdpctl ckpt list checkpoints --json"}};
  static const ProgramTexts inspect = {
      .summary = "show what is in a checkpoint or a model",
      .synopsis = "PATH [options]",
      .description =
          "PATH is a checkpoint in the format of torch.distributed.checkpoint, whoever wrote it, a "
          "Hugging Face model's folder, a folder of its sharded safetensors, or one file of these. "
          "Shows keys, dtypes, shapes, pieces and files, and of a checkpoint of fsdp-train the "
          "training state, the configuration and the model. Nothing that is read is executed.",
      .examples = {"fsdpctl ckpt inspect checkpoints/step-1000",
                   "fsdpctl ckpt inspect model.safetensors --json"}};
  static const ProgramTexts verify = {
      .summary = "read a checkpoint, and compare its checksums",
      .synopsis = "PATH [options]",
      .description =
          "Reads every file of a checkpoint and names the items that are damaged. One of "
          "fsdp-train "
          "has checksums of all files, one that Python wrote a CRC-32 of each item; safetensors "
          "have none, so only their structure is looked at.",
      .examples = {"fsdpctl ckpt verify checkpoints/step-1000"}};
  static const ProgramTexts diff = {
      .summary = "compare the tensors of two checkpoints or models",
      .synopsis = "A B [options]",
      .description =
          "Keys, dtypes, shapes and values: bit-equal, or how many elements differ and by how much "
          "at most. Tensors are read piece by piece. Between a checkpoint and a Hugging Face model "
          "the weights are compared.",
      .examples = {"fsdpctl ckpt diff checkpoints/step-1000 checkpoints/step-2000",
                   "fsdpctl ckpt diff checkpoints/step-1000 exported-model"}};
  return program == CliProgram::kCkptList      ? list
         : program == CliProgram::kCkptInspect ? inspect
         : program == CliProgram::kCkptVerify  ? verify
                                               : diff;
}

const ProgramTexts& WritingTexts(CliProgram program) {
  static const ProgramTexts export_texts = {
      .summary = "write the weights of a checkpoint for Hugging Face, or as one .pt file",
      .synopsis = "CKPT OUT [options]",
      .description =
          "OUT becomes a folder that transformers' from_pretrained loads: safetensors, "
          "config.json, "
          "generation_config.json, and the files of the tokenizer; or with --format pt a file that "
          "torch.load(weights_only=True) loads. It appears when it is complete. The weights are "
          "read piece by piece, whatever their number of ranks was. The adapters of a training "
          "with lora are merged with their base; with --format adapter OUT has them alone, for "
          "PEFT.",
      .examples = {"fsdpctl ckpt export checkpoints/step-1000 model --dtype bfloat16 "
                   "--tokenizer-dir tokenizer",
                   "fsdpctl ckpt export checkpoints/step-1000 model.pt --format pt",
                   "fsdpctl ckpt export checkpoints/step-1000 adapter --format adapter"}};
  static const ProgramTexts import = {
      .summary = "make a checkpoint of a Hugging Face model",
      .synopsis = "MODEL OUT [options]",
      .description =
          "OUT becomes a checkpoint of the weights alone, under the keys of fsdp-train (model.*), "
          "which torch.distributed.checkpoint reads, too.",
      .examples = {"fsdpctl ckpt import llama-model imported"}};
  static const ProgramTexts convert = {
      .summary = "copy a checkpoint under other keys",
      .synopsis = "CKPT OUT --map MAP [options]",
      .description =
          "All of the checkpoint is copied, keys renamed as MAP says: a file with a JSON object of "
          "old and new keys, whose first one that fits counts. A * stands for any text in both; "
          "null leaves keys out. Python objects are copied byte for byte. Or MAP is the name of a "
          "layout, to which or from which weights are converted, with their rows in the order that "
          "it has: of torchtitan (torchtitan, torchtitan-0.2 with the names of that version, "
          "from-torchtitan), or of accelerate's folders of FSDP (accelerate, from-accelerate). A "
          "file of such a name is written ./torchtitan.",
      .examples = {"fsdpctl ckpt convert checkpoints/step-1000 converted --map map.json",
                   "fsdpctl ckpt convert checkpoints/step-1000 titan --map torchtitan"}};
  return program == CliProgram::kCkptExport   ? export_texts
         : program == CliProgram::kCkptImport ? import
                                              : convert;
}

}  // namespace

const ProgramTexts& CkptTexts(CliProgram program) {
  return program >= CliProgram::kCkptExport ? WritingTexts(program) : ReadingTexts(program);
}

const std::vector<TextEntry>& CkptExitCodes(CliProgram program) {
  static const std::vector<TextEntry> texts = {
      {"0", "Done."},
      {"1", "A file cannot be read or written, or an option has a value that means nothing."},
      {"2", "The command line cannot be read."}};
  static const std::vector<TextEntry> verify = {
      {"0", "All is intact."},
      {"1", "Something is damaged or cannot be read; what, is named."},
      {"2", "The command line cannot be read."}};
  static const std::vector<TextEntry> diff = {
      {"0", "All tensors are bit-equal."},
      {"1", "There are differences."},
      {"2", "Something cannot be read; what, is named. Or the command line cannot be read."}};
  return program == CliProgram::kCkptVerify ? verify
         : program == CliProgram::kCkptDiff ? diff
                                            : texts;
}

}  // namespace fsdprun
