#include "worker/run/training_state.h"

#include <algorithm>
#include <utility>

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

constexpr char kBadDataField[] = "bad_data";
constexpr char kJudgedField[] = "judged";

/// Only what there is, so that the state of a run without bad steps is what it always was.
void FormatBadSteps(const TrainingState& state, Json& document) {
  for (const DataRange& range : state.bad_data) {
    document[kBadDataField].push_back(
        {range.begin.epoch, range.begin.offset, range.end.epoch, range.end.offset});
  }
  if (!state.judged.losses.empty()) {
    document[kJudgedField] = {{"losses", state.judged.losses},
                              {"grad_norms", state.judged.grad_norms}};
  }
}

DataRange ParseRange(const Json& entry) {
  const bool is_list = entry.is_array() && entry.size() == 4;
  if (!is_list || !std::all_of(entry.begin(), entry.end(), [](const Json& number) {
        return number.is_number_unsigned() &&
               number.get<uint64_t>() <= static_cast<uint64_t>(kCountMax);
      })) {
    throw ConfigError("training state: bad_data has " + Excerpt(entry) +
                      ": expected two positions of epoch and offset");
  }
  const DataRange range{{entry[0], entry[1]}, {entry[2], entry[3]}};
  if (std::pair(range.begin.epoch, range.begin.offset) >=
      std::pair(range.end.epoch, range.end.offset)) {
    throw ConfigError("training state: bad_data has " + Excerpt(entry) +
                      ": expected an end behind the beginning");
  }
  return range;
}

std::vector<double> ParseNumbers(const Json& document, const char* key) {
  const bool is_list =
      document.is_object() && document.contains(key) && document.at(key).is_array();
  if (!is_list || !std::all_of(document.at(key).begin(), document.at(key).end(),
                               [](const Json& number) { return number.is_number(); })) {
    throw ConfigError(std::string("training state: judged: ") + key +
                      " is missing or not a list of numbers");
  }
  return document.at(key).get<std::vector<double>>();
}

void ParseBadSteps(const Json& document, TrainingState& state) {
  if (document.contains(kBadDataField)) {
    for (const Json& entry : document.at(kBadDataField)) {
      state.bad_data.push_back(ParseRange(entry));
    }
  }
  if (document.contains(kJudgedField)) {
    const Json& judged = document.at(kJudgedField);
    state.judged = {ParseNumbers(judged, "losses"), ParseNumbers(judged, "grad_norms")};
    if (state.judged.losses.size() != state.judged.grad_norms.size()) {
      throw ConfigError("training state: judged: losses and grad_norms have different lengths");
    }
  }
}

}  // namespace

TrainingState DeriveTrainingState(int64_t step, const StepSize& size, int64_t windows) {
  if (step > kCountMax / size.samples / size.seq_len) {
    throw checkpoint::MismatchError("its optimizer has done " + std::to_string(step) +
                                    " steps, whose tokens cannot be counted");
  }
  TrainingState state;
  state.step = step;
  state.tokens = step * size.samples * size.seq_len;
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
  FormatBadSteps(state, document);
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
  ParseBadSteps(document, state);
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
