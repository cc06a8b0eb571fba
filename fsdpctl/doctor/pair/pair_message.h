#pragma once

// What two nodes say to each other in a test: frames of a length (four bytes, the highest first)
// and so many bytes of text, lines of `key=value` after the message's kind. Pure.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace fsdprun::doctor {

/// Of who has not proved the token yet, and of who has.
inline constexpr size_t kMostOfStranger = 1024;
inline constexpr size_t kMostOfNode = size_t{1} << 20;
/// One higher with each change that an older program would misunderstand.
inline constexpr char kPairVersion[] = "2";

struct Message {
  std::string kind;
  /// Without line ends in keys and values, or `=` in keys.
  std::map<std::string, std::string> fields;

  /// Empty if it is not there.
  std::string Text(const std::string& key) const;
  /// 0 if it is not there, or is no number.
  int64_t Number(const std::string& key) const;

  bool operator==(const Message&) const = default;
};

/// As a frame.
std::string Framed(const Message& message);
/// Of a frame's text. Unset for what is no message.
std::optional<Message> ParseMessage(absl::string_view text);

/// Puts frames together from what arrives.
class FrameBuffer {
 public:
  explicit FrameBuffer(size_t most) : most_(most) {}

  void Append(absl::string_view bytes) { bytes_.append(bytes.data(), bytes.size()); }
  /// The next frame's text; unset until it is whole.
  std::optional<std::string> Take();
  /// The next frame is longer than it may be: nothing more can be taken.
  bool IsTooLong() const;
  /// From now on.
  void Allow(size_t most) { most_ = most; }
  /// How much more is to be read for the next frame, so that no byte behind it is taken; at
  /// least 1.
  size_t Missing() const;

 private:
  std::optional<size_t> Length() const;

  size_t most_;
  std::string bytes_;
};

}  // namespace fsdprun::doctor
