#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/json/strict_json.h"
#include "worker/config/config.h"
#include "worker/data/document_ends.h"
#include "worker/data/sample_order.h"
#include "worker/data/train_data.h"

namespace fsdprun::worker {

/// Which data a run trains on and in which order. With it a position in the data has a meaning.
/// What a record of an older version does not say has the value that it had then, the default.
struct DataRecord {
  /// Of text, bytes.
  int64_t tokens = 0;
  /// TrainData::Digest of all of them.
  std::string digest;
  int64_t seq_len = 0;
  bool is_shuffled = false;
  uint64_t seed = 0;
  bool is_text = true;
  bool is_mixture = false;
  // As the configuration spells them.
  std::string sampler = "torch";
  bool drops_last = false;
  std::string documents = "join";
  /// TokenizerIdentity::digest; empty: unknown.
  std::string tokenizer = {};
  /// How many there are of all sources together; 0: unknown, as in states without "windows".
  int64_t windows = 0;
  DocumentEnds document_ends = {};
};

DataRecord RecordData(const TrainData& data, const TrainConfig::Data& options);

/// Adds the record to `data` of a training state.
void FormatDataRecord(const DataRecord& record, Json& data);
/// Whether a training state has one; those of older versions do not.
bool HasDataRecord(const Json& data);
/// Errors: ConfigError.
DataRecord ParseDataRecord(const Json& data);

/// One way in which a run differs from the one that it continues.
struct DataChange {
  /// "data.seed was 1 at the checkpoint and is 2 now: ..."
  std::string text;
  /// A position of the one means nothing to the other.
  bool loses_position = false;
};

// Note [Changed data]
// A position in shuffled data is one in a permutation that follows from the seed and the number of
// windows: with another one the rest of the epoch has windows that were trained on and lacks
// others. So it is with the turns of a mixture, and with windows that are cut by documents, whose
// ends the tokens alone do not say. Without all that it is a place in the stream: what comes behind
// the old end changes nothing before it, and windows of another length continue at the same token.
// A run that has read nothing yet may change anything. The ids of another tokenizer are other text,
// wherever they stand.

/// `same_part`: digest of the first `before.tokens` tokens of the data now; empty if there are
/// fewer. Pure.
std::vector<DataChange> CompareData(const DataRecord& before, const DataRecord& now,
                                    const std::string& same_part, const DataCursor& cursor);

/// The cursor of the same token in windows of another length: the window that contains it. Errors:
/// ConfigError if it is too large to be a position.
DataCursor ConvertCursor(const DataCursor& cursor, int64_t seq_len_before, int64_t seq_len_now);

}  // namespace fsdprun::worker
