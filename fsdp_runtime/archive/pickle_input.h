#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::archive {

/// The bytes of one pickle and the read position. Views point into `bytes`. Errors: Error, thrown
/// by fail(), for a read past the end.
class PickleInput {
 public:
  /// Both must outlive the object.
  PickleInput(std::string_view bytes, const std::string& what) : bytes_(bytes), what_(what) {}

  /// Throws Error: "<what>: the pickle <problem> (byte 3 of 10)".
  [[noreturn]] void fail(const std::string& problem) const;

  std::string_view take(size_t byte_count);
  /// A little-endian number of at most 8 bytes.
  uint64_t take_unsigned(int byte_count);
  /// Up to the next newline, which is taken too.
  std::string_view take_line();
  /// As take(), for a length that the pickle states.
  std::string_view take_text(uint64_t byte_count);

  size_t size() const { return bytes_.size(); }
  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }

 private:
  std::string_view bytes_;
  const std::string& what_;
  size_t position_ = 0;
};

}  // namespace fsdp::archive
