#include "agent/process/error_file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/unique_fd.h"

namespace fsdprun {
namespace {

using Json = nlohmann::json;

ErrorFileResult Problem(std::string text) {
  return {.error = std::nullopt, .problem = std::move(text)};
}

std::chrono::nanoseconds Since(const timespec& then) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::max(std::chrono::seconds(now.tv_sec - then.tv_sec) +
                      std::chrono::nanoseconds(now.tv_nsec - then.tv_nsec),
                  std::chrono::nanoseconds(0));
}

/// A server keeps the time of its files by its own clock.
bool IsOnNetwork(int file) {
  constexpr unsigned kNfs = 0x6969, kSmb = 0xfe534d42, kCifs = 0xff534d42, kFuse = 0x65735546,
                     kLustre = 0x0bd00bd0, kCeph = 0x00c36400, kGpfs = 0x47504653;
  struct statfs system {};
  if (::fstatfs(file, &system) != 0) {
    return true;
  }
  const auto type = static_cast<unsigned>(system.f_type);
  return type == kNfs || type == kSmb || type == kCifs || type == kFuse || type == kLustre ||
         type == kCeph || type == kGpfs;
}

/// False with `problem` set when the file cannot be read completely.
bool ReadWhole(const std::string& path, WorkerError& error, std::string& problem) {
  // O_NONBLOCK: a worker may have left a FIFO there.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    problem = errno == ENOENT || errno == ENOTDIR
                  ? kErrorFileNotWritten
                  : "cannot be opened: " + std::generic_category().message(errno);
    return false;
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    problem = "is not a regular file";
    return false;
  }
  if (static_cast<uint64_t>(status.st_size) > kMaxErrorFileBytes) {
    problem = "is too large (" + std::to_string(status.st_size) + " bytes, read up to " +
              std::to_string(kMaxErrorFileBytes) + ")";
    return false;
  }
  std::string& text = error.json;
  text.resize(static_cast<size_t>(status.st_size));
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  if (!IsOnNetwork(file.get())) {
    error.age = Since(status.st_mtim);
  }
  return true;
}

std::optional<int64_t> ParseTimestamp(const Json& value) {
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  if (value.is_number_float() && value.get<double>() > 0 && value.get<double>() < 1e15) {
    return static_cast<int64_t>(value.get<double>());
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    int64_t seconds = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (result.ec == std::errc() && !text.empty()) {
      return seconds;
    }
  }
  return std::nullopt;
}

const Json& Field(const Json& object, const char* name) {
  static const Json kNone;
  if (!object.is_object()) {
    return kNone;
  }
  const auto it = object.find(name);
  return it == object.end() ? kNone : *it;
}

}  // namespace

ErrorFileResult ReadErrorFile(const std::string& path) {
  if (path.empty()) {
    return Problem("no error file was requested");
  }
  WorkerError error;
  std::string problem;
  if (!ReadWhole(path, error, problem)) {
    return Problem(problem);
  }
  if (error.json.empty()) {
    return Problem("is empty (the worker died while writing it, or its disk is full)");
  }
  const Json file = Json::parse(error.json, nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded()) {
    return Problem("is not valid JSON (cut short?)");
  }
  const Json& outer = Field(file, "message");
  const Json& text = outer.is_object() ? Field(outer, "message") : outer;
  if (!text.is_string()) {
    return Problem("has no message");
  }
  error.message = text.get<std::string>();
  const Json& extra = Field(outer, "extraInfo");
  const Json& stack = Field(extra, "py_callstack");
  error.stack = stack.is_string() ? stack.get<std::string>() : error.message;
  error.timestamp_s =
      ParseTimestamp(outer.is_object() ? Field(extra, "timestamp") : Field(file, "timestamp"));
  return {.error = std::move(error), .problem = ""};
}

}  // namespace fsdprun
