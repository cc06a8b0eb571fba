#include "fsdp_runtime/src/comm/local_world.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <string>

#include "fsdp_runtime/src/comm/shm_collectives.h"
#include "fsdp_runtime/src/comm/single_collectives.h"

namespace fsdp {
namespace {

/// The memory of parts that some of their ranks have not joined yet. Shared by the ranks.
class Parts {
 public:
  std::shared_ptr<shm::World> join(const std::string& part, size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    Part& found = parts_[part];
    if (!found.world) {
      found.world = shm::make_thread_world(static_cast<int>(size));
    }
    std::shared_ptr<shm::World> world = found.world;
    if (++found.joined == size) {
      parts_.erase(part);
    }
    return world;
  }

 private:
  struct Part {
    std::shared_ptr<shm::World> world;
    size_t joined = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Part> parts_;  // guarded by mutex_
};

using PartsPtr = std::shared_ptr<Parts>;

std::shared_ptr<Collectives> make_rank(const PartsPtr& parts, std::shared_ptr<shm::World> world,
                                       const GroupPlace& place) {
  std::shared_ptr<FormedCollectives> group = make_shm_collectives(std::move(world), place);
  group->set_form_part(
      [parts, place](const std::string& part, int64_t rank, const std::vector<int64_t>& members) {
        GroupPlace own = place;
        own.rank = rank;
        own.size = static_cast<int64_t>(members.size());
        own.name += "/" + part;
        own.world_ranks = place.world_ranks_of(members);
        return own.size == 1 ? make_single_collectives("single", c10::kCPU, own)
                             : make_rank(parts, parts->join(own.name, members.size()), own);
      });
  return group;
}

}  // namespace

std::vector<std::shared_ptr<Collectives>> make_local_world(int64_t size,
                                                           std::chrono::milliseconds timeout) {
  TORCH_CHECK(size >= 1, "make_local_world: at least one rank expected, got ", size);
  if (size == 1) {
    return {make_single_collectives("single")};
  }
  std::shared_ptr<shm::World> world = shm::make_thread_world(static_cast<int>(size));
  const auto parts = std::make_shared<Parts>();
  std::vector<std::shared_ptr<Collectives>> ranks;
  for (int64_t rank = 0; rank < size; ++rank) {
    ranks.push_back(make_rank(parts, world,
                              {.rank = rank,
                               .size = size,
                               .timeout = timeout,
                               .name = "local",
                               .membership = std::make_shared<Membership>(rank)}));
  }
  return ranks;
}

}  // namespace fsdp
