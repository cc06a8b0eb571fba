#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/unit/base/remove_folder.h"

namespace fsdprun::checkpoint {

/// Where files stay in memory and a sync costs nothing, if the machine has such a place.
inline std::filesystem::path MemoryDirectory() {
  const std::filesystem::path memory = "/dev/shm";
  return access(memory.c_str(), R_OK | W_OK | X_OK) == 0 ? memory
                                                         : std::filesystem::temp_directory_path();
}

/// A directory that lives as long as the object.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string pattern = (parent / "fsdprun-ckpt-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { RemoveFolder(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// The message of the E that `action` throws; fails the test if it throws none.
template <typename E, typename F>
std::string MessageOf(F&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an exception";
  return {};
}

}  // namespace fsdprun::checkpoint
