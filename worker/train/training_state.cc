#include "worker/train/training_state.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "formats/checkpoint/manifest.h"
#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

constexpr int kFormat = 1;
/// As in the manifest beside it. What a step, a round or an epoch adds cannot overflow.
constexpr int64_t kCountMax = checkpoint::kManifestNumberMax;
constexpr char kHexDigits[] = "0123456789abcdef";

std::string ToHex(const at::Tensor& bytes) {
  std::string text;
  const auto* data = bytes.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < bytes.numel(); ++i) {
    text.push_back(kHexDigits[data[i] >> 4]);
    text.push_back(kHexDigits[data[i] & 15]);
  }
  return text;
}

at::Tensor FromHex(const std::string& text) {
  const bool is_hex =
      text.size() % 2 == 0 && text.find_first_not_of(kHexDigits) == std::string::npos;
  if (!is_hex) {
    throw ConfigError("training state: rng is not hexadecimal");
  }
  const auto nibble = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size() / 2)}, at::kByte);
  auto* data = bytes.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    data[i / 2] = static_cast<uint8_t>(nibble(text[i]) << 4 | nibble(text[i + 1]));
  }
  return bytes;
}

int64_t Count(const Json& document, const char* key) {
  if (!document.is_object() || !document.contains(key) || !document.at(key).is_number_integer() ||
      document.at(key).get<int64_t>() < 0 || document.at(key).get<int64_t>() > kCountMax) {
    throw ConfigError(std::string("training state: ") + key +
                      " is missing or not a count from 0 to 2^53");
  }
  return document.at(key).get<int64_t>();
}

void Append(std::vector<fsdp::LocalShard>& to, std::vector<fsdp::LocalShard> slices,
            const std::string& prefix, const std::string& suffix) {
  for (fsdp::LocalShard& slice : slices) {
    slice.fqn = prefix + slice.fqn + suffix;
    to.push_back(std::move(slice));
  }
}

}  // namespace

std::string FormatTrainingState(const TrainingState& state) {
  Json document = {{"format", kFormat},
                   {"step", state.step},
                   {"tokens", state.tokens},
                   {"data",
                    {{"epoch", state.cursor.epoch},
                     {"offset", state.cursor.offset},
                     {"windows", state.windows}}},
                   {"rng", state.rng}};
  if (state.evaluated_step) {
    document["evaluated_step"] = *state.evaluated_step;
  }
  if (state.data) {
    FormatDataRecord(*state.data, document["data"]);
  }
  if (state.run) {
    FormatRunRecord(*state.run, document);
  }
  return document.dump();
}

TrainingState ParseTrainingState(const std::string& text) {
  const Json document = ParseStrictJson(text, "training state");
  if (Count(document, "format") != kFormat) {
    throw ConfigError("training state: format " + Excerpt(document.at("format")) + ": expected " +
                      std::to_string(kFormat));
  }
  if (!document.contains("data") || !document.contains("rng") || !document.at("rng").is_string()) {
    throw ConfigError("training state: data or rng is missing");
  }
  const Json& data = document.at("data");
  TrainingState state;
  state.step = Count(document, "step");
  state.tokens = Count(document, "tokens");
  state.cursor = {Count(data, "epoch"), Count(data, "offset")};
  state.windows = Count(data, "windows");
  if (document.contains("evaluated_step") && document.at("evaluated_step").is_number_integer()) {
    state.evaluated_step = document.at("evaluated_step").get<int64_t>();
  }
  if (HasDataRecord(data)) {
    state.data = ParseDataRecord(data);
  }
  state.rng = document.at("rng").get<std::string>();
  if (HasRunRecord(document)) {
    state.run = ParseRunRecord(document);
  }
  return state;
}

std::string CaptureRng() { return ToHex(at::detail::getDefaultCPUGenerator().get_state()); }

void RestoreRng(const std::string& rng) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = FromHex(rng);
  try {
    generator.set_state(state);
  } catch (const c10::Error&) {
    throw ConfigError("training state: rng is not a state of this LibTorch's random numbers");
  }
}

