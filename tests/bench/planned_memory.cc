// What fsdp-train's model takes on a rank, by the plan.
//
//   planned_memory CONFIG RANKS
//
// CONFIG: of fsdp-train. Prints a JSON object of bytes for one of RANKS ranks of one host, which
// gather through windows; for one rank, alone. bench_memory.py compares that with what the job
// takes.

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <string>

#include "fsdp_runtime/src/engine/planned_memory.h"
#include "tests/bench/instant_collectives.h"
#include "worker/config/config.h"
#include "worker/run/sharded_model.h"
#include "worker/world/world.h"

namespace {

int run(const std::string& path, int64_t ranks) {
  const auto config = fsdprun::worker::ParseConfig(fsdprun::worker::ResolveConfig(path, {}));
  fsdprun::worker::World world;
  world.group = std::make_shared<fsdp::bench::InstantCollectives>(
      ranks, ranks == 1 ? 0 : ::sysconf(_SC_PAGESIZE));
  fsdprun::worker::ArrangeRanks(config.parallel.dp_replicate, world);
  const fsdprun::worker::ShardedModel model =
      fsdprun::worker::ShardModel(config, fsdprun::ReadModelConfig(config.model.config), world);
  const fsdp::plan::MemoryPlan plan =
      fsdp::planned_memory(model.root, {.adds_gradients = config.train.grad_accumulation > 1});
  std::cout << "{\"shards\": " << plan.shard_bytes << ", \"gradients\": " << plan.gradient_bytes
            << ", \"optimizer\": " << plan.optimizer_bytes
            << ", \"parameter_slots\": " << plan.parameter_slot_bytes
            << ", \"gradient_slots\": " << plan.gradient_slot_bytes
            << ", \"peak\": " << plan.peak_bytes() << "}\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t ranks = argc == 3 ? std::atoll(argv[2]) : 0;
  if (ranks < 1) {
    std::cerr << "usage: planned_memory CONFIG RANKS\n";
    return 2;
  }
  try {
    return run(argv[1], ranks);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
