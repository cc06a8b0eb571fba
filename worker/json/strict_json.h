#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdprun::worker {

/// User input (configuration, model description, weights, data) that cannot work however often it
/// is tried; main answers it with contract::kExitConfig. what() is one line: control characters in
/// quoted input are replaced.
class ConfigError : public std::runtime_error {
 public:
  explicit ConfigError(std::string message);
};

/// Keeps the order of keys, so that what is printed looks like what was written.
using Json = nlohmann::ordered_json;

/// Parses one JSON document. Errors: ConfigError "<source>:<line>:<column>: ..." for bad syntax,
/// "<source>: ..." for a key that occurs twice in one object (JSON libraries silently keep one of
/// them), for a number that no double holds and for nesting deeper than 64.
Json ParseStrictJson(std::string_view text, const std::string& source);

/// Reads and parses a file of at most 64 MiB. Errors: ConfigError naming path and cause.
Json ReadStrictJsonFile(const std::filesystem::path& path);

/// Whole content of a regular file. Errors: ConfigError naming path and cause ("No such file or
/// directory", "is a directory", "no regular file", "larger than ...").
std::string ReadSmallFile(const std::filesystem::path& path, size_t max_bytes);

/// The value as JSON on one line, cut to about 60 characters, for error messages.
std::string Excerpt(const Json& value);

}  // namespace fsdprun::worker
