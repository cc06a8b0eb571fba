#pragma once

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace fsdprun {

/// Of all threads, those included that have ended and that nobody has waited for. A sanitizer may
/// have one of its own.
inline std::set<std::string> OwnChildren() {
  std::set<std::string> children;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream in(thread.path() / "children");
    for (std::string pid; in >> pid;) {
      children.insert(pid);
    }
  }
  return children;
}

}  // namespace fsdprun
