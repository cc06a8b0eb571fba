#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {

/// A value of a tokenizer.json and where it is: "tokenizer.json: model.merges[3]". It refers to the
/// document. Errors of all that reads: ConfigError naming that, the value and what is expected.
class JsonField {
 public:
  /// `separator` stands between its name and that of a key in it.
  JsonField(const LookupJson& value, std::string name, const char* separator = ".")
      : value_(&value), name_(std::move(name)), separator_(separator) {}

  const LookupJson& value() const { return *value_; }
  const std::string& name() const { return name_; }
  bool is_null() const { return value_->is_null(); }

  [[noreturn]] void Refuse(const std::string& expectation) const;
  /// Proves that it is an object with no other keys. Errors: also for another one.
  void CheckKeys(std::initializer_list<std::string_view> keys) const;
  bool Has(const char* key) const { return value_->contains(key); }
  /// Errors: also if there is none.
  JsonField At(const char* key) const;
  JsonField At(size_t index) const;
  /// Of a list.
  size_t size() const;
  std::string Text() const;
  bool Truth() const;
  /// False where the key is missing.
  bool TruthOrFalse(const char* key) const { return Has(key) && At(key).Truth(); }
  /// From 0 to kLargestId.
  uint32_t Id() const;

  /// No tokenizer has as many: its vectors would be too long to be one.
  static constexpr uint32_t kLargestId = (1U << 24) - 1;

 private:
  const LookupJson* value_;
  std::string name_;
  const char* separator_;
};

}  // namespace fsdprun::worker
