#include "fsdp_runtime/src/state_dict/texts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace fsdp {
namespace {

constexpr size_t kKeysShown = 20;

}  // namespace

void add_keys(std::vector<std::string>& problems, const std::string& what,
              const std::vector<std::string>& keys) {
  if (keys.empty()) {
    return;
  }
  std::string text = what + ": ";
  for (size_t i = 0; i < std::min(keys.size(), kKeysShown); ++i) {
    text += (i > 0 ? ", \"" : "\"") + keys[i] + "\"";
  }
  if (keys.size() > kKeysShown) {
    text += " and " + std::to_string(keys.size() - kKeysShown) + " more";
  }
  problems.push_back(std::move(text));
}

std::string joined(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) {
    text += (text.empty() || problem.empty() ? "" : "; ") + problem;
  }
  return text;
}

std::string packed(const nlohmann::json& value) {
  const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(value);
  return {bytes.begin(), bytes.end()};
}

nlohmann::json unpacked(const std::string& bytes) { return nlohmann::json::from_cbor(bytes); }

}  // namespace fsdp
