#include "formats/safetensors/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kMaxIndexBytes = int64_t{64} << 20;

/// What may pass is not the file's defect: another try may succeed.
[[noreturn]] void ThrowSystemError(const std::string& attempt, int error) {
  const std::string text = attempt + ": " + std::strerror(error);
  if (fsdp::archive::may_pass(error)) {
    throw fsdp::archive::Error(text, error);
  }
  throw ConfigError(text);
}

/// Whether there is something. Throws if that cannot be told for now.
bool IsThere(const std::filesystem::path& path) {
  struct stat status {};
  const int error = stat(path.c_str(), &status) != 0 ? errno : 0;
  if (fsdp::archive::may_pass(error)) {
    ThrowSystemError("cannot look at " + path.string(), error);
  }
  return error == 0;
}

/// Opens for reading and returns the size; the caller owns the descriptor.
int OpenRegular(const std::string& path, int64_t& size) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (fd < 0 || fstat(fd, &status) != 0) {
    const int error = errno;
    if (fd >= 0) {
      close(fd);
    }
    ThrowSystemError("cannot read weights " + path, error);
  }
  if (!S_ISREG(status.st_mode)) {
    close(fd);
    throw ConfigError("cannot read weights " + path + ": it is not a regular file");
  }
  size = status.st_size;
  return fd;
}

void ReadRange(int fd, const std::string& path, int64_t begin, int64_t count, void* out) {
  auto* to = static_cast<char*>(out);
  while (count > 0) {
    const ssize_t got = pread(fd, to, static_cast<size_t>(count), begin);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      const int error = got < 0 ? errno : 0;
      const std::string attempt = path + ": cannot read " + std::to_string(count) +
                                  " bytes at offset " + std::to_string(begin);
      if (error != 0) {
        ThrowSystemError(attempt, error);
      }
      throw ConfigError(attempt + ": the file has become shorter");
    }
    to += got;
    begin += got;
    count -= got;
  }
}

/// The whole file.
std::string ReadIndex(const std::string& path) {
  int64_t byte_count = 0;
  const int fd = OpenRegular(path, byte_count);
  std::string text;
  try {
    if (byte_count > kMaxIndexBytes) {
      throw ConfigError("cannot read weights " + path + ": larger than " +
                        std::to_string(kMaxIndexBytes) + " bytes");
    }
    text.resize(static_cast<size_t>(byte_count));
    ReadRange(fd, path, 0, byte_count, text.data());
  } catch (...) {
    close(fd);
    throw;
  }
  close(fd);
  return text;
}

int64_t DecodeLength(const unsigned char* bytes, int64_t file_bytes, const std::string& path) {
  uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) {
    length = length << 8 | bytes[i];
  }
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    throw ConfigError(path + ": not a safetensors file: header of " + std::to_string(length) +
                      " bytes, at most " + std::to_string(kMaxHeaderBytes) + " are allowed");
  }
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes) {
    throw ConfigError(path + ": truncated: header of " + std::to_string(length) +
                      " bytes in a file of " + std::to_string(file_bytes));
  }
  return static_cast<int64_t>(length);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path.string()) {
  int64_t file_bytes = 0;
  fd_ = OpenRegular(path_, file_bytes);
  try {
    if (file_bytes < kLengthBytes) {
      throw ConfigError(path_ + ": truncated: " + std::to_string(file_bytes) +
                        " bytes are too few for a safetensors file");
    }
    unsigned char length[kLengthBytes];
    Read(0, kLengthBytes, length);
    const int64_t header_bytes = DecodeLength(length, file_bytes, path_);
    std::string text(static_cast<size_t>(header_bytes), '\0');
    Read(kLengthBytes, header_bytes, text.data());
    header_ = ParseSafetensorsHeader(text, kLengthBytes + header_bytes, file_bytes, path_);
  } catch (...) {
    close(fd_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() { close(fd_); }

void SafetensorsFile::Read(int64_t begin, int64_t count, void* out) const {
  ReadRange(fd_, path_, begin, count, out);
}

SafetensorsModel::SafetensorsModel(const std::filesystem::path& directory) {
  const std::filesystem::path single = directory / "model.safetensors";
  const std::filesystem::path index = directory / "model.safetensors.index.json";
  if (IsThere(single)) {
    AddFile(single);
    return;
  }
  if (!IsThere(index)) {
    throw ConfigError("cannot read weights " + directory.string() +
                      ": neither model.safetensors nor model.safetensors.index.json is there");
  }
  const Json document = ParseStrictJson(ReadIndex(index.string()), index.string());
  if (!document.is_object() || !document.contains("weight_map") ||
      !document.at("weight_map").is_object()) {
    throw ConfigError(index.string() + ": expected an object \"weight_map\" of tensor names");
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : document.at("weight_map").items()) {
    const bool is_plain_name =
        file.is_string() && file != "" && file != "." && file != ".." &&
        file.get<std::string>().find_first_of(std::string("/\0", 2)) == std::string::npos;
    if (!is_plain_name) {
      throw ConfigError(index.string() + ": weight_map." + tensor + " = " + Excerpt(file) +
                        ": expected the name of a file in the same directory");
    }
    names.insert(file.get<std::string>());
  }
  for (const std::string& name : names) {
    AddFile(directory / name);
  }
  for (const auto& [tensor, file] : document.at("weight_map").items()) {
    const auto located = tensors_.find(tensor);
    if (located == tensors_.end() ||
        located->second.file->path() != (directory / file.get<std::string>()).string()) {
      throw ConfigError(index.string() + ": tensor " + tensor + " is not in " +
                        file.get<std::string>());
    }
  }
}

void SafetensorsModel::AddFile(const std::filesystem::path& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const auto& [name, entry] : files_.back()->header().tensors) {
    const auto [place, is_new] = tensors_.emplace(name, Located{files_.back().get(), &entry});
    if (!is_new) {
      throw ConfigError("tensor " + name + " is in two files: " + place->second.file->path() +
                        " and " + path.string());
    }
  }
}

}  // namespace fsdprun
