#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/strict_json.h"

namespace fsdprun {

/// A value of the file, valid by itself.
struct AccelerateSetting {
  int line = 0;
  /// As it is written; a boolean as "true" or "false".
  std::string text;
  /// Of kWordOrBool: whether it is a boolean.
  bool is_bool = false;
};

/// A configuration of accelerate (what `accelerate config` writes), read with nothing left out:
/// what is not known is a warning, what cannot be is an error.
class AccelerateConfig {
 public:
  /// `source` names the file in errors. Errors: ConfigError "<source>:<line>: <key> = <value>:
  /// expected ...".
  AccelerateConfig(std::string_view text, std::string source);

  const std::string& source() const { return source_; }
  /// Unknown keys, each with its place.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// By name: "num_machines", "fsdp_config.fsdp_version". What is null is not there.
  const std::map<std::string, AccelerateSetting, std::less<>>& settings() const {
    return settings_;
  }

  /// nullptr: it is not there.
  const AccelerateSetting* Find(std::string_view name) const;
  std::string Text(std::string_view name, std::string_view missing) const;
  /// The same in upper case.
  std::string Word(std::string_view name, std::string_view missing) const;
  bool Flag(std::string_view name, bool missing) const;
  /// Of a number. nullopt: it is not there.
  std::optional<int64_t> Number(std::string_view name) const;
  bool HasSection(std::string_view name) const { return sections_.count(std::string(name)) > 0; }

  /// "<source>:<line>: <key>"
  std::string Place(std::string_view name) const;
  /// For a setting that is there.
  [[noreturn]] void Refuse(std::string_view name, const std::string& expectation) const;

 private:
  std::string source_;
  std::vector<std::string> warnings_;
  std::map<std::string, AccelerateSetting, std::less<>> settings_;
  std::map<std::string, int> sections_;  // that are not empty, and their lines
};

/// Reads a file. Errors: as AccelerateConfig's; also if it cannot be read.
AccelerateConfig ReadAccelerateConfig(const std::string& path);

}  // namespace fsdprun
