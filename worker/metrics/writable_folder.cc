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

}  // namespace fsdprun::worker
