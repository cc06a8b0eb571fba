#include "agent/process/log_follower.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace fsdprun {
namespace {

constexpr size_t kReadBytes = 64u << 10;

}  // namespace

LogFollower::LogFollower(std::string path, LineSink sink)
    : path_(std::move(path)), sink_(std::move(sink)) {}

void LogFollower::GrewTo(uint64_t size_bytes) {
  if (!file_.valid()) {
    file_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  }
  char buffer[kReadBytes];
  while (file_.valid() && offset_ < size_bytes) {
    const auto wanted =
        static_cast<size_t>(std::min<uint64_t>(sizeof(buffer), size_bytes - offset_));
    const ssize_t got = ::pread(file_.get(), buffer, wanted, static_cast<off_t>(offset_));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return;
    }
    offset_ += static_cast<uint64_t>(got);
    Feed(std::string_view(buffer, static_cast<size_t>(got)));
  }
}

void LogFollower::Feed(std::string_view data) {
  while (!data.empty()) {
    const size_t room = kMaxPieceBytes - partial_.size();
    const size_t end = data.substr(0, room).find('\n');
    if (end != std::string_view::npos) {
      partial_.append(data.substr(0, end));
      data.remove_prefix(end + 1);
      Emit(partial_, /*ends_line=*/true);
      partial_.clear();
      continue;
    }
    const size_t taken = std::min(room, data.size());
    partial_.append(data.substr(0, taken));
    data.remove_prefix(taken);
    if (partial_.size() == kMaxPieceBytes) {
      Emit(partial_, /*ends_line=*/false);
      partial_.clear();
    }
  }
}

void LogFollower::Finish() {
  if (!partial_.empty() || in_line_) {
    Emit(partial_, /*ends_line=*/true);
    partial_.clear();
  }
  file_.reset();
}

void LogFollower::Emit(std::string_view text, bool ends_line) {
  const bool starts_line = !in_line_;
  in_line_ = !ends_line;
  sink_(text, starts_line, ends_line);
}

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
