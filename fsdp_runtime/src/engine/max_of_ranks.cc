#include "fsdp_runtime/src/engine/max_of_ranks.h"

#include <ATen/ATen.h>

namespace fsdp {

at::Tensor max_of_ranks(Collectives& comm, const at::Tensor& own, const std::string& purpose) {
  const at::Tensor values = own.to(comm.device(), at::kInt, /*non_blocking=*/false, /*copy=*/true);
  comm.all_reduce(values, ReduceOp::kMax, {Lane::kReduce, purpose})->wait();
  at::Tensor all = values.cpu();
  comm.check_results("the exchange of " + purpose);
  return all;
}

}  // namespace fsdp
