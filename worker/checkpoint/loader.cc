#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "formats/checkpoint/checkpoint_reader.h"
#include "fsdp_runtime/plan/box.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/key_layout.h"
#include "worker/checkpoint/scalar_type.h"

namespace fsdprun::checkpoint {
namespace {

using nlohmann::json;

constexpr size_t kNamesShown = 5;
constexpr char kParamGroups[] = "optim.param_groups";
constexpr char kTrainingState[] = "train.state";
constexpr std::string_view kGroupOptions[] = {
    "params", "betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay"};

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

std::vector<std::string> KeysOf(const State& state) {
  std::vector<std::string> keys;
  for (const fsdp::LocalShard& slice : state.tensors) {
    keys.push_back(slice.fqn);
  }
  return keys;
}

/// Whether another program has written it, which has no training state of ours.
bool IsForeign(const OpenedCheckpoint& opened) {
  const auto first = opened.metadata.objects.lower_bound(kTrainingState);
  return first == opened.metadata.objects.end() || !first->first.starts_with(kTrainingState);
}

/// Throws for `missing`, which are stored keys that are not there.
[[noreturn]] void RefuseMissing(const OpenedCheckpoint& opened, const KeyLayout& layout,
                                const std::vector<std::string>& missing) {
  const bool has_weights = std::all_of(missing.begin(), missing.end(), [&](const auto& key) {
    return key.starts_with(layout.optimizer);
  });
  const std::string advice = has_weights ? AdviseOnOptimizer(opened.metadata, layout) : "";
  throw MismatchError("cannot load " + opened.path + ": it lacks " + ListText(missing) + "; " +
                      (advice.empty() ? "was it written by another model?" : advice));
}

void CheckKeys(const OpenedCheckpoint& opened, const KeyLayout& layout, const State& state) {
  std::vector<std::string> missing;
  std::vector<std::string> misshaped;
  for (const fsdp::LocalShard& slice : state.tensors) {
    const std::string key = layout.Stored(slice.fqn);
    const auto found = opened.metadata.tensors.find(key);
    if (found == opened.metadata.tensors.end()) {
      missing.push_back(key);
    } else if (found->second.shape != slice.global_shape) {
      misshaped.push_back(key + " (stored " + ShapeText(found->second.shape) + ", expected " +
                          ShapeText(slice.global_shape) + ")");
    }
  }
  if (!missing.empty()) {
    RefuseMissing(opened, layout, missing);
  }
  if (!misshaped.empty()) {
    throw MismatchError("cannot load " + opened.path + ": other shapes: " + ListText(misshaped) +
                        "; was it written by another model?");
  }
}

/// Where the keys of `state` are stored.
KeyLayout LayoutFor(const OpenedCheckpoint& opened, const State& state) {
  if (!IsForeign(opened)) {
    return {};
  }
  const std::vector<std::string> keys = KeysOf(state);
  const KeyLayout layout = FindKeyLayout(opened.metadata, keys, opened.path);
  const std::vector<std::string> unknown = FindUnknownParameters(opened.metadata, keys, layout);
  if (!unknown.empty()) {
    throw MismatchError("cannot load " + opened.path + ": it also has " + ListText(unknown) +
                        ", and the model has no such parameters; was it "
                        "written by another model?");
  }
  return layout;
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

void LoadSlice(CheckpointReader& reader, const std::string& key, const StoredTensor& stored,
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
    throw MismatchError("cannot load " + key + ": dtype " + stored.dtype + " is not supported");
  }
  const at::ScalarType type = ToScalarType(dtype->dtype);
  at::Tensor local = slice.local;
  if (local.scalar_type() == type && local.is_cpu() && local.is_contiguous()) {
    reader.ReadBoxes(key, slice.boxes, local.mutable_data_ptr());
    return;
  }
  at::Tensor staging = at::empty({count}, at::TensorOptions().dtype(type));
  reader.ReadBoxes(key, slice.boxes, staging.mutable_data_ptr());
  if (local.scalar_type() != type) {
    staging = ConvertExactly(staging, local.scalar_type(), key);
  }
  local.copy_(staging.view(local.sizes()));
}

/// The options of the optimizer that another program has written as items of
/// their own,
/// "<groups>.<number or parameter>.<option>": as one list of groups. Only those
/// that say something about what this library does; others may be any Python
/// object.
std::optional<json> ReadForeignGroups(CheckpointReader& reader, const OpenedCheckpoint& opened,
                                      const std::string& groups_key) {
  const std::string prefix = groups_key + ".";
  std::map<std::string, json> groups;
  const auto& objects = opened.metadata.objects;
  for (auto at = objects.lower_bound(prefix); at != objects.end() && at->first.starts_with(prefix);
       ++at) {
    const size_t end = at->first.rfind('.');
    const std::string option = at->first.substr(end + 1);
    if (end > prefix.size() && std::find(std::begin(kGroupOptions), std::end(kGroupOptions),
                                         option) != std::end(kGroupOptions)) {
      groups[at->first.substr(prefix.size(), end - prefix.size())][option] =
          *reader.ReadObject(at->first);
    }
  }
  if (groups.empty()) {
    return std::nullopt;
  }
  json list = json::array();
  for (auto& [name, group] : groups) {
    group.emplace("params", json{name});
    list.push_back(std::move(group));
  }
  return list;
}

void LoadObjects(CheckpointReader& reader, const OpenedCheckpoint& opened, const KeyLayout& layout,
                 const LoadOptions& options, State& state) {
  const auto put = [&](const std::string& key, const std::optional<json>& value, std::string& out) {
    if (value) {
      out = value->dump();
    } else if (!options.may_lack_objects) {
      throw MismatchError("cannot load " + opened.path + ": it lacks " + key);
    }
  };
  const std::string groups = layout.Stored(kParamGroups);
  const bool is_divided = IsForeign(opened) && !opened.metadata.objects.contains(groups);
  put(groups, is_divided ? ReadForeignGroups(reader, opened, groups) : reader.ReadObject(groups),
      state.param_groups_json);
  put(kTrainingState, reader.ReadObject(kTrainingState), state.training_state_json);
}

/// One bit for each piece of a tensor, in the order of `.metadata`: the same on
/// all ranks.
class PieceSet {
 public:
  PieceSet() = default;
  PieceSet(const DcpMetadata& metadata, const std::set<BlobPlace>& blobs) {
    size_t number = 0;
    ForEachPiece(metadata, [&](const std::string&, const StoredChunk& chunk) {
      if (blobs.contains({chunk.blob.file, chunk.blob.offset})) {
        bits_.resize(std::max(bits_.size(), number / 8 + 1));
        bits_[number / 8] = static_cast<char>(bits_[number / 8] | 1 << number % 8);
      }
      ++number;
    });
  }
  /// Of all ranks' texts.
  static PieceSet UnionOf(const std::vector<std::string>& texts) {
    PieceSet all;
    for (const std::string& text : texts) {
      all.bits_.resize(std::max(all.bits_.size(), text.size()));
      for (size_t i = 0; i < text.size(); ++i) {
        all.bits_[i] = static_cast<char>(all.bits_[i] | text[i]);
      }
    }
    return all;
  }
  template <typename Use>
  static void ForEachPiece(const DcpMetadata& metadata, const Use& use) {
    for (const auto& [key, tensor] : metadata.tensors) {
      for (const StoredChunk& chunk : tensor.chunks) {
        use(key, chunk);
      }
    }
  }

