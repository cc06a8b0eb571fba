#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include "formats/checkpoint/checkpoint_reader.h"
#include "fsdp_runtime/plan/box.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/scalar_type.h"

namespace fsdprun::checkpoint {
namespace {

constexpr size_t kNamesShown = 5;

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  }
  return text + "]";
}

/// "a, b, c and 4 more"
std::string ListText(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamesShown); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamesShown) {
    text += " and " + std::to_string(names.size() - kNamesShown) + " more";
  }
  return text;
}

void CheckKeys(const OpenedCheckpoint& opened, const State& state) {
  std::vector<std::string> missing;
  std::vector<std::string> misshaped;
  for (const fsdp::LocalShard& slice : state.tensors) {
    const auto found = opened.metadata.tensors.find(slice.fqn);
    if (found == opened.metadata.tensors.end()) {
      missing.push_back(slice.fqn);
    } else if (found->second.shape != slice.global_shape) {
      misshaped.push_back(slice.fqn + " (stored " + ShapeText(found->second.shape) + ", expected " +
                          ShapeText(slice.global_shape) + ")");
    }
  }
  if (!missing.empty()) {
    throw MismatchError("cannot load " + opened.path + ": it lacks " + ListText(missing) +
                        "; was it written by another model?");
  }
  if (!misshaped.empty()) {
    throw MismatchError("cannot load " + opened.path + ": other shapes: " + ListText(misshaped) +
                        "; was it written by another model?");
  }
}

/// `stored` in dtype `type`. Refuses values that the conversion would change.
at::Tensor ConvertExactly(const at::Tensor& stored, at::ScalarType type, const std::string& key) {
  at::Tensor converted = stored.to(type);
  const at::Tensor back = converted.to(stored.scalar_type());
  const at::Tensor is_same = back.eq(stored).logical_or(stored.ne(stored));
  if (!is_same.all().item<bool>()) {
    throw MismatchError("cannot load " + key + ": it is stored as " +
                        c10::toString(stored.scalar_type()) + ", and not every value is exact as " +
                        c10::toString(type));
  }
  return converted;
}

/// Reads the boxes of the slice one behind the other.
void ReadBoxes(CheckpointReader& reader, const fsdp::LocalShard& slice, const at::Tensor& out) {
  char* next = static_cast<char*>(out.mutable_data_ptr());
  for (const fsdp::Box& box : slice.boxes) {
    reader.ReadBox(slice.fqn, box, next);
    next += fsdp::plan::numel_of(box) * static_cast<int64_t>(out.element_size());
  }
}

void LoadSlice(CheckpointReader& reader, const StoredTensor& stored,
               const fsdp::LocalShard& slice) {
  const int64_t count = fsdp::plan::total_numel(slice.boxes);
  if (slice.local.numel() != count) {
    throw CheckpointError("cannot load " + slice.fqn + ": expected " + std::to_string(count) +
                          " local elements, got " + std::to_string(slice.local.numel()));
  }
  if (count == 0) {
    return;
  }
  const DTypeInfo* dtype = FindDType(stored.dtype);
  if (dtype == nullptr) {
    throw MismatchError("cannot load " + slice.fqn + ": dtype " + stored.dtype +
                        " is not supported");
  }
  const at::ScalarType type = ToScalarType(dtype->dtype);
  at::Tensor local = slice.local;
  if (local.scalar_type() == type && local.is_cpu() && local.is_contiguous()) {
    ReadBoxes(reader, slice, local);
    return;
  }
  at::Tensor staging = at::empty({count}, at::TensorOptions().dtype(type));
  ReadBoxes(reader, slice, staging);
  if (local.scalar_type() != type) {
    staging = ConvertExactly(staging, local.scalar_type(), slice.fqn);
  }
  local.copy_(staging.view(local.sizes()));
}

void LoadObject(CheckpointReader& reader, const std::string& path, const char* key, bool is_needed,
                std::string& out) {
  const std::optional<nlohmann::json> value = reader.ReadObject(key);
  if (value) {
    out = value->dump();
  } else if (is_needed) {
    throw MismatchError("cannot load " + path + ": it lacks " + key);
  }
}

void LoadLocal(const Candidate& candidate, State& state, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const OpenedCheckpoint opened = OpenCheckpoint(candidate.path, FilesThere::kTrust);
  CheckKeys(opened, state);
  CheckpointReader reader(opened, !candidate.files_verified);
  for (const fsdp::LocalShard& slice : state.tensors) {
    LoadSlice(reader, opened.metadata.tensors.at(slice.fqn), slice);
  }
  LoadObject(reader, opened.path, "optim.param_groups", !options.weights_only,
             state.param_groups_json);
  LoadObject(reader, opened.path, "train.state", !options.weights_only, state.training_state_json);
}

}  // namespace

void Load(const Candidate& candidate, State& state, const Group& group,
          const LoadOptions& options) {
  // AttemptOnAll exchanges text and rethrows CheckpointError; a mismatch is returned as a result to
  // keep its type.
  const std::vector<std::string> mismatches = AttemptOnAll(group, [&]() -> std::string {
    try {
      LoadLocal(candidate, state, options);
      return {};
    } catch (const MismatchError& error) {
      return error.what();
    }
  });
  for (const std::string& mismatch : mismatches) {
    if (!mismatch.empty()) {
      throw MismatchError(mismatch);
    }
  }
}

}  // namespace fsdprun::checkpoint
