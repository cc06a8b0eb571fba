#pragma once

// Fields of one frame between the agent and fsdp-keeper; what a frame means is keeper_protocol.h's.
// Standard library only.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "agent/process/keeper_protocol.h"

namespace fsdprun::keeper {

/// Appends one frame to a string; the length is filled in by the destructor.
class FrameWriter {
 public:
  FrameWriter(uint8_t type, std::string& out) : out_(out), start_(out.size()) {
    out_.append(kFrameHeaderBytes, '\0');
    Int(type);
  }
  ~FrameWriter() {
    const auto length = static_cast<uint32_t>(out_.size() - start_ - kFrameHeaderBytes);
    std::memcpy(out_.data() + start_, &length, sizeof(length));
  }
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  template <class Integer>
  FrameWriter& Int(Integer value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  FrameWriter& Text(std::string_view text) {
    Int(static_cast<uint32_t>(text.size()));
    out_.append(text);
    return *this;
  }
  FrameWriter& Ints(const std::vector<int32_t>& numbers) {
    Int(static_cast<uint32_t>(numbers.size()));
    for (const int32_t number : numbers) {
      Int(number);
    }
    return *this;
  }
  FrameWriter& List(const std::vector<std::string>& list) {
    Int(static_cast<uint32_t>(list.size()));
    for (const std::string& text : list) {
      Text(text);
    }
    return *this;
  }

 private:
  std::string& out_;
  const size_t start_;
};

/// Reads fields in order. After the first field that does not fit, everything reads as zero and
/// Done() is false.
class FrameReader {
 public:
  explicit FrameReader(std::string_view frame) : left_(frame) {}

  template <class Integer>
  Integer Int() {
    Integer value{};
    if (left_.size() < sizeof(value)) {
      Break();
      return value;
    }
    std::memcpy(&value, left_.data(), sizeof(value));
    left_.remove_prefix(sizeof(value));
    return value;
  }
  bool Flag() {
    const auto value = Int<uint8_t>();
    if (value > 1) {
      Break();
    }
    return value == 1;
  }
  Stream StreamField() { return Flag() ? Stream::kStderr : Stream::kStdout; }
  std::string Text() {
    const auto size = Int<uint32_t>();
    if (left_.size() < size) {
      Break();
      return "";
    }
    std::string text(left_.substr(0, size));
    left_.remove_prefix(size);
    return text;
  }
  /// Numbers in 0..`maximum`.
  std::vector<int32_t> Ints(int32_t maximum) {
    std::vector<int32_t> numbers(Count());
    for (int32_t& number : numbers) {
      number = Int<int32_t>();
      if (number < 0 || number > maximum) {
        Break();
      }
    }
    return numbers;
  }
  std::vector<std::string> List() {
    const uint32_t count = Count();
    std::vector<std::string> list;
    list.reserve(count);
    for (uint32_t i = 0; i < count && !broken_; ++i) {
      list.push_back(Text());
    }
    return list;
  }
  /// A slot, or kAllRanks where the command allows it.
  int32_t LocalRank(bool may_be_all) {
    const auto rank = Int<int32_t>();
    if (rank < (may_be_all ? kAllRanks : 0) || rank > kMaxLocalRank) {
      Break();
    }
    return rank;
  }
  bool Done() const { return !broken_ && left_.empty(); }

 private:
  void Break() {
    broken_ = true;
    left_ = {};
  }
  /// Of elements that take four bytes or more, so that a huge count cannot reserve or loop.
  uint32_t Count() {
    const auto count = Int<uint32_t>();
    if (left_.size() / sizeof(uint32_t) < count) {
      Break();
      return 0;
    }
    return count;
  }

  std::string_view left_;
  bool broken_ = false;
};

}  // namespace fsdprun::keeper
