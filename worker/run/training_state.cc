#include "worker/run/training_state.h"

#include "formats/checkpoint/error.h"
#include "formats/checkpoint/manifest.h"
#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

constexpr int kFormat = 1;
/// As in the manifest beside it. What a step, a round or an epoch adds cannot overflow.
constexpr int64_t kCountMax = checkpoint::kManifestNumberMax;

int64_t Count(const Json& document, const char* key) {
  if (!document.is_object() || !document.contains(key) || !document.at(key).is_number_integer() ||
      document.at(key).get<int64_t>() < 0 || document.at(key).get<int64_t>() > kCountMax) {
    throw ConfigError(std::string("training state: ") + key +
                      " is missing or not a count from 0 to 2^53");
  }
  return document.at(key).get<int64_t>();
}

}  // namespace

TrainingState DeriveTrainingState(int64_t step, const StepSize& size, int64_t windows) {
  const int64_t windows_per_step = size.rounds * size.ranks;
  if (step > kCountMax / windows_per_step / size.seq_len) {
    throw checkpoint::MismatchError("its optimizer has done " + std::to_string(step) +
                                    " steps, whose tokens cannot be counted");
  }
  const int64_t rounds_of_epoch = (windows + size.ranks - 1) / size.ranks;
  const int64_t rounds = step * size.rounds;
  TrainingState state;
  state.step = step;
  state.tokens = step * windows_per_step * size.seq_len;
  state.cursor = {rounds / rounds_of_epoch, rounds % rounds_of_epoch * size.ranks};
  state.windows = windows;
  return state;
}

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
  if (state.description) {
    FormatRunDescription(*state.description, document);
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
  if (HasRunDescription(document)) {
    state.description = ParseRunDescription(document);
  }
  return state;
}

}  // namespace fsdprun::worker
