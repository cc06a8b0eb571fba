#include "fsdp_runtime/src/engine/placement_agreement.h"

#include <ATen/ATen.h>

#include <limits>

#include "fsdp_runtime/plan/fnv1a.h"
#include "fsdp_runtime/src/engine/max_of_ranks.h"

namespace fsdp {
namespace {

enum Column : int64_t { kDim, kNegatedDim, kIdentity, kNegatedIdentity, kColumns };

/// Of name and shape: the same number for the same parameter.
int32_t identity_of(const NamedParameter& param) {
  Fnv1a digest;
  for (const char letter : param.fqn) {
    digest.mix(static_cast<unsigned char>(letter));
  }
  for (const int64_t size : param.tensor.sizes()) {
    digest.mix(static_cast<uint64_t>(size));
  }
  return static_cast<int32_t>(digest.digest() % std::numeric_limits<int32_t>::max());
}

/// [params, kColumns]. The greatest of all ranks' rows tell the least numbers, too.
at::Tensor rows_of(const std::vector<NamedParameter>& params) {
  const at::Tensor rows = at::empty({static_cast<int64_t>(params.size()), kColumns}, at::kInt);
  auto* next = rows.data_ptr<int32_t>();
  for (const NamedParameter& param : params) {
    const auto dim = static_cast<int32_t>(param.shard_dim.value());
    const int32_t identity = identity_of(param);
    for (const int32_t value : {dim, -dim, identity, -identity}) {
      *next++ = value;
    }
  }
  return rows;
}

/// What the ranks have, as one of them knows it so far.
struct Known {
  at::Tensor counts;  // the greatest number of parameters, and the least, negated
  at::Tensor rows;    // the greatest of each, while all have as many

  bool are_as_many() const {
    const auto* values = counts.const_data_ptr<int32_t>();
    return values[0] == -values[1];
  }
  uint64_t digest() const {
    Fnv1a digest;
    for (const at::Tensor& part : {counts, rows}) {
      const auto* values = part.const_data_ptr<int32_t>();
      for (int64_t i = 0; i < part.numel(); ++i) {
        digest.mix(static_cast<uint32_t>(values[i]));
      }
    }
    return digest.digest();
  }
};

/// Asks for the greatest only if the ranks do not know the same.
void exchange(Collectives& comm, Known& known, const std::string& purpose) {
  if (comm.agree(known.digest(), purpose)->wait()) {
    return;
  }
  known.counts = max_of_ranks(comm, known.counts, "the number of parameters for " + purpose);
  if (known.are_as_many()) {
    known.rows = max_of_ranks(comm, known.rows, purpose);
  }
}

void check_row(const NamedParameter& param, const int32_t* row, const std::string& modules) {
  TORCH_CHECK(row[kIdentity] == -row[kNegatedIdentity],
              "fully_shard: where this rank has parameter ", param.fqn, " of shape ",
              param.tensor.sizes(), " in ", modules,
              ", another rank has one of another name or shape; shard the same modules in the same "
              "order on all ranks");
  TORCH_CHECK(row[kDim] == -row[kNegatedDim], "fully_shard: shard_placement_fn gives dimension ",
              param.shard_dim.value(), " for parameter ", param.fqn, " of shape ",
              param.tensor.sizes(), " in ", modules, " on this rank, and from ", -row[kNegatedDim],
              " to ", row[kDim], " on all of them; let it give the same on every rank");
}

}  // namespace

void check_same_placements(const std::vector<NamedParameter>& params, const DeviceMesh& mesh,
                           const std::string& modules) {
  if (params.empty() || !params.front().shard_dim) {
    return;
  }
  const std::string purpose = "the placements in " + modules;
  const auto count = static_cast<int32_t>(params.size());
  Known known{at::tensor({count, -count}, at::kInt), rows_of(params)};
  for (int64_t axis = mesh.ndim() - 1; axis >= 0; --axis) {  // a row's, then those of the copies
    exchange(*mesh.group(axis), known, purpose);
  }
  TORCH_CHECK(known.are_as_many(), "fully_shard: ", modules, " has ", count,
              " parameters with a shard_placement on this rank, and on others another number; "
              "shard the same modules in the same order on all ranks");
  for (size_t i = 0; i < params.size(); ++i) {
    check_row(params[i], known.rows.const_data_ptr<int32_t>() + static_cast<int64_t>(i) * kColumns,
              modules);
  }
}

}  // namespace fsdp
