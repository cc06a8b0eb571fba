// The JSON texts beside tensors, chosen by the first byte: 'o' the offsets of a sharded safetensors
// file, 'r' a map of keys, which is then asked about parts of its own text, else a model's
// configuration. Properties: the documented exception with one line, or a result that holds: no
// negative offset; a second completion of a configuration changes nothing.

#include <string>

#include "base/check.h"
#include "formats/hf/model_config.h"
#include "formats/tensors/safetensors_tensors.h"
#include "fsdpctl/ckpt/rename_map.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdprun {
namespace {

void FuzzOffsets(std::string_view text) {
  for (const auto& [name, offsets] : ParseShardOffsets(text, "the file")) {
    for (const int64_t offset : offsets) {
      FSDPRUN_CHECK(offset >= 0 && offset <= int64_t{1} << 53, "impossible offset accepted");
    }
  }
}

void FuzzMap(std::string_view text) {
  const ckpt::RenameMap map(text, "the file");
  for (size_t begin = 0; begin < text.size(); begin += 1 + text.size() / 16) {
    const std::string key(text.substr(begin, 20));
    if (const std::optional<std::string> name = map.Rename(key)) {
      FSDPRUN_CHECK(name->size() <= text.size() + key.size(), "a name of nowhere");
    }
  }
}

void FuzzConfig(std::string_view text) {
  const Json config = CompleteModelConfig(ParseStrictJson(text, "the file"), "float32", "the file");
  FSDPRUN_CHECK(CompleteModelConfig(config, "float32", "the file") == config,
                "a second completion changes the configuration");
  const auto has = [&](const char* name) {
    return config.contains(name) && !config.at(name).is_null();
  };
  FSDPRUN_CHECK(has("rope_parameters") == has("rope_theta"), "one spelling alone");
  GenerationConfig(config);
}

void Fuzz(std::string_view input) {
  const char kind = input.empty() ? '\0' : input.front();
  const std::string_view text = input.substr(input.empty() ? 0 : 1);
  try {
    const fuzz::MemoryBound bound((64 << 10) + 512 * input.size());
    kind == 'o' ? FuzzOffsets(text) : kind == 'r' ? FuzzMap(text) : FuzzConfig(text);
  } catch (const ConfigError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
  }
}

}  // namespace
}  // namespace fsdprun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdprun::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
