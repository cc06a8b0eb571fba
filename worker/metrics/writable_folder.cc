#include "worker/metrics/writable_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "worker/metrics/metrics.h"

namespace fsdprun::worker {

void CheckWritableFolder(const std::string& folder, const std::string& what,
                         const std::string& key) {
  if (folder.empty()) {
    return;
  }
  std::error_code made;
  std::filesystem::create_directories(folder, made);
  int error = made.value();
  std::error_code unknown;
  if (error == 0 && !std::filesystem::is_directory(folder, unknown)) {
    error = ENOTDIR;
  } else if (error == 0 && access(folder.c_str(), W_OK | X_OK) != 0) {
    error = errno;
  }
  if (error != 0) {
    throw MetricsError("cannot write " + what + " in " + folder + ": " + std::strerror(error) +
                           "; choose another " + key,
                       error);
  }
}

int WhyNotWritable(const std::string& path, Place place) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  std::filesystem::path there = whole;
  while (!std::filesystem::exists(std::filesystem::status(there, error)) &&
         there.has_relative_path()) {
    if (error && error != std::errc::no_such_file_or_directory &&
        error != std::errc::not_a_directory) {
      return error.value();
    }
    there = there.parent_path();
  }
  const bool is_folder = std::filesystem::is_directory(there, error);
  const bool is_file = there == whole && place == Place::kFile;
  if (is_file == is_folder) {
    return is_folder ? EISDIR : ENOTDIR;
  }
  return access(there.c_str(), is_folder ? W_OK | X_OK : W_OK) == 0 ? 0 : errno;
}

}  // namespace fsdprun::worker
