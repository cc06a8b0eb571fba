#include "formats/files/temporary_name.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "formats/files/output_file.h"
#include "fsdp_runtime/archive/zip_archive.h"

namespace fsdprun {
namespace {

/// ".tmp-<host>-"
std::string HostMark() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  char mark[32];
  std::snprintf(mark, sizeof mark, ".tmp-%08x-",
                fsdp::archive::update_crc32(0, host, std::strlen(host)));
  return mark;
}

/// "<process>-<number>", and whether that process has ended.
bool IsOfDead(std::string_view rest) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), pid);
  const bool is_name =
      error == std::errc() && pid > 0 && end != rest.data() + rest.size() && *end == '-';
  return is_name && kill(pid, 0) != 0 && errno == ESRCH;
}

/// If nobody holds it.
void RemoveUnheld(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    return;
  }
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  close(fd);
}

}  // namespace

std::string TemporaryName(const std::string& path, int number) {
  return path + HostMark() + std::to_string(getpid()) + "-" + std::to_string(number);
}

void HoldTemporary(int fd) { flock(fd, LOCK_EX | LOCK_NB); }

void RemoveLeftovers(const std::string& path) {
  const std::string start = std::filesystem::path(path).filename().string() + HostMark();
  std::error_code error;
  for (std::filesystem::directory_iterator entry(FolderOf(path), error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(start) && IsOfDead(std::string_view(name).substr(start.size()))) {
      RemoveUnheld(entry->path());
    }
  }
}

}  // namespace fsdprun
