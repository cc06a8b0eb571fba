#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp_runtime/shm/reduce.h"

namespace fsdp::shm {

enum class Kind : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kBarrier,
  kWindowGather
};

/// What an operation is for. Two texts of which the same is kept still differ.
struct Purpose {
  std::array<char, 64> text{};  // of a longer one the end, which tells more
  uint64_t digest = 0;          // of all of it
  bool operator==(const Purpose&) const = default;
};
Purpose purpose_of(std::string_view text);

/// What one rank contributes to one operation. All but `arena_offset` must be equal on all ranks.
/// Trivially copyable: it lies in shared memory and travels in messages.
struct Descriptor {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kByte;
  ReduceOp op = ReduceOp::kSum;
  /// Of a broadcast. Of a gather through a window: the window's number.
  int32_t root = 0;
  /// Elements per rank (gather, scatter) or in all.
  uint64_t numel = 0;
  /// Where the contribution starts in the rank's arena; kNotInArena: it is staged.
  int64_t arena_offset = 0;
  Purpose purpose{};
};
inline constexpr int64_t kNotInArena = -1;

bool is_same_operation(const Descriptor& a, const Descriptor& b);

/// "all_gather #3 for unit block1 on lane 0 (48 x float32)".
std::string describe(const Descriptor& descriptor, int lane, uint64_t sequence);

/// What to tell if the ranks, by index, have not issued the same operation: who has issued what,
/// and what to look for. `names`: what each rank is called; empty: by its index.
std::string describe_out_of_step(const std::vector<Descriptor>& issued, int lane, uint64_t sequence,
                                 const std::vector<int64_t>& names = {});

}  // namespace fsdp::shm
