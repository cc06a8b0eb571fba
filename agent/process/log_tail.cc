#include "agent/process/log_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/unique_fd.h"

namespace fsdprun {

std::vector<std::string> TailLines(const std::string& path, int line_count, size_t max_bytes) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      line_count <= 0) {
    return {};
  }
  const auto size = static_cast<size_t>(status.st_size);
  const size_t start = size > max_bytes ? size - max_bytes : 0;
  std::string text(size - start, '\0');
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), static_cast<off_t>(start));
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  if (!text.empty() && text.back() == '\n') {
    text.pop_back();
  } else if (text.empty()) {
    return {};
  }
  std::vector<std::string> lines;
  size_t end = text.size();
  for (;;) {
    const size_t newline = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    const bool is_cut = begin == 0 && start > 0;
    lines.push_back((is_cut ? "..." : "") + text.substr(begin, end - begin));
    if (newline == std::string::npos || lines.size() == static_cast<size_t>(line_count)) {
      break;
    }
    end = newline;
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace fsdprun
