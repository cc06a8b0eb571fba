#include "worker/run/data_record.h"

#include <limits>

#include "worker/data/stream_digest.h"

namespace fsdprun::worker {
namespace {

const Json& Require(const Json& data, const char* key, bool is_right, const char* expectation) {
  if (!is_right) {
    throw ConfigError(std::string("training state: data.") + key + ": expected " + expectation);
  }
  return data.at(key);
}

int64_t Count(const Json& data, const char* key, int64_t low) {
  const bool is_right =
      data.contains(key) && data.at(key).is_number_integer() && data.at(key).get<int64_t>() >= low;
  return Require(data, key, is_right, low > 0 ? "an integer >= 1" : "an integer >= 0")
      .get<int64_t>();
}

std::string Changed(const std::string& key, const std::string& before, const std::string& now) {
  return key + " was " + before + " at the checkpoint and is " + now + " now";
}

std::string Word(bool value) { return value ? "true" : "false"; }

constexpr char kUnshuffle[] = ": the position in the shuffled text means nothing there";

DataChange CompareText(const DataRecord& before, const DataRecord& now,
                       const std::string& same_part) {
  const auto describe = [](const DataRecord& record) {
    return std::to_string(record.bytes) + " bytes with digest " + record.digest;
  };
  const bool is_longer = now.bytes > before.bytes && same_part == before.digest;
  const std::string change = Changed("the text of data.train", describe(before), describe(now));
  if (is_longer && !now.is_shuffled) {
    return {change + ": text was added behind the old end", false};
  }
  return {change + (now.is_shuffled ? kUnshuffle : ": other text is at the position now"), true};
}

}  // namespace

DataRecord RecordData(const TokenStream& stream, const TrainConfig::Data& options) {
  return {stream.size(), SampledDigest(stream, stream.size()), options.seq_len, options.shuffle,
          options.seed};
}

void FormatDataRecord(const DataRecord& record, Json& data) {
  data["bytes"] = record.bytes;
  data["digest"] = record.digest;
  data["seq_len"] = record.seq_len;
  data["shuffle"] = record.is_shuffled;
  data["seed"] = record.seed;
}

bool HasDataRecord(const Json& data) { return data.is_object() && data.contains("digest"); }

DataRecord ParseDataRecord(const Json& data) {
  const auto has = [&](const char* key, auto is_right) {
    return data.contains(key) && is_right(data.at(key));
  };
  const auto is_text = [](const Json& value) { return value.is_string(); };
  const auto is_truth = [](const Json& value) { return value.is_boolean(); };
  DataRecord record;
  record.bytes = Count(data, "bytes", 0);
  record.digest = Require(data, "digest", has("digest", is_text), "a text").get<std::string>();
  record.seq_len = Count(data, "seq_len", 1);
  record.is_shuffled =
      Require(data, "shuffle", has("shuffle", is_truth), "true or false").get<bool>();
  record.seed = static_cast<uint64_t>(Count(data, "seed", 0));
  return record;
}

std::vector<DataChange> CompareData(const DataRecord& before, const DataRecord& now,
                                    const std::string& same_part, const DataCursor& cursor) {
  std::vector<DataChange> changes;
  if (cursor == DataCursor{}) {
    return changes;
  }
  if (before.is_shuffled != now.is_shuffled) {
    changes.push_back({Changed("data.shuffle", Word(before.is_shuffled), Word(now.is_shuffled)) +
                           ": the position in the one order means nothing in the other",
                       true});
  }
  const bool is_shuffled = before.is_shuffled && now.is_shuffled;
  if (is_shuffled && before.seed != now.seed) {
    changes.push_back(
        {Changed("data.seed", std::to_string(before.seed), std::to_string(now.seed)) + kUnshuffle,
         true});
  }
  if (before.bytes != now.bytes || before.digest != now.digest) {
    changes.push_back(CompareText(before, now, same_part));
  }
  if (before.seq_len != now.seq_len) {
    changes.push_back(
        {Changed("data.seq_len", std::to_string(before.seq_len), std::to_string(now.seq_len)) +
             (is_shuffled ? kUnshuffle : ": continuing with the window that has the same token"),
         is_shuffled});
  }
  return changes;
}

DataCursor ConvertCursor(const DataCursor& cursor, int64_t seq_len_before, int64_t seq_len_now) {
  if (seq_len_before == seq_len_now) {
    return cursor;
  }
  if (cursor.offset > std::numeric_limits<int64_t>::max() / seq_len_before) {
    throw ConfigError("training state: data.offset = " + std::to_string(cursor.offset) +
                      ": expected a position in the data");
  }
  return {cursor.epoch, cursor.offset * seq_len_before / seq_len_now};
}

}  // namespace fsdprun::worker