std::vector<std::string> DescribeChangedGroups(const std::string& stored,
                                               const std::string& current) {
  const auto by_parameter = [](const std::string& text) {
    std::map<std::string, Json> groups;
    for (Json group : Json::parse(text, nullptr, /*allow_exceptions=*/false)) {
      if (!group.is_object() || !group.contains("params") || !group.at("params").is_array()) {
        continue;
      }
      const Json names = std::move(group.at("params"));
      group.erase("params");  // Else each of them would get a copy of all.
      for (const Json& name : names) {
        groups[name.is_string() ? name.get<std::string>() : name.dump()] = group;
      }
    }
    return groups;
  };
  const std::map<std::string, Json> before = by_parameter(stored);
  const std::map<std::string, Json> now = by_parameter(current);
  std::vector<std::string> changes;
  for (const char* key : {"betas", "eps", "weight_decay"}) {
    const auto changed = std::find_if(now.begin(), now.end(), [&](const auto& entry) {
      const auto old = before.find(entry.first);
      return old != before.end() && old->second.contains(key) &&
             old->second.at(key) != entry.second.at(key);
    });
    if (changed != now.end()) {
      changes.push_back("optimizer." + std::string(key) + " of " + changed->first + " was " +
                        Excerpt(before.at(changed->first).at(key)) + " at the checkpoint and is " +
                        Excerpt(changed->second.at(key)) + " now");
    }
  }
  return changes;
}

at::Tensor CaptureSteps(const fsdp::AdamW& optimizer) {
  const std::vector<int64_t> counts = optimizer.parameter_steps();
  return at::tensor(at::ArrayRef<int64_t>(counts)).to(at::kFloat);
}

void RestoreSteps(const at::Tensor& steps, fsdp::AdamW& optimizer) {
  constexpr float kMax = 1e15F;
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < steps.numel(); ++i) {
    const float count = steps[i].item<float>();
    if (!(count >= 0 && count <= kMax && std::floor(count) == count)) {
      char text[32];
      std::snprintf(text, sizeof text, "%g", double{count});
      throw checkpoint::MismatchError(std::string("its optimizer has done ") + text + " steps");
    }
    counts.push_back(static_cast<int64_t>(count));
  }
  try {
    optimizer.set_parameter_steps(counts);
  } catch (const c10::Error& error) {
    throw checkpoint::MismatchError(error.what_without_backtrace());
  }
}

checkpoint::State WeightTensors(const Job& job) {
  checkpoint::State state;
  Append(state.tensors, job.root.sharded_parameters(), "model.", "");
  return state;
}

checkpoint::State CheckpointTensors(const Job& job, const fsdp::AdamW& optimizer,
                                    const at::Tensor& steps) {
  checkpoint::State state = WeightTensors(job);
  Append(state.tensors, optimizer.exp_avg(), "optim.state.", ".exp_avg");
  Append(state.tensors, optimizer.exp_avg_sq(), "optim.state.", ".exp_avg_sq");
  int64_t index = 0;
  for (const fsdp::LocalShard& parameter : job.root.sharded_parameters()) {
    fsdp::LocalShard step;
    step.fqn = "optim.state." + parameter.fqn + ".step";
    step.boxes = {fsdp::Box{}};
    step.local = steps.narrow(0, index++, 1);
    state.tensors.push_back(std::move(step));
  }
  return state;
}

std::vector<fsdp::AdamWParamGroup> MakeParamGroups(const Job& job,
                                                   const TrainConfig::Optimizer& options) {
  fsdp::AdamWParamGroup decayed;
  fsdp::AdamWParamGroup exempt{.params = {}, .weight_decay = 0.0};
  for (const fsdp::LocalShard& parameter : job.root.sharded_parameters()) {
    const bool is_exempt = std::any_of(
        options.no_decay.begin(), options.no_decay.end(),
        [&](const std::string& pattern) { return MatchesPattern(parameter.fqn, pattern); });
    (is_exempt ? exempt : decayed).params.push_back(parameter.fqn);
  }
  std::vector<fsdp::AdamWParamGroup> groups = {std::move(decayed), std::move(exempt)};
  std::erase_if(groups, [](const fsdp::AdamWParamGroup& group) { return group.params.empty(); });
  return groups;
}

std::string FormatParamGroups(const Job& job, const TrainConfig::Optimizer& options, double lr) {
  Json groups = Json::array();
  for (const fsdp::AdamWParamGroup& group : MakeParamGroups(job, options)) {
    groups.push_back({{"lr", lr},
                      {"betas", {options.beta1, options.beta2}},
                      {"eps", options.eps},
                      {"weight_decay", group.weight_decay.value_or(options.weight_decay)},
                      {"params", group.params}});
  }
  return groups.dump();
}

}  // namespace fsdprun::worker
