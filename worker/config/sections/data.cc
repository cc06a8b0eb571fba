#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {

std::vector<ConfigKey> DataKeys() {
  using enum ValueKind;
  return {
      {"data.train", kStringList, "", "a list of at least one path",
       "files of text or of tokens, or patterns such as \"part-*.bin\", read as one stream in this "
       "order; not beside data.mixture",
       IsNotEmpty},
      {"data.mixture", kMixture, "[]", "a list of {\"files\": [paths], \"weight\": a number > 0}",
       "instead of data.train: sources of which each gives a share of the samples as large as its "
       "weight says; needs data.sampler = \"global\"",
       nullptr},
      {"data.valid", kStringList, "[]", "a list of paths",
       "files for evaluation, as those of data.train", nullptr},
      {"data.format", kString, "\"auto\"",
       "\"auto\", \"text\", \"llmc\", \"megatron\", \"datatrove\" or \"raw\"",
       "file format; auto: as names and contents say; raw: ids and nothing else",
       [](const Json& value) {
         return IsOneOf(value, {"auto", "text", "llmc", "megatron", "datatrove", "raw"});
       }},
      {"data.dtype", kString, "\"auto\"",
       "\"auto\", \"uint8\", \"uint16\", \"int16\", \"uint32\", \"int32\" or \"int64\"",
       "how the ids of files are stored that do not say it; auto: as NAME.bin.json beside them "
       "says",
       [](const Json& value) {
         return IsOneOf(value, {"auto", "uint8", "uint16", "int16", "uint32", "int32", "int64"});
       }},
      {"data.tokenizer", kString, "\"byte\"", "\"byte\" or \"bytes\"",
       "of text: one token (0..255) per byte",
       [](const Json& value) {
         return IsOneOf(value, {"byte", "bytes"});
       }},
      {"data.seq_len", kInteger, "256", "an integer >= 1", "tokens per window", IsCount<1>},
      {"data.shuffle", kBoolean, "true", "true or false", "permute the windows of every epoch",
       nullptr},
      {"data.sampler", kString, "\"torch\"", "\"torch\" or \"global\"",
       "order of the windows; torch: that of PyTorch's DistributedSampler; global: one that needs "
       "no "
       "memory and does not depend on the number of ranks",
       [](const Json& value) {
         return IsOneOf(value, {"torch", "global"});
       }},
      {"data.drop_last", kBoolean, "false", "true or false",
       "leave out the windows at the end of an epoch that are fewer than the ranks, as "
       "DistributedSampler does, instead of repeating some; only with data.sampler = \"torch\"",
       nullptr},
      {"data.documents", kString, "\"join\"", "\"join\", \"mask\" or \"separate\"",
       "join: windows go across documents; mask: the same, without the loss of the first token of "
       "each; separate: no window has tokens of two, the rest of the last one is no loss",
       [](const Json& value) {
         return IsOneOf(value, {"join", "mask", "separate"});
       }},
      {"data.document_end", kInteger, "-1", "an id, or -1",
       "the id behind each document, for data.documents; -1: as the files say",
       [](const Json& value) {
         return value.get<int64_t>() >= -1 && value.get<int64_t>() <= kMaxCount;
       }},
      {"data.seed", kInteger, "0", "an integer from 0 to 2^63-1", "seed of the permutation",
       IsSeed},
      {"data.on_change", kString, "\"refuse\"", "\"refuse\" or \"warn\"",
       "resuming with another text or order than the checkpoint's, so that the position is lost, "
       "or training weights on ids of another tokenizer than the one beside them; warn: continue, "
       "after as many tokens of the epoch",
       [](const Json& value) {
         return IsOneOf(value, {"refuse", "warn"});
       }},
  };
}

}  // namespace fsdprun::worker
