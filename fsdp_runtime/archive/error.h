#pragma once

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <utility>

namespace fsdp::archive {

/// What is wrong with a file: one line that says what was attempted, on which file or tensor, and
/// what to do next; control characters, which quoted names may hold, are replaced.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string message, int error_number = 0)
      : std::runtime_error(one_line(std::move(message))), error_number_(error_number) {}

  /// The errno of the call that failed; 0: it was no system call.
  int error_number() const { return error_number_; }

 private:
  static std::string one_line(std::string message) {
    std::replace_if(
        message.begin(), message.end(),
        [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; }, '?');
    return message;
  }

  int error_number_;
};

/// Whether a call that failed so may succeed later without a change of the configuration: a full
/// disk, an I/O error, a stale handle; not a missing permission or a file in the way. 0: no.
inline bool may_pass(int error) {
  switch (error) {
    case 0:
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOENT:
    case ENOTDIR:
    case EEXIST:
    case EISDIR:
    case EINVAL:
    case ELOOP:
    case ENAMETOOLONG:
    case ENXIO:
      return false;
    default:
      return true;
  }
}

}  // namespace fsdp::archive
