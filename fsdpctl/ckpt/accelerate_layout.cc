#include "fsdpctl/ckpt/accelerate_layout.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/torch_blob.h"
#include "formats/tensors/checkpoint_tensors.h"
#include "formats/tensors/joined_tensors.h"
#include "formats/tensors/open_tensors.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdpctl/ckpt/inspect.h"

namespace fsdprun::ckpt {
namespace {

using checkpoint::PathPart;
using fsdp::archive::Error;

constexpr std::string_view kStatePart = "state.";
constexpr char kParamGroups[] = "param_groups";
constexpr char kTheirOptimizer[] = "optimizer";

std::unique_ptr<CheckpointTensors> OpenDcp(const std::string& path) {
  if (LayoutOf(path) != TensorLayout::kDcp) {
    throw Error("cannot convert " + path + ": it is no checkpoint with a .metadata");
  }
  return std::make_unique<CheckpointTensors>(path);
}

/// What torch.optim.AdamW has in a group besides what fsdp-train keeps; what is read of a
/// checkpoint must be in it.
nlohmann::json CompleteGroup(const nlohmann::json& group, const std::optional<Json>& state) {
  nlohmann::json all = {{"amsgrad", false},
                        {"maximize", false},
                        {"foreach", nullptr},
                        {"capturable", false},
                        {"differentiable", false},
                        {"fused", nullptr},
                        {"decoupled_weight_decay", true}};
  // A scheduler of torch keeps the peak there.
  const Json::json_pointer peak("/config/optimizer/lr");
  if (state && state->is_object() && state->contains(peak) && state->at(peak).is_number()) {
    all["initial_lr"] = nlohmann::json(state->at(peak));
  }
  all.update(group);
  return all;
}

/// Python keeps every option of every group as an object of its own.
void AddGroups(const checkpoint::OpenedCheckpoint& opened, CheckpointToWrite& output) {
  const std::optional<Json> groups =
      PlainObject(opened, std::string(kOptimizerPrefix) + kParamGroups);
  if (!groups) {
    return;
  }
  const std::optional<Json> state = PlainObject(opened, "train.state");
  int64_t index = 0;
  for (const Json& group : *groups) {
    if (!group.is_object()) {
      throw Error("cannot convert " + opened.path + ": optim.param_groups is no list of groups");
    }
    const nlohmann::json options = CompleteGroup(nlohmann::json(group), state);
    for (const auto& [name, value] : options.items()) {
      const std::string key = std::string(kTheirOptimizer) + "." + kParamGroups + "." +
                              std::to_string(index) + "." + name;
      output.objects.push_back(
          {key,
           checkpoint::PackObject(value),
           {std::string(kTheirOptimizer), std::string(kParamGroups), index, name}});
    }
    ++index;
  }
}

/// "optim.state.model.norm.weight.exp_avg": each part of the path may have dots, the last has none.
KeyedTensor TheirState(const std::string& key) {
  const std::string rest = key.substr(kOptimizerPrefix.size());
  const size_t dot = rest.rfind('.');
  const std::string parameter = rest.substr(kStatePart.size(), dot - kStatePart.size());
  return {std::string(kTheirOptimizer) + "." + rest,
          key,
          {std::string(kTheirOptimizer), std::string("state"), parameter, rest.substr(dot + 1)}};
}

bool IsStateKey(std::string_view key) {
  const std::string prefix = std::string(kOptimizerPrefix) + std::string(kStatePart);
  return key.starts_with(prefix) && key.rfind('.') > prefix.size();
}

}  // namespace

Conversion ConvertToAccelerate(const CkptOptions& options) {
  const std::string& path = options.operands[0];
  std::unique_ptr<CheckpointTensors> source = OpenDcp(path);
  ConvertedFolder model{kAccelerateModel, {}};
  ConvertedFolder optimizer{kAccelerateOptimizer, {}};
  for (const auto& [key, facts] : source->tensors()) {
    if (key.starts_with(kModelPrefix)) {
      model.checkpoint.tensors.push_back({key, key, {}});
    } else if (IsStateKey(key)) {
      optimizer.checkpoint.tensors.push_back(TheirState(key));
    }
  }
  if (model.checkpoint.tensors.empty()) {
    throw Error("cannot convert " + path +
                ": it has no weights under model., as fsdp-train's checkpoints have");
  }
  Conversion conversion;
  TakeStep(*source, model.checkpoint);
  if (!optimizer.checkpoint.tensors.empty()) {
    AddGroups(source->opened(), optimizer.checkpoint);
    TakeStep(*source, optimizer.checkpoint);
    conversion.folders.push_back(std::move(optimizer));
  }
  conversion.folders.push_back(std::move(model));
  conversion.sources.push_back(std::move(source));
  conversion.note =
      "weights and optimizer were converted, and nothing of the rest: schedulers, random state, "
      "position in the data\n";
  return conversion;
}

Conversion ConvertFromAccelerate(const CkptOptions& options) {
  const std::string& path = options.operands[0];
  const std::string model = path + "/" + kAccelerateModel;
  const std::string optimizer = path + "/" + kAccelerateOptimizer;
  if (!checkpoint::DirectoryExists(model)) {
    throw Error("cannot convert " + path + ": it has no folder " + kAccelerateModel +
                ", which accelerate's save_state() writes with fsdp_state_dict_type "
                "SHARDED_STATE_DICT");
  }
  CheckpointToWrite output;
  std::vector<std::unique_ptr<TensorSource>> sources;
  sources.push_back(OpenDcp(model));
  for (const auto& [key, facts] : sources.back()->tensors()) {
    output.tensors.push_back({key, key, {}});
  }
  if (checkpoint::DirectoryExists(optimizer)) {
    std::unique_ptr<CheckpointTensors> state = OpenDcp(optimizer);
    const std::string prefix = std::string(kTheirOptimizer) + "." + std::string(kStatePart);
    for (const auto& [key, facts] : state->tensors()) {
      if (key.starts_with(prefix)) {
        output.tensors.push_back({std::string(kOptimizerPrefix) +
                                      key.substr(std::string_view(kTheirOptimizer).size() + 1),
                                  key,
                                  {}});
      }
    }
    if (const std::optional<Json> groups =
            PlainObject(state->opened(), std::string(kTheirOptimizer) + "." + kParamGroups)) {
      output.objects.push_back({std::string(kOptimizerPrefix) + kParamGroups,
                                checkpoint::PackObject(nlohmann::json(*groups)),
                                {}});
    }
    sources.push_back(std::move(state));
  }
  Conversion conversion;
  conversion.sources.push_back(std::make_unique<JoinedTensors>(std::move(sources)));
  conversion.folders.push_back({"", std::move(output)});
  conversion.note =
      "weights and optimizer were converted, and nothing of the rest: schedulers, random state, "
      "position in the data\n";
  return conversion;
}

}  // namespace fsdprun::ckpt
