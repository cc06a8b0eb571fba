#include "fsdp_runtime/src/engine/part_groups.h"

#include <map>
#include <mutex>
#include <utility>

namespace fsdp {
namespace {

/// The groups that units have, by the group that was divided and the size of the parts.
class PartGroups {
 public:
  static PartGroups& get() {
    static PartGroups* groups = new PartGroups;  // units may die after the process's static objects
    return *groups;
  }

  std::shared_ptr<Collectives> find(const std::shared_ptr<Collectives>& comm, int64_t ranks) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = parts_.find({comm.get(), ranks});
    // An entry of a group that is gone is not one of `comm`, which has its address.
    const bool is_of_comm = found != parts_.end() && found->second.whole.lock() == comm;
    return is_of_comm ? found->second.part.lock() : nullptr;
  }

  void add(const std::shared_ptr<Collectives>& comm, int64_t ranks,
           const std::shared_ptr<Collectives>& part) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(parts_, [](const auto& entry) { return entry.second.part.expired(); });
    parts_[{comm.get(), ranks}] = {comm, part};
  }

 private:
  struct Part {
    std::weak_ptr<Collectives> whole;
    std::weak_ptr<Collectives> part;
  };
  std::mutex mutex_;  // ranks may be threads
  std::map<std::pair<const Collectives*, int64_t>, Part> parts_;
};

}  // namespace

void check_reshard_after_forward(const std::optional<ReshardAfterForward>& asked, int64_t ranks) {
  if (!asked || !asked->ranks()) {
    return;
  }
  const int64_t part = *asked->ranks();
  TORCH_CHECK(part >= 1 && ranks % part == 0, "reshard_after_forward: ", part,
              " does not divide the ", ranks,
              " ranks that divide the parameters; a divisor of that, true or false expected");
}

std::shared_ptr<Collectives> part_group(const std::optional<ReshardAfterForward>& asked,
                                        const std::shared_ptr<Collectives>& comm) {
  if (!asked || !asked->ranks() || *asked->ranks() == comm->size()) {
    return nullptr;
  }
  const int64_t ranks = *asked->ranks();
  std::shared_ptr<Collectives> part = PartGroups::get().find(comm, ranks);
  if (!part) {
    part = comm->split(comm->rank() / ranks);
    PartGroups::get().add(comm, ranks, part);
  }
  return part;
}

}  // namespace fsdp
