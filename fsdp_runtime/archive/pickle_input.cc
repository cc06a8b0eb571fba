#include "fsdp_runtime/archive/pickle_input.h"

#include "fsdp_runtime/archive/error.h"

namespace fsdp::archive {
namespace {

constexpr size_t kStringBytesMax = size_t{64} << 20;

}  // namespace

void PickleInput::fail(const std::string& problem) const {
  throw Error(what_ + ": the pickle " + problem + " (byte " + std::to_string(position_) + " of " +
              std::to_string(bytes_.size()) + ")");
}

std::string_view PickleInput::take(size_t byte_count) {
  if (byte_count > left()) {
    fail("ends too early");
  }
  const std::string_view taken = bytes_.substr(position_, byte_count);
  position_ += byte_count;
  return taken;
}

uint64_t PickleInput::take_unsigned(int byte_count) {
  const std::string_view bytes = take(static_cast<size_t>(byte_count));
  uint64_t value = 0;
  for (int i = 0; i < byte_count; ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

std::string_view PickleInput::take_line() {
  const size_t end = bytes_.find('\n', position_);
  if (end == std::string_view::npos) {
    fail("ends too early");
  }
  const std::string_view line = bytes_.substr(position_, end - position_);
  position_ = end + 1;
  return line;
}

std::string_view PickleInput::take_text(uint64_t byte_count) {
  if (byte_count > kStringBytesMax) {
    fail("announces a string of " + std::to_string(byte_count) + " bytes, over the bound of " +
         std::to_string(kStringBytesMax));
  }
  return take(byte_count);
}

}  // namespace fsdp::archive
