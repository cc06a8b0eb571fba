#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "formats/json/strict_json.h"

namespace fsdprun {

// Far above any real model; keeps parameter counts far inside int64.
inline constexpr int64_t kMaxDimension = int64_t{1} << 22;
inline constexpr int64_t kMaxLayers = int64_t{1} << 13;
inline constexpr int64_t kMaxPositions = int64_t{1} << 31;

/// Typed access to the keys of one object of a config.json. A key whose value is null counts as
/// missing, also where transformers would refuse the file. Every error is a ConfigError that names
/// file, key, value and what was expected.
class Fields {
 public:
  /// `object` must outlive this; `source` names the file, `prefix` the object in it ("rope.").
  Fields(const Json& object, std::string source, std::string prefix = "");

  bool Has(const char* key) const;
  /// Whether the key is there, with the value null.
  bool IsNull(const char* key) const;

  [[noreturn]] void Refuse(const char* key, const std::string& expectation) const;
  /// Refuses the key, whatever its value.
  void RefuseIfPresent(const char* key, const std::string& expectation) const;
  void RefuseKeysExcept(const std::set<std::string>& known, const std::string& expectation) const;

  /// An integer from 1 to `max`.
  int64_t Dimension(const char* key, int64_t max = kMaxDimension) const;
  int64_t DimensionOr(int64_t missing, const char* key, int64_t max = kMaxDimension) const;
  /// Precondition: Has(key). nullopt: not an integer, or beyond int64.
  std::optional<int64_t> Integer(const char* key) const;
  double Positive(const char* key) const;
  double Positive(const char* key, double missing) const;
  double NumberOr(double missing, const char* key) const;
  bool Flag(const char* key, bool missing) const;
  std::string Text(const char* key, const std::string& missing) const;
  /// Precondition: Has(key). Lives no longer than the object that this was made of.
  Fields Object(const char* key) const;
  /// Precondition: Has(key).
  const Json& Value(const char* key) const { return object_.at(key); }

  bool IsEmpty() const { return object_.empty(); }

 private:
  const Json& object_;
  std::string source_;
  std::string prefix_;
};

}  // namespace fsdprun
