#pragma once

#include <string>
#include <vector>

namespace fsdprun::worker {

/// Replaces each pattern (*, ? and [...], as in a shell) by the paths that it matches, sorted byte
/// by byte; a path that exists stays as it is. What only describes another match is left out: the
/// index and the description of a token file. `key` names the list in errors. Errors: ConfigError
/// for a pattern that matches nothing, or whose folder cannot be read.
std::vector<std::string> ExpandPaths(const std::string& key,
                                     const std::vector<std::string>& patterns);

/// `matches` without those that describe another of them. Pure.
std::vector<std::string> WithoutDescriptions(const std::vector<std::string>& matches);

}  // namespace fsdprun::worker