  bool Contains(size_t number) const {
    return number / 8 < bits_.size() && (bits_[number / 8] >> number % 8 & 1) != 0;
  }
  bool IsEmpty() const { return bits_.empty(); }
  /// Empty for an empty set.
  const std::string& text() const { return bits_; }

 private:
  std::string bits_;
};

/// What one rank does of a load.
class LocalLoad {
 public:
  explicit LocalLoad(const Candidate& candidate)
      : opened_(OpenCheckpoint(candidate.path, FilesThere::kTrust)),
        reader_(opened_, !candidate.files_verified, PartialBlobs::kDefer) {}

  void Fill(State& state, const LoadOptions& options) {
    const at::NoGradGuard no_grad;
    const KeyLayout layout = LayoutFor(opened_, state);
    CheckKeys(opened_, layout, state);
    for (const fsdp::LocalShard& slice : state.tensors) {
      const std::string key = layout.Stored(slice.fqn);
      LoadSlice(reader_, key, opened_.metadata.tensors.at(key), slice);
    }
    LoadObjects(reader_, opened_, layout, options, state);
  }

  PieceSet deferred() const { return {opened_.metadata, reader_.deferred()}; }
  PieceSet verified() const { return {opened_.metadata, reader_.verified()}; }

  /// "": whatever this rank has read was compared with a checksum.
  std::string DoubtText() const {
    if (reader_.unchecked_count() == 0) {
      return "";
    }
    return "nothing tells whether " + opened_.path + " is damaged: " +
           (IsForeign(opened_)
                ? std::to_string(reader_.unchecked_count()) + " of its tensors have no checksum"
                : "it has no fsdprun.json, which has its checksums");
  }

  /// This rank's share of `deferred` without `verified`.
  void VerifyShare(const PieceSet& deferred, const PieceSet& verified,
                   const fsdp::Collectives& ranks) {
    size_t number = 0;
    int64_t turn = 0;
    PieceSet::ForEachPiece(opened_.metadata, [&](const std::string& key, const StoredChunk& chunk) {
      if (deferred.Contains(number) && !verified.Contains(number) &&
          turn++ % ranks.size() == ranks.rank()) {
        reader_.Verify(key, chunk);
      }
      ++number;
    });
  }

 private:
  const OpenedCheckpoint opened_;
  CheckpointReader reader_;
};

constexpr char kFilled = 'F';
constexpr char kMismatch = 'M';

}  // namespace

void Load(const Candidate& candidate, State& state, const Group& group,
          const LoadOptions& options) {
  std::optional<LocalLoad> load;
  // AttemptOnAll exchanges text and rethrows CheckpointError; a mismatch is
  // returned as a result to keep its type.
  std::vector<std::string> outcomes = AttemptOnAll(group, [&]() -> std::string {
    try {
      load.emplace(candidate);
      load->Fill(state, options);
      return kFilled + load->deferred().text();
    } catch (const MismatchError& error) {
      return kMismatch + std::string(error.what());
    }
  });
  for (std::string& outcome : outcomes) {
    if (outcome[0] == kMismatch) {
      throw MismatchError(outcome.substr(1));
    }
    outcome.erase(0, 1);
  }
  const PieceSet deferred = PieceSet::UnionOf(outcomes);
  if (!deferred.IsEmpty()) {
    const PieceSet verified = PieceSet::UnionOf(GatherTexts(group, load->verified().text()));
    AttemptOnAll(group, [&]() -> std::string {
      load->VerifyShare(deferred, verified, *group.collectives);
      return {};
    });
  }
  if (const std::string doubt = load->DoubtText(); !doubt.empty()) {
    EmitWarning(group, doubt);
  }
}

}  // namespace fsdprun::checkpoint
