#include "agent/process/output_tail.h"

#include <algorithm>

namespace fsdprun::keeper {

OutputTail::OutputTail(size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {
  kept_.reserve(2 * capacity_bytes);
}

void OutputTail::Append(std::string_view bytes) {
  total_bytes_ += bytes.size();
  bytes.remove_prefix(bytes.size() - std::min(bytes.size(), capacity_bytes_));
  if (kept_.size() + bytes.size() > 2 * capacity_bytes_) {
    kept_.erase(0, kept_.size() + bytes.size() - capacity_bytes_);
  }
  kept_.append(bytes);
}

std::string_view OutputTail::Text() const {
  const std::string_view kept = kept_;
  return kept.substr(kept.size() - std::min(kept.size(), capacity_bytes_));
}

std::vector<std::string> LastLines(std::string_view text, int line_count, bool is_cut) {
  if (text.empty() || line_count <= 0) {
    return {};
  }
  if (text.back() == '\n') {
    text.remove_suffix(1);
  }
  std::vector<std::string> lines;
  size_t end = text.size();
  for (;;) {
    const size_t newline = end == 0 ? std::string_view::npos : text.rfind('\n', end - 1);
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    std::string line(text.substr(begin, end - begin));
    lines.push_back(begin == 0 && is_cut ? "..." + line : line);
    if (newline == std::string_view::npos || lines.size() == static_cast<size_t>(line_count)) {
      break;
    }
    end = newline;
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace fsdprun::keeper
