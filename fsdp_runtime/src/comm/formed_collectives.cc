#include "fsdp_runtime/src/comm/formed_collectives.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace fsdp {

std::shared_ptr<Collectives> FormedCollectives::split(int64_t color) {
  if (!form_part_) {
    return Collectives::split(color);
  }
  at::Tensor colors = at::empty({size()}, at::TensorOptions().dtype(at::kLong).device(device()));
  colors.narrow(0, rank(), 1).fill_(color);
  all_gather_into(colors, colors.narrow(0, rank(), 1), {Lane::kGather, "the division of a group"})
      ->wait();
  colors = colors.cpu();
  check_results("the division of a group");
  int64_t part_rank = 0;
  std::vector<int64_t> members;
  for (int64_t other = 0; other < size(); ++other) {
    if (colors.const_data_ptr<int64_t>()[other] == color) {
      part_rank += other < rank() ? 1 : 0;
      members.push_back(other);
    }
  }
  return form_part_("split" + std::to_string(splits_++) + "/" + std::to_string(color), part_rank,
                    members);
}

std::shared_ptr<Collectives> FormedCollectives::shrink(const std::vector<int64_t>& ranks_to_exclude,
                                                       std::chrono::milliseconds patience) {
  return form_shrunk_ ? form_shrunk_(ranks_to_exclude, patience)
                      : Collectives::shrink(ranks_to_exclude, patience);
}

}  // namespace fsdp
