#pragma once

#include <string>

#include "base/mono_time.h"
#include "base/unique_fd.h"

namespace fsdprun::top {

/// Writes to a terminal without waiting for it: somebody may have stopped its output, or nobody
/// reads it. Thread: one.
class TerminalWriter {
 public:
  /// `terminal` is a descriptor of it, whose flags stay as they are.
  explicit TerminalWriter(int terminal);

  /// Poll it for being writable where something is left.
  int fd() const { return fd_.get(); }
  bool has_unwritten() const { return !unwritten_.empty(); }
  void Add(std::string bytes) { unwritten_ += bytes; }
  /// Writes as much as the terminal takes now.
  void Flush();
  /// Writes all within `limit`, or makes the terminal forget what it has not shown and take output
  /// again. What is written next does not block, if it is little.
  void Finish(Duration limit);

 private:
  bool CanWrite(int wait_ms) const;

  UniqueFd fd_;
  const bool may_block_;
  std::string unwritten_;
};

}  // namespace fsdprun::top
