#include "fsdp_runtime/src/state_dict/new_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

namespace fsdp {
namespace {

std::string temporary_name(const std::string& path) {
  char suffix[32];
  std::snprintf(suffix, sizeof(suffix), ".tmp-%08x", std::random_device()());
  return path + suffix;
}

}  // namespace

NewFile::NewFile(std::string path)
    : path_(std::move(path)),
      temporary_(temporary_name(path_)),
      fd_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  error_ = fd_.valid() ? 0 : errno;
  check("create the file");
}

NewFile::~NewFile() {
  if (!is_published_ && fd_.valid()) {
    ::unlink(temporary_.c_str());
  }
}

void NewFile::check(const char* attempt) const {
  TORCH_CHECK(error_ == 0, "save: ", path_, ": cannot ", attempt, " (", temporary_,
              "): ", std::strerror(error_));
}

void NewFile::write(const void* data, size_t bytes) noexcept {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0 && error_ == 0) {
    const ssize_t written = ::write(fd_.get(), next, bytes);
    if (written > 0) {
      next += written;
      bytes -= static_cast<size_t>(written);
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
}

void NewFile::publish() {
  check("write it");
  error_ = ::fsync(fd_.get()) == 0 ? 0 : errno;
  check("flush it to the disk");
  error_ = ::rename(temporary_.c_str(), path_.c_str()) == 0 ? 0 : errno;
  check("rename it");
  is_published_ = true;
  // The name itself. Some file systems cannot, and then need not.
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const shm::Fd parent(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.valid() && ::fsync(parent.get()) != 0 && errno != EINVAL) {
    error_ = errno;
    check("flush the folder that has it");
  }
}

}  // namespace fsdp
