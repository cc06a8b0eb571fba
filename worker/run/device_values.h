#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdprun::worker {

/// A few numbers of the host on `device`: float32, 1-dim. Without a wait of the host.
at::Tensor ValuesOn(at::Device device, const std::vector<float>& values);

}  // namespace fsdprun::worker
