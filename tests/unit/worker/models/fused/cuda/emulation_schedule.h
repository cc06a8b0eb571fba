#pragma once

namespace emulation {

/// Who goes on when several threads of a block could.
struct Schedule {
  /// kTurns: each thread as far as its next meeting, by turns. kAhead: always the first warp of the
  /// order that can, so that it is as far ahead as barriers allow, and the last one behind.
  enum class Kind { kTurns, kAhead };

  Kind kind = Kind::kTurns;
  /// 0: from the first to the last, of threads or warps; 1: the reverse; else the seed of an order.
  unsigned order = 0;
};

}  // namespace emulation
