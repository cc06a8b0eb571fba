#include "fsdp_runtime/src/replicate/gradient_reports.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fsdp_runtime/plan/fnv1a.h"

namespace fsdp {
namespace {

constexpr const char* kGradientsPurpose = "the parameters with gradients";

uint64_t flags_digest(const std::vector<uint8_t>& flags) {
  Fnv1a digest;
  for (const uint8_t flag : flags) {
    digest.mix(flag);
  }
  return digest.digest();
}

at::Tensor flags_tensor(const std::vector<uint8_t>& flags, int64_t rows, int64_t own_row) {
  const auto count = static_cast<int64_t>(flags.size());
  at::Tensor tensor = at::zeros({rows, count}, at::kInt);
  std::copy(flags.begin(), flags.end(), tensor.data_ptr<int32_t>() + own_row * count);
  return tensor;
}

/// The names of parameters with a flag, at most ten of them.
std::string flagged_names(const std::vector<uint8_t>& flags,
                          const std::vector<NamedParameter>& params) {
  constexpr int64_t kMostNames = 10;
  std::string names;
  int64_t count = 0;
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] != 0 && ++count <= kMostNames) {
      names += (count == 1 ? "" : ", ") + params[i].fqn;
    }
  }
  return count > kMostNames ? names + " and " + std::to_string(count - kMostNames) + " more"
                            : names;
}

}  // namespace

FlagExchange::FlagExchange(Collectives& comm, const std::vector<uint8_t>& flags)
    : comm_(comm), flags_(flags) {
  if (comm_.size() > 1) {
    agreement_ = comm_.agree(flags_digest(flags_), "the end of a backward");
  }
}

std::vector<uint8_t> FlagExchange::any() {
  if (!agreement_ || agreement_->wait()) {
    return flags_;
  }
  at::Tensor all = flags_tensor(flags_, 1, 0).to(comm_.device());
  comm_.all_reduce(all, ReduceOp::kMax, {Lane::kReduce, kGradientsPurpose})->wait();
  all = all.cpu();
  comm_.check_results(kGradientsPurpose);
  std::vector<uint8_t> any(flags_.size());
  std::copy_n(all.data_ptr<int32_t>(), any.size(), any.begin());
  return any;
}

std::vector<std::vector<uint8_t>> FlagExchange::by_rank() {
  at::Tensor all = flags_tensor(flags_, comm_.size(), comm_.rank()).to(comm_.device());
  comm_.all_gather_into(all, all.select(0, comm_.rank()), {Lane::kReduce, kGradientsPurpose})
      ->wait();
  all = all.cpu();
  comm_.check_results(kGradientsPurpose);
  std::vector<std::vector<uint8_t>> rows(static_cast<size_t>(comm_.size()),
                                         std::vector<uint8_t>(flags_.size()));
  const int32_t* next = all.data_ptr<int32_t>();
  for (std::vector<uint8_t>& row : rows) {
    std::copy_n(next, row.size(), row.begin());
    next += row.size();
  }
  return rows;
}

std::string missing_gradients_text(const std::vector<std::vector<uint8_t>>& missing,
                                   const std::vector<int64_t>& world_ranks,
                                   const std::vector<NamedParameter>& params, bool is_static) {
  std::string text =
      "DistributedDataParallel: backward has ended, and parameters got no gradient that the other "
      "ranks could wait for:";
  for (size_t rank = 0; rank < missing.size(); ++rank) {
    const std::string names = flagged_names(missing[rank], params);
    if (!names.empty()) {
      text += " on rank " + std::to_string(world_ranks[rank]) + ": " + names + ";";
    }
  }
  text += is_static
              ? " with static_graph each backward uses what the first one used, as often; leave "
                "static_graph out, or run the same graph"
              : " let all outputs of forward take part in the loss, or set "
                "find_unused_parameters, if these are left out on purpose";
  return text + ". The gradients of this backward have been dropped on all ranks";
}

}  // namespace fsdp
