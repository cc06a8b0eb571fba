#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp_runtime/plan/fnv1a.h"

namespace fsdp {

/// A digest of numbers and names.
class TextDigest {
 public:
  template <class Number>
  void mix(Number number) {
    digest_.mix(static_cast<uint64_t>(number));
  }
  void mix(std::string_view text) {
    mix(text.size());
    for (const char c : text) {
      mix(static_cast<unsigned char>(c));
    }
  }
  void mix(const std::string& text) { mix(std::string_view(text)); }
  uint64_t value() const { return digest_.digest(); }

 private:
  Fnv1a digest_;
};

/// Adds `what: "a", "b"` to `problems`, with the first keys and the number of the others, if there
/// are any.
void add_keys(std::vector<std::string>& problems, const std::string& what,
              const std::vector<std::string>& keys);
/// One behind the other, with "; " between.
std::string joined(const std::vector<std::string>& problems);

/// As bytes, between ranks of one build: exact for all numbers and texts.
std::string packed(const nlohmann::json& value);
nlohmann::json unpacked(const std::string& bytes);

}  // namespace fsdp
