#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/json/strict_json.h"
#include "worker/config/config.h"
#include "worker/data/sample_order.h"
#include "worker/data/token_stream.h"

namespace fsdprun::worker {

/// Which text a run trains on and in which order. With it a position in the data has a meaning.
struct DataRecord {
  int64_t bytes = 0;
  /// SampledDigest of all of them.
  std::string digest;
  int64_t seq_len = 0;
  bool is_shuffled = false;
  uint64_t seed = 0;
};

DataRecord RecordData(const TokenStream& stream, const TrainConfig::Data& options);

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
// others. Without shuffling it is a place in the text: what comes behind the old end changes
// nothing before it, and windows of another length continue at the same token. A run that has read
// nothing yet may change anything.

/// `same_part`: digest of the first `before.bytes` bytes of the data now; empty if there are fewer.
/// Pure.
std::vector<DataChange> CompareData(const DataRecord& before, const DataRecord& now,
                                    const std::string& same_part, const DataCursor& cursor);

/// The cursor of the same token in windows of another length: the window that contains it. Errors:
/// ConfigError if it is too large to be a position.
DataCursor ConvertCursor(const DataCursor& cursor, int64_t seq_len_before, int64_t seq_len_now);

}  // namespace fsdprun::worker
