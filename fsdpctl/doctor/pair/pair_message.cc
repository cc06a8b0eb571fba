#include "fsdpctl/doctor/pair/pair_message.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fsdprun::doctor {
namespace {

constexpr size_t kHeaderBytes = 4;

}  // namespace

std::string Message::Text(const std::string& key) const {
  const auto found = fields.find(key);
  return found == fields.end() ? "" : found->second;
}

int64_t Message::Number(const std::string& key) const {
  int64_t number = 0;
  return absl::SimpleAtoi(Text(key), &number) ? number : 0;
}

std::string Framed(const Message& message) {
  std::string text = message.kind;
  for (const auto& [key, value] : message.fields) {
    absl::StrAppend(&text, "\n", key, "=", value);
  }
  std::string frame;
  for (size_t byte = kHeaderBytes; byte-- > 0;) {
    frame.push_back(static_cast<char>(text.size() >> (8 * byte) & 0xff));
  }
  return frame + text;
}

std::optional<Message> ParseMessage(absl::string_view text) {
  Message message;
  bool is_first = true;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t equals = line.find('=');
    if (is_first) {
      message.kind = std::string(line);
      is_first = false;
    } else if (equals == absl::string_view::npos || equals == 0) {
      return std::nullopt;
    } else {
      message.fields[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
    }
  }
  return message.kind.empty() ? std::nullopt : std::optional(std::move(message));
}

std::optional<size_t> FrameBuffer::Length() const {
  if (bytes_.size() < kHeaderBytes) {
    return std::nullopt;
  }
  size_t length = 0;
  for (size_t byte = 0; byte < kHeaderBytes; ++byte) {
    length = length << 8 | static_cast<unsigned char>(bytes_[byte]);
  }
  return length;
}

bool FrameBuffer::IsTooLong() const { return Length().value_or(0) > most_; }

size_t FrameBuffer::Missing() const {
  const size_t needed = IsTooLong() ? 0 : kHeaderBytes + Length().value_or(0);
  return std::max<size_t>(needed - std::min(needed, bytes_.size()), 1);
}

std::optional<std::string> FrameBuffer::Take() {
  const std::optional<size_t> length = Length();
  if (!length.has_value() || IsTooLong() || bytes_.size() < kHeaderBytes + *length) {
    return std::nullopt;
  }
  std::string text = bytes_.substr(kHeaderBytes, *length);
  bytes_.erase(0, kHeaderBytes + *length);
  return text;
}

}  // namespace fsdprun::doctor
