#include "formats/models/model_config.h"

#include <system_error>

#include "formats/models/config_fields.h"
#include "formats/models/gpt2/parse_gpt2.h"
#include "formats/models/llama/parse_llama.h"
#include "formats/models/mistral/parse_mistral.h"
#include "formats/models/qwen/parse_qwen.h"

namespace fsdprun {
namespace {

struct Family {
  const char* model_type;
  ModelConfig (*parse)(const Fields& fields);
};

constexpr Family kFamilies[] = {{"gpt2", ParseGpt2},
                                {"llama", ParseLlama},
                                {"mistral", ParseMistral},
                                {"qwen2", ParseQwen2},
                                {"qwen3", ParseQwen3}};

std::string KnownFamilies() {
  std::string text = "one of";
  const char* separator = " ";
  for (const Family& family : kFamilies) {
    text += separator + Json(family.model_type).dump();
    separator = ", ";
  }
  return text;
}

}  // namespace

ModelConfig ParseModelConfig(const Json& document, const std::string& source) {
  if (!document.is_object()) {
    throw ConfigError(source + ": expected an object, got " + Excerpt(document));
  }
  const Fields fields(document, source);
  const std::string model_type = fields.Text("model_type", "");
  for (const Family& family : kFamilies) {
    if (model_type == family.model_type) {
      return family.parse(fields);
    }
  }
  fields.Refuse("model_type", KnownFamilies());
}

std::filesystem::path ModelConfigPath(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path given = path;
  return std::filesystem::is_directory(given, ignored) ? given / "config.json" : given;
}

ModelConfig ReadModelConfig(const std::string& path) {
  const std::filesystem::path file = ModelConfigPath(path);
  return ParseModelConfig(ReadStrictJsonFile(file), file.string());
}

int64_t ParameterCount(const ModelConfig& config) {
  int64_t total = 0;
  for (const WeightShape& weight : config.weights) {
    int64_t count = 1;
    for (const int64_t size : weight.shape) {
      count *= size;
    }
    total += count;
  }
  return total;
}

}  // namespace fsdprun
