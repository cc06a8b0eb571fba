#include "worker/data/data_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "worker/data/open_file_limit.h"

namespace fsdprun::worker {
namespace {

[[noreturn]] void RefuseFile(const std::string& path, const std::string& cause) {
  throw ConfigError("cannot read data file " + path + ": " + cause);
}

int OpenForReading(const std::string& path) {
  for (;;) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 || errno != EMFILE || !RaiseOpenFileLimit()) {
      return fd;
    }
  }
}

}  // namespace

DataFile::DataFile(const std::string& path) : path_(path), fd_(OpenForReading(path)) {
  if (fd_ < 0) {
    RefuseFile(path, std::strerror(errno));
  }
  struct stat status {};
  const int error = fstat(fd_, &status) != 0 ? errno : 0;
  if (error != 0 || !S_ISREG(status.st_mode)) {
    close(fd_);
    RefuseFile(path, error != 0 ? std::strerror(error) : "it is not a regular file");
  }
  size_ = status.st_size;
}

DataFile::~DataFile() { close(fd_); }

void DataFile::read(int64_t offset, void* out, int64_t byte_count) const {
  auto* to = static_cast<uint8_t*>(out);
  while (byte_count > 0) {
    const ssize_t got = pread(fd_, to, static_cast<size_t>(byte_count), offset);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      const std::string cause =
          got < 0 ? std::strerror(errno)
                  : "it had " + std::to_string(size_) +
                        " bytes when the run began and has become shorter; restore it, and do not "
                        "change data files while a job reads them";
      throw DataError("cannot read data file " + path_ + " at offset " + std::to_string(offset) +
                      ": " + cause);
    }
    offset += got;
    byte_count -= got;
    to += got;
  }
}

}  // namespace fsdprun::worker
