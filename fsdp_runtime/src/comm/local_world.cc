#include "fsdp_runtime/src/comm/local_world.h"

#include <c10/util/Exception.h>

#include "fsdp_runtime/src/comm/shm_collectives.h"
#include "fsdp_runtime/src/comm/single_collectives.h"

namespace fsdp {

std::vector<std::shared_ptr<Collectives>> make_local_world(int64_t size,
                                                           std::chrono::milliseconds timeout) {
  TORCH_CHECK(size >= 1, "make_local_world: at least one rank expected, got ", size);
  if (size == 1) {
    return {make_single_collectives("single")};
  }
  std::shared_ptr<shm::World> world = shm::make_thread_world(static_cast<int>(size));
  std::vector<std::shared_ptr<Collectives>> ranks;
  for (int64_t rank = 0; rank < size; ++rank) {
    ranks.push_back(make_shm_collectives(world, rank, timeout));
  }
  return ranks;
}

}  // namespace fsdp
