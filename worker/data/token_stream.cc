#include "worker/data/token_stream.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "worker/json/strict_json.h"

namespace fsdprun::worker {
namespace {

/// Closes the descriptor also if the constructor throws.
struct ScopedFd {
  int fd;
  ~ScopedFd() {
    if (fd >= 0) {
      close(fd);
    }
  }
};

[[noreturn]] void Refuse(const std::string& path, const std::string& cause) {
  throw ConfigError("cannot read data file " + path + ": " + cause);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const ScopedFd file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) {
    Refuse(path, std::strerror(errno));
  }
  struct stat status {};
  if (fstat(file.fd, &status) != 0) {
    Refuse(path, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    Refuse(path, "it is not a regular file");
  }
  size_ = status.st_size;
  if (size_ == 0) {
    return;
  }
  void* mapped =
      mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, file.fd, /*offset=*/0);
  if (mapped == MAP_FAILED) {
    Refuse(path, std::strerror(errno));
  }
  data_ = static_cast<const uint8_t*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_));
  }
}

TokenStream::TokenStream(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    parts_.push_back({std::make_unique<MappedFile>(path), size_});
    size_ += parts_.back().file->size();
  }
}

void TokenStream::CopyTokens(int64_t begin, int64_t count, int64_t* out) const {
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
    const int64_t length = std::min(count, part->file->size() - offset);
    std::copy_n(part->file->data() + offset, std::max<int64_t>(length, 0), out);
    out += length;
    begin += length;
    count -= length;
  }
}

}  // namespace fsdprun::worker
