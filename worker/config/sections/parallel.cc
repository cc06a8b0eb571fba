#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {
namespace {

bool IsTimeout(const Json& value) {
  constexpr int64_t kWeek = 7 * 24 * 3600;
  return IsCount<1>(value) && value.get<int64_t>() <= kWeek;
}

}  // namespace

std::vector<ConfigKey> ParallelKeys() {
  using enum ValueKind;
  return {
      {"parallel.backend", kString, "\"auto\"", "\"auto\", \"shm\", \"gloo\" or \"nccl\"",
       "collectives; auto: nccl with GPUs, shm on one host, else gloo",
       [](const Json& value) {
         return IsOneOf(value, {"auto", "shm", "gloo", "nccl"});
       }},
      {"parallel.strategy", kString, "\"full_shard\"", "\"full_shard\" or \"shard_grad_op\"",
       "full_shard frees parameters after forward, shard_grad_op after backward",
       [](const Json& value) {
         return IsOneOf(value, {"full_shard", "shard_grad_op"});
       }},
      {"parallel.dp_replicate", kInteger, "1", "an integer >= 1 that divides the world size",
       "copies of the sharded model, each on its own ranks (hybrid sharding)", IsCount<1>},
      {"parallel.timeout_seconds", kInteger, "600", "an integer from 1 to 604800",
       "how long a rank waits for the others in a collective before the job fails", IsTimeout},
      {"parallel.tp", kInteger, "1", "1 (tensor parallelism is not supported)",
       "ranks that split each matrix", [](const Json& value) { return value == 1; }},
  };
}

}  // namespace fsdprun::worker
