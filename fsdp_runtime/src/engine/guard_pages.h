#pragma once

#include <cstdint>
#include <string>

namespace fsdp {

/// Reserved CPU addresses that can be neither read nor written: what parameters and gradients view
/// while they are not gathered. They cost address space, no memory, and stay reserved when this is
/// destroyed, because tensors may still point there; a later range of the same size takes them
/// over.
///
/// Whoever touches them gets SIGSEGV. Before the handler of that signal that was there at the first
/// construction, or the default action, has its turn, a line on stderr says what was touched and
/// what to do instead. From then on that handler has the signal: if it recovers, as a JVM's does
/// from faults of its own, nothing is said of later ones. Ours stays until the process ends, so the
/// library is not to be unloaded. A line that is being written while another thread takes the range
/// over may be garbled. Thread: one at a time; any for different ranges.
class GuardedRange {
 public:
  explicit GuardedRange(int64_t bytes);
  ~GuardedRange();
  GuardedRange(const GuardedRange&) = delete;
  GuardedRange& operator=(const GuardedRange&) = delete;

  /// nullptr if the system refuses the reservation.
  void* address() const;
  /// What the bytes [begin, end) stand for, in that line: "parameter layers.0.weight". In place of
  /// what has been said of bytes from `begin` on before.
  void set_name(int64_t begin, int64_t end, const std::string& name);

  struct Node;

 private:
  Node* node_;  // null: refused
};

}  // namespace fsdp
