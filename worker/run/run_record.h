#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/json/strict_json.h"
#include "formats/models/lora.h"
#include "formats/models/model_config.h"

namespace fsdprun::worker {

/// What a run trains and how, apart from its data (DataRecord) and what PyTorch keeps in an
/// optimizer's groups.
struct RunRecord {
  /// ModelConfig::description.
  Json model = Json::object();
  /// The settings that a loss depends on, by their keys: "schedule.kind".
  Json settings = Json::object();
  /// Of a model with adapters: which they are, by the keys of lora, and kBaseDigest. Else empty.
  Json adapters = Json::object();
};

/// The key of what DigestOfBase says.
inline constexpr char kBaseDigest[] = "the digest of the base";

/// RunRecord::adapters of a run with `lora`, without the digest. Errors: ConfigError for targets
/// that are no layers. Pure.
Json DescribeAdapters(const ModelConfig& model, const LoraConfig& lora);

RunRecord RecordRun(const ModelConfig& model, const Json& resolved, int64_t world_size);

/// Adds the record to a training state.
void FormatRunRecord(const RunRecord& record, Json& state);
/// Whether a training state has one; those of older versions do not.
bool HasRunRecord(const Json& state);
/// Precondition: HasRunRecord. Errors: ConfigError.
RunRecord ParseRunRecord(const Json& state);

/// One way in which a run differs from the one that it continues.
struct RunChange {
  /// "the model's rope_theta was 10000.0 at the checkpoint and is 500000.0 now"
  std::string text;
  /// The same weights are another function.
  bool is_other_model = false;
};

// Note [Changed model]
// Not all that makes a model what it is shows in the shapes of its weights: with another rope_theta
// or other numbers of heads they load, and the loss jumps. So a checkpoint says which model its
// weights are of. What only says how they were drawn, or how long a text may be, may change. So may
// settings of the training, of which the user is told; what one record lacks is not compared.

/// Pure. With schedule.kind wsd another train.steps is none: see DescribeInterruptedDecay. Without
/// adapters, which are compared before a checkpoint is loaded.
std::vector<RunChange> CompareRuns(const RunRecord& before, const RunRecord& now);

/// What tells the adapters of two runs apart, as lines for the user: "lora.rank was 8 at the
/// checkpoint and is 4 now". Pure.
std::vector<std::string> CompareAdapters(const RunRecord& before, const RunRecord& now);

/// Why a checkpoint of `before` lacks what a run of `now` needs, by what both say of themselves;
/// else `mismatch`, which says what is missing. Pure.
std::string DescribeMismatch(const RunRecord& before, const RunRecord& now,
                             const std::string& mismatch);

/// Of a run that goes on after `step` steps: with schedule.kind wsd it may have begun to decay its
/// rate already, and goes on as if it had not, because train.steps or the decay is another now.
/// Then says so, and where the decay began; else empty. Pure.
std::string DescribeInterruptedDecay(const RunRecord& before, const RunRecord& now, int64_t step);

}  // namespace fsdprun::worker
