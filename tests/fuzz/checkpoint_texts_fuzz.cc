// The JSON texts beside tensors, chosen by the first byte: 'o' the offsets of a sharded safetensors
// file, 'r' a map of keys, which is then asked about parts of its own text, 'm' a manifest, whose
// checksum is made to match, else a model's configuration. Properties: the documented exception
// with one line, or a result that holds: no negative offset; a manifest is equal after a round
// trip; a second completion of a configuration changes nothing, and what training reads of the
// completed one is what it reads of the given one.

#include <optional>
#include <string>

#include "base/check.h"
#include "formats/checkpoint/error.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/manifest.h"
#include "formats/hf/model_config.h"
#include "formats/models/model_config.h"
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

/// The text with the checksum of its content, which mutation would never hit.
std::string WithChecksum(std::string_view text) {
  constexpr char kChecksum[] = "manifest_xxh3";
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  if (!value.is_object()) {
    return std::string(text);
  }
  value.erase(kChecksum);
  try {
    value[kChecksum] = checkpoint::HashBytes(value.dump());
    return value.dump();
  } catch (const nlohmann::json::exception&) {
    return std::string(text);  // not UTF-8
  }
}

void FuzzManifest(std::string_view text) {
  const checkpoint::Manifest manifest = checkpoint::DecodeManifest(WithChecksum(text), "the file");
  for (const auto& [name, file] : manifest.files) {
    FSDPRUN_CHECK(name.find('/') == std::string::npos, "a file outside the checkpoint");
    for (const checkpoint::ManifestItem& item : file.items) {
      FSDPRUN_CHECK(item.offset >= 0 && item.length >= 0 && item.length <= file.bytes - item.offset,
                    "an item outside its file");
    }
  }
  FSDPRUN_CHECK(checkpoint::DecodeManifest(EncodeManifest(manifest), "the copy") == manifest,
                "manifest differs after a round trip");
}

/// The model that is trained; nullopt if the program cannot train it.
std::optional<ModelConfig> ModelOf(const Json& config) {
  try {
    return ParseModelConfig(config, "the file");
  } catch (const ConfigError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
    return std::nullopt;
  }
}

void CheckModel(const ModelConfig& model) {
  FSDPRUN_CHECK(ParameterCount(model) > 0, "impossible number of parameters");
  FSDPRUN_CHECK(model.vocab_size > 0 && model.max_position_embeddings > 0, "impossible size");
}

void FuzzConfig(std::string_view text) {
  const Json given = ParseStrictJson(text, "the file");
  const std::optional<ModelConfig> model = ModelOf(given);
  if (model) {
    CheckModel(*model);
  }
  const Json config = CompleteModelConfig(given, "float32", "the file");
  const std::optional<ModelConfig> completed = ModelOf(config);
  FSDPRUN_CHECK(model.has_value() == completed.has_value() &&
                    (!model || model->description == completed->description),
                "completion changes the model");
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
  // A few bytes are a model of very many layers, and each layer has its weights.
  const bool is_config = kind != 'o' && kind != 'r' && kind != 'm';
  try {
    const fuzz::MemoryBound bound((is_config ? 96 << 20 : 64 << 10) + 512 * input.size());
    kind == 'o'   ? FuzzOffsets(text)
    : kind == 'r' ? FuzzMap(text)
    : kind == 'm' ? FuzzManifest(text)
                  : FuzzConfig(text);
  } catch (const ConfigError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
  } catch (const checkpoint::CheckpointError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
  }
}

}  // namespace
}  // namespace fsdprun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdprun::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
