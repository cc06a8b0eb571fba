#include "fsdp_runtime/src/state_dict/saved_file.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fsdp_runtime/archive/error.h"
#include "fsdp_runtime/src/state_dict/element_types.h"

namespace fsdp {
namespace {

constexpr int64_t kPickleBytesMax = int64_t{256} << 20;
constexpr int64_t kByteOrderBytesMax = 16;

[[noreturn]] void fail_to(const std::string& attempt, const std::string& path, int error) {
  throw archive::Error(path + ": cannot " + attempt + ": " + std::strerror(error), error);
}

/// Of a regular file; another one has none.
int64_t bytes_of(int fd, const std::string& path) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) {
    fail_to("look at it", path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw archive::Error(path + " is no file");
  }
  return status.st_size;
}

}  // namespace

SavedFile::SavedFile(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (!fd_.valid()) {
    fail_to("open it", path_, errno);
  }
  bytes_ = bytes_of(fd_.get(), path_);
  records_ = archive::read_zip(*this, path_);
  if (records_.count("byteorder") != 0 &&
      small_record("byteorder", kByteOrderBytesMax) != "little") {
    throw archive::Error(path_ + " was written on a big-endian machine, which is not read here");
  }
}

void SavedFile::read(int64_t offset, void* out, int64_t byte_count) const {
  auto* next = static_cast<char*>(out);
  while (byte_count > 0) {
    const ssize_t got = ::pread(fd_.get(), next, static_cast<size_t>(byte_count), offset);
    if (got == 0) {
      throw archive::Error(path_ + " has become shorter while it was read");
    }
    if (got < 0 && errno != EINTR) {
      fail_to("read it", path_, errno);
    }
    if (got > 0) {
      next += got;
      offset += got;
      byte_count -= got;
    }
  }
}

const archive::ZipRecord& SavedFile::record(const std::string& name) const {
  const auto found = records_.find(name);
  if (found == records_.end()) {
    throw archive::Error(path_ + ": the archive has no record " + name);
  }
  return found->second;
}

std::string SavedFile::small_record(const std::string& name, int64_t bytes_max) const {
  const archive::ZipRecord& found = record(name);
  if (found.byte_count > bytes_max) {
    throw archive::Error(path_ + ": record " + name + " has " + std::to_string(found.byte_count) +
                         " bytes, over the bound of " + std::to_string(bytes_max));
  }
  std::string bytes(static_cast<size_t>(found.byte_count), '\0');
  archive::read_record(*this, found, bytes.data(), path_ + ": record " + name);
  return bytes;
}

std::string SavedFile::pickle() const { return small_record("data.pkl", kPickleBytesMax); }

at::Tensor SavedFile::tensor(const archive::SavedTensor& saved) {
  const archive::ZipRecord& found = record(saved.record);
  archive::check_within(saved, found.byte_count, path_ + ": a tensor");
  auto storage = storages_.find(saved.record);
  if (storage == storages_.end()) {
    const at::Tensor bytes = at::empty({found.byte_count}, at::kByte);
    archive::read_record(*this, found, bytes.data_ptr(), path_ + ": record " + saved.record);
    storage = storages_.emplace(saved.record, bytes.storage()).first;
  }
  at::Tensor made = at::empty({0}, dtype_of(*saved.type));
  made.set_(storage->second, saved.offset, saved.sizes, saved.strides);
  return made;
}

}  // namespace fsdp
