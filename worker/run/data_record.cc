#include "worker/run/data_record.h"

#include <limits>

namespace fsdprun::worker {
namespace {

// One of them, so that a reader of older versions finds the bytes of text.
constexpr char kBytesField[] = "bytes";
constexpr char kTokensField[] = "tokens";
// Of which the training state has its own, too.
constexpr char kWindowsField[] = "windows";
constexpr char kEndsField[] = "document_ends";
constexpr char kEndIdField[] = "document_end";

const Json& Require(const Json& data, const char* key, bool is_right, const char* expectation) {
  if (!is_right) {
    throw ConfigError(std::string("training state: data.") + key + ": expected " + expectation);
  }
  return data.at(key);
}

int64_t Count(const Json& data, const char* key, int64_t low) {
  const bool is_right =
      data.contains(key) && data.at(key).is_number_integer() && data.at(key).get<int64_t>() >= low;
  return Require(data, key, is_right, ("an integer >= " + std::to_string(low)).c_str())
      .get<int64_t>();
}

std::string Text(const Json& data, const char* key) {
  return Require(data, key, data.contains(key) && data.at(key).is_string(), "a text")
      .get<std::string>();
}

bool Truth(const Json& data, const char* key) {
  return Require(data, key, data.contains(key) && data.at(key).is_boolean(), "true or false")
      .get<bool>();
}

std::string Changed(const std::string& key, const std::string& before, const std::string& now) {
  return key + " was " + before + " at the checkpoint and is " + now + " now";
}

std::string Word(bool value) { return value ? "true" : "false"; }

constexpr char kUnshuffle[] = ": the position in the shuffled text means nothing there";
constexpr char kOtherOrder[] = ": the position in the one order means nothing in the other";

/// Whether a position is a place in a stream.
bool IsPlain(const DataRecord& record) {
  return !record.is_shuffled && !record.is_mixture && record.documents != "separate";
}

/// "1000 bytes with digest 0123456789abcdef"
std::string Described(const DataRecord& record) {
  return std::to_string(record.tokens) + (record.is_text ? " bytes" : " tokens") + " with digest " +
         record.digest;
}

DataChange CompareTokens(const DataRecord& before, const DataRecord& now,
                         const std::string& same_part) {
  const std::string what = before.is_mixture || now.is_mixture ? "the mixture of data.mixture"
                           : before.is_text && now.is_text     ? "the text of data.train"
                                                               : "the data of data.train";
  const std::string change = Changed(what, Described(before), Described(now));
  const bool is_longer =
      now.tokens > before.tokens && same_part == before.digest && before.is_text == now.is_text;
  if (is_longer && IsPlain(before) && IsPlain(now)) {
    return {change + ": text was added behind the old end", false};
  }
  return {change + (now.is_shuffled ? kUnshuffle : ": other text is at the position now"), true};
}

bool HaveSameTokens(const DataRecord& before, const DataRecord& now) {
  return before.tokens == now.tokens && before.digest == now.digest &&
         before.is_text == now.is_text && before.is_mixture == now.is_mixture;
}

std::string Described(const DocumentEnds& ends) {
  return ends.digest.empty() ? "the id " + std::to_string(ends.id) : "the digest " + ends.digest;
}

/// Where the documents of the same tokens end.
void CompareDocumentEnds(const DataRecord& before, const DataRecord& now,
                         std::vector<DataChange>& changes) {
  if (before.documents != now.documents) {
    return;
  }
  const bool is_cut = now.documents == "separate";
  const std::string loss = is_cut ? ": its windows are others" : "";
  if (DifferInEnds(before.document_ends, now.document_ends)) {
    changes.push_back({Changed("where documents end (data.document_end, or an index)",
                               Described(before.document_ends), Described(now.document_ends)) +
                           loss,
                       is_cut});
  } else if (is_cut && before.seq_len == now.seq_len && before.windows > 0 &&
             before.windows != now.windows) {
    changes.push_back({Changed("the number of windows that documents are cut into",
                               std::to_string(before.windows), std::to_string(now.windows)) +
                           loss,
                       true});
  }
}

/// Which order the windows have, and how they are cut.
void CompareOrders(const DataRecord& before, const DataRecord& now,
                   std::vector<DataChange>& changes) {
  if (before.is_shuffled != now.is_shuffled) {
    changes.push_back(
        {Changed("data.shuffle", Word(before.is_shuffled), Word(now.is_shuffled)) + kOtherOrder,
         true});
  }
  const bool is_shuffled = before.is_shuffled && now.is_shuffled;
  if (before.sampler != now.sampler) {
    // Without shuffling both have the same order up to the end of the epoch.
    changes.push_back(
        {Changed("data.sampler", before.sampler, now.sampler) + (is_shuffled ? kOtherOrder : ""),
         is_shuffled});
  }
  if (before.drops_last != now.drops_last) {
    changes.push_back(
        {Changed("data.drop_last", Word(before.drops_last), Word(now.drops_last)), false});
  }
  if (before.documents != now.documents) {
    const bool is_cut = before.documents == "separate" || now.documents == "separate";
    changes.push_back({Changed("data.documents", before.documents, now.documents) +
                           (is_cut ? ": its windows are others" : ""),
                       is_cut});
  }
  if (is_shuffled && before.seed != now.seed) {
    changes.push_back(
        {Changed("data.seed", std::to_string(before.seed), std::to_string(now.seed)) + kUnshuffle,
         true});
  }
}

}  // namespace

DataRecord RecordData(const TrainData& data, const TrainConfig::Data& options) {
  DataRecord record{data.size(), data.Digest(data.size()), options.seq_len, options.shuffle,
                    options.seed};
  record.is_text = data.is_text();
  record.is_mixture = data.is_mixture();
  record.sampler = options.sampler;
  record.drops_last = options.drop_last;
  record.documents = options.documents;
  record.tokenizer = data.tokenizer() ? data.tokenizer()->digest : "";
  record.windows = data.window_count();
  record.document_ends = EndsOf(data.sources());
  return record;
}

void FormatDataRecord(const DataRecord& record, Json& data) {
  data[record.is_text ? kBytesField : kTokensField] = record.tokens;
  data["digest"] = record.digest;
  data["seq_len"] = record.seq_len;
  data["shuffle"] = record.is_shuffled;
  data["seed"] = record.seed;
  data["mixture"] = record.is_mixture;
  data["sampler"] = record.sampler;
  data["drop_last"] = record.drops_last;
  data["documents"] = record.documents;
  data["tokenizer"] = record.tokenizer;
  if (record.windows > 0) {
    data[kWindowsField] = record.windows;
  }
  data[kEndsField] = record.document_ends.digest;
  data[kEndIdField] = record.document_ends.id;
}

bool HasDataRecord(const Json& data) { return data.is_object() && data.contains("digest"); }

DataRecord ParseDataRecord(const Json& data) {
  DataRecord record;
  record.is_text = !data.contains(kTokensField);
  record.tokens = Count(data, record.is_text ? kBytesField : kTokensField, 0);
  record.digest = Text(data, "digest");
  record.seq_len = Count(data, "seq_len", 1);
  record.is_shuffled = Truth(data, "shuffle");
  record.seed = static_cast<uint64_t>(Count(data, "seed", 0));
  // Older versions had one kind of data and of order.
  if (data.contains("sampler")) {
    record.is_mixture = Truth(data, "mixture");
    record.sampler = Text(data, "sampler");
    record.drops_last = Truth(data, "drop_last");
    record.documents = Text(data, "documents");
    record.tokenizer = Text(data, "tokenizer");
  }
  record.windows = data.contains(kWindowsField) ? Count(data, kWindowsField, 0) : 0;
  if (data.contains(kEndsField)) {
    record.document_ends = {Text(data, kEndsField), Count(data, kEndIdField, -1)};
  }
  return record;
}

std::vector<DataChange> CompareData(const DataRecord& before, const DataRecord& now,
                                    const std::string& same_part, const DataCursor& cursor) {
  std::vector<DataChange> changes;
  if (cursor == DataCursor{}) {
    return changes;
  }
  CompareOrders(before, now, changes);
  if (HaveSameTokens(before, now)) {
    CompareDocumentEnds(before, now, changes);
  } else {
    changes.push_back(CompareTokens(before, now, same_part));
  }
  if (!before.tokenizer.empty() && !now.tokenizer.empty() && before.tokenizer != now.tokenizer) {
    changes.push_back({Changed("the tokenizer of the data", before.tokenizer, now.tokenizer) +
                           " (digests): the same id means another text in each",
                       true});
  }
  if (before.seq_len != now.seq_len) {
    const bool stays = IsPlain(before) && IsPlain(now);
    const bool is_shuffled = before.is_shuffled && now.is_shuffled;
    changes.push_back(
        {Changed("data.seq_len", std::to_string(before.seq_len), std::to_string(now.seq_len)) +
             (stays         ? ": continuing with the window that has the same token"
              : is_shuffled ? kUnshuffle
                            : ": its windows are others"),
         !stays});
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
