#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/json/strict_json.h"
#include "formats/models/model_config.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data/train_data.h"
#include "worker/data/windows.h"

namespace fsdprun::worker {

/// Ranks were started with input that does not fit together; thrown on all ranks with one text.
class DisagreementError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// Note [Ranks must agree]
// Each node has a command line of its own, so nothing but a comparison tells whether all ranks have
// been given the same: ranks that differ in the sequence length or in the data would train
// something that nobody has asked for, or wait for each other for ever. Compared are the versions,
// every key of the resolved configuration, the model description and the contents of the files.
// Paths may differ, because nodes may keep the same files in different places: of them only counts
// whether one was given, and what is in the files. Only rank 0 reads metrics.jsonl. The backend is
// compared before, by JoinRanks: with different ones there is no group to compare the rest.

/// What one rank has been given.
struct RankInput {
  std::string host;
  /// Key and value, in the order in which differences are reported.
  Json facts = Json::object();
};

/// The facts of this rank. `valid` may be null. Reads a few MiB of each set of files. Errors: as
/// TokenStream's.
RankInput DescribeInput(const Json& resolved, const ModelConfig& model, const TrainData& train,
                        const Windows* valid);

/// "rank 1 (node b): data.seq_len is 256, rank 0 has 128", and which other keys differ; nullopt if
/// all agree. `inputs`: by rank, not empty. Pure.
std::optional<std::string> DescribeDisagreement(const std::vector<RankInput>& inputs);

/// Compares the inputs of all ranks; collective. Errors: DisagreementError.
void RequireAgreement(const RankInput& mine, const checkpoint::Group& group);

/// Proves that all ranks see what rank 0 writes into its `dir`, which may be mounted elsewhere on
/// other nodes; collective. Passes if rank 0 cannot write there, which is reported when it saves,
/// and if a rank cannot look there for now.
/// Errors: DisagreementError naming rank, host and directory.
void RequireSharedDirectory(const std::string& dir, const checkpoint::Group& group);

}  // namespace fsdprun::worker
