#include "worker/data/file_list.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

struct Addition {
  std::string_view data;         // what the name of the data ends with
  std::string_view replaced;     // of it, what is left out of the other's name
  std::string_view description;  // what is put there
};
constexpr std::array<Addition, 5> kAdditions = {{{".bin", "", ".json"},
                                                 {".bin", ".bin", ".idx"},
                                                 {".ds", "", ".index"},
                                                 {".ds", "", ".metadata"},
                                                 {".ds", "", ".loss"}}};

std::vector<std::string> Match(const std::string& key, const std::string& pattern) {
  glob_t found{};
  static thread_local int error = 0;
  error = 0;
  const auto keep_error = [](const char*, int error_number) {
    error = error_number;
    return 1;
  };
  const int result = glob(pattern.c_str(), 0, keep_error, &found);
  std::vector<std::string> matches(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (result != 0 || matches.empty()) {
    throw ConfigError(key + ": " + Excerpt(Json(pattern)) + " matches no file" +
                      (error != 0 ? std::string(": ") + std::strerror(error) : std::string()) +
                      "; correct the pattern, or give paths");
  }
  std::sort(matches.begin(), matches.end());
  return matches;
}

}  // namespace

std::vector<std::string> WithoutDescriptions(const std::vector<std::string>& matches) {
  std::set<std::string> descriptions;
  for (const std::string& match : matches) {
    for (const Addition& addition : kAdditions) {
      if (match.ends_with(addition.data)) {
        descriptions.insert(match.substr(0, match.size() - addition.replaced.size()) +
                            std::string(addition.description));
      }
    }
  }
  std::vector<std::string> rest;
  for (const std::string& match : matches) {
    if (!descriptions.contains(match)) {
      rest.push_back(match);
    }
  }
  return rest;
}

std::vector<std::string> ExpandPaths(const std::string& key,
                                     const std::vector<std::string>& patterns) {
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns) {
    std::error_code ignored;
    if (pattern.find_first_of("*?[") == std::string::npos ||
        std::filesystem::exists(pattern, ignored)) {
      paths.push_back(pattern);
      continue;
    }
    for (std::string& path : WithoutDescriptions(Match(key, pattern))) {
      paths.push_back(std::move(path));
    }
  }
  return paths;
}

}  // namespace fsdprun::worker
