#include "worker/models/key_value_cache.h"

#include <ATen/ATen.h>

namespace fsdprun::worker {

std::pair<at::Tensor, at::Tensor> LayerCache::Append(const at::Tensor& keys,
                                                     const at::Tensor& values) {
  const int64_t added = keys.size(2);
  TORCH_CHECK(length_ + added <= capacity_, "a cache of keys and values for ", capacity_,
              " tokens has ", length_, " and gets ", added, " more");
  if (!keys_.defined()) {
    const std::vector<int64_t> sizes{keys.size(0), keys.size(1), capacity_, keys.size(3)};
    keys_ = at::empty(sizes, keys.options());
    values_ = at::empty(sizes, values.options());
  }
  keys_.narrow(2, length_, added).copy_(keys);
  values_.narrow(2, length_, added).copy_(values);
  length_ += added;
  return {keys_.narrow(2, 0, length_), values_.narrow(2, 0, length_)};
}

}  // namespace fsdprun::worker
