#include "worker/checkpoint/pickle_input.h"

#include "worker/checkpoint/error.h"

namespace fsdprun::worker::checkpoint {
namespace {

constexpr size_t kStringBytesMax = size_t{64} << 20;

}  // namespace

void PickleInput::Fail(const std::string& problem) const {
  throw CheckpointError(what_ + ": the pickle " + problem + " (byte " + std::to_string(position_) +
                        " of " + std::to_string(bytes_.size()) + ")");
}

std::string_view PickleInput::Take(size_t byte_count) {
  if (byte_count > left()) {
    Fail("ends too early");
  }
  const std::string_view taken = bytes_.substr(position_, byte_count);
  position_ += byte_count;
  return taken;
}

uint64_t PickleInput::TakeUnsigned(int byte_count) {
  const std::string_view bytes = Take(static_cast<size_t>(byte_count));
  uint64_t value = 0;
  for (int i = 0; i < byte_count; ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

std::string_view PickleInput::TakeLine() {
  const size_t end = bytes_.find('\n', position_);
  if (end == std::string_view::npos) {
    Fail("ends too early");
  }
  const std::string_view line = bytes_.substr(position_, end - position_);
  position_ = end + 1;
  return line;
}

std::string_view PickleInput::TakeText(uint64_t byte_count) {
  if (byte_count > kStringBytesMax) {
    Fail("announces a string of " + std::to_string(byte_count) + " bytes, over the bound of " +
         std::to_string(kStringBytesMax));
  }
  return Take(byte_count);
}

}  // namespace fsdprun::worker::checkpoint
