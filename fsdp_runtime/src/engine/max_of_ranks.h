#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>

#include <string>

namespace fsdp {

/// Element by element, the greatest of the ranks of `comm`: int32, on the CPU, as `own` is. What
/// peers see it for: `purpose`, such as "the parameters in use". Collective, and blocks the host.
/// Throws like Work::wait().
at::Tensor max_of_ranks(Collectives& comm, const at::Tensor& own, const std::string& purpose);

}  // namespace fsdp
