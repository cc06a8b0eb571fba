#include "worker/contract/error_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <system_error>

namespace fsdprun::worker {
namespace {

using Json = nlohmann::json;

std::string Problem(const char* attempted, const std::string& path) {
  return std::string(attempted) + " " + path + ": " + std::generic_category().message(errno);
}

bool WriteAll(int fd, const std::string& text) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t n = ::write(fd, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return false;
    }
    written += static_cast<size_t>(n);
  }
  return true;
}

std::string WriteAtomically(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return Problem("create", temporary);
  }
  const bool is_written = WriteAll(fd, text) && ::fsync(fd) == 0;
  std::string problem = is_written ? "" : Problem("write", temporary);
  ::close(fd);
  if (is_written && ::rename(temporary.c_str(), path.c_str()) != 0) {
    problem = Problem("rename to", path);
  }
  if (!problem.empty()) {
    ::unlink(temporary.c_str());
  }
  return problem;
}

}  // namespace

std::string WriteErrorFile(const std::string& path, std::string_view type, std::string_view text,
                           std::string_view stack) {
  if (path.empty()) {
    return "";
  }
  try {
    const std::string message = std::string(type) + ": " + std::string(text);
    const Json extra = {{"py_callstack", stack.empty() ? message : std::string(stack)},
                        {"timestamp", std::to_string(static_cast<long long>(std::time(nullptr)))}};
    const Json file = {{"message", {{"message", message}, {"extraInfo", extra}}}};
    return WriteAtomically(path, file.dump(-1, ' ', false, Json::error_handler_t::replace));
  } catch (const std::exception& error) {  // The failure being reported may be lack of memory.
    return std::string("write the error file: ") + error.what();
  }
}

}  // namespace fsdprun::worker
