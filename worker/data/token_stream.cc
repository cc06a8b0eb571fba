#include "worker/data/token_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "formats/json/strict_json.h"
#include "worker/data/open_file_limit.h"

namespace fsdprun::worker {
namespace {

[[noreturn]] void Refuse(const std::string& path, const std::string& cause) {
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
    Refuse(path, std::strerror(errno));
  }
  struct stat status {};
  const int error = fstat(fd_, &status) != 0 ? errno : 0;
  if (error != 0 || !S_ISREG(status.st_mode)) {
    close(fd_);
    Refuse(path, error != 0 ? std::strerror(error) : "it is not a regular file");
  }
  size_ = status.st_size;
}

DataFile::~DataFile() { close(fd_); }

void DataFile::Read(int64_t offset, int64_t count, uint8_t* out) const {
  while (count > 0) {
    const ssize_t got = pread(fd_, out, static_cast<size_t>(count), offset);
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
    count -= got;
    out += got;
  }
}

TokenStream::TokenStream(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    parts_.push_back({std::make_unique<DataFile>(path), size_});
    size_ += parts_.back().file->size();
  }
}

void TokenStream::CopyTokens(int64_t begin, int64_t count, int64_t* out) const {
  std::vector<uint8_t> bytes(static_cast<size_t>(std::clamp<int64_t>(count, 0, size_)));
  CopyBytes(begin, count, bytes.data());
  std::copy(bytes.begin(), bytes.end(), out);
}

void TokenStream::CopyBytes(int64_t begin, int64_t count, uint8_t* out) const {
  if (begin < 0 || count < 0 || begin > size_ - count) {
    throw std::out_of_range("tokens [" + std::to_string(begin) + ", +" + std::to_string(count) +
                            ") of a stream of " + std::to_string(size_));
  }
  if (count == 0) {
    return;
  }
  auto part =
      std::upper_bound(parts_.begin(), parts_.end(), begin,
                       [](int64_t position, const Part& other) { return position < other.begin; });
  for (--part; count > 0; ++part) {
    const int64_t offset = begin - part->begin;
    const int64_t length = std::max<int64_t>(0, std::min(count, part->file->size() - offset));
    part->file->Read(offset, length, out);
    out += length;
    begin += length;
    count -= length;
  }
}

}  // namespace fsdprun::worker
