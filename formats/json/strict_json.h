#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdprun {

/// Invalid user input (configuration, model description, weights, data), for which a restart cannot
/// help; main exits with contract::kExitConfig. what() is one line: control characters in quoted
/// input are replaced.
class ConfigError : public std::runtime_error {
 public:
  explicit ConfigError(std::string message);
};

/// Preserves the order of keys, so that output looks like the input.
using Json = nlohmann::ordered_json;

/// Whether a document may have comments, which JSON does not know: // to the end of the line, and
/// /* to */. What people write may, what programs exchange may not.
enum class JsonComments { kRefused, kIgnored };

/// Parses one JSON document. Errors: ConfigError "<source>:<line>:<column>: ..." for bad syntax,
/// "<source>: ..." for a key that occurs twice in one object (JSON libraries silently keep one of
/// them), for a number out of a double's range and for nesting deeper than 64.
Json ParseStrictJson(std::string_view text, const std::string& source,
                     JsonComments comments = JsonComments::kRefused);

/// Finds a key in logarithmic time; does not preserve the order of keys.
using LookupJson = nlohmann::json;

/// As ParseStrictJson, for objects of more than a few hundred keys: with Json each key would be
/// compared with all before it.
LookupJson ParseLargeJson(std::string_view text, const std::string& source);

/// Reads and parses a file of at most 64 MiB. Errors: ConfigError naming path and cause.
Json ReadStrictJsonFile(const std::filesystem::path& path,
                        JsonComments comments = JsonComments::kRefused);

/// Whole content of a regular file. Errors: ConfigError naming path and cause ("No such file or
/// directory", "is a directory", "no regular file", "larger than ...").
std::string ReadSmallFile(const std::filesystem::path& path, size_t max_bytes);

/// The value as JSON on one line, truncated to about 60 characters, for error messages.
std::string Excerpt(const Json& value);

}  // namespace fsdprun
