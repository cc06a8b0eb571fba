#include "fsdp_runtime/src/engine/part_groups.h"

#include <map>

namespace fsdp {

/// The parts of one group, by their size.
class PartGroups {
 public:
  static std::shared_ptr<Collectives> find_or_split(Collectives& whole, int64_t ranks) {
    if (!whole.parts_) {
      whole.parts_ = std::make_shared<PartGroups>();
    }
    std::shared_ptr<Collectives>& part = whole.parts_->by_size_[ranks];
    if (!part) {
      part = whole.split(whole.rank() / ranks);
    }
    return part;
  }

 private:
  std::map<int64_t, std::shared_ptr<Collectives>> by_size_;
};

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
  return PartGroups::find_or_split(*comm, *asked->ranks());
}

}  // namespace fsdp
