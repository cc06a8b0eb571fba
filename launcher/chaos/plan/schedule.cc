#include "launcher/chaos/plan/schedule.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/chaos/plan/length.h"

namespace fsdprun::chaos {
namespace {

using plain_json = nlohmann::json;

constexpr Duration kDefaultLength = std::chrono::seconds(2);
constexpr Duration kDefaultLatency = std::chrono::milliseconds(200);
constexpr uint64_t kPickStep = 0x9e3779b97f4a7c15;

/// What one entry says, still as text.
struct Entry {
  /// `line 3` or `entry 2`.
  std::string place;
  std::string at, fault, target, length, latency;
};

absl::Status Wrong(const Entry& entry, absl::string_view what, absl::string_view written,
                   absl::string_view expected) {
  return absl::OutOfRangeError(
      absl::StrCat(entry.place, ": ", what, " '", written, "' is not ", expected));
}

absl::Status ReadLength(const Entry& entry, absl::string_view what, const std::string& written,
                        Duration* length) {
  if (written.empty()) {
    return absl::OkStatus();
  }
  const std::optional<Duration> parsed = ParseLength(written);
  if (!parsed.has_value()) {
    return Wrong(entry, what, written, "a time such as 5, 1.5s or 200ms");
  }
  *length = *parsed;
  return absl::OkStatus();
}

/// `agent` or `agent:1`.
absl::Status ReadTarget(const Entry& entry, PlannedFault* fault) {
  const std::vector<std::string> parts = absl::StrSplit(entry.target, absl::MaxSplits(':', 1));
  if (!entry.target.empty()) {
    const std::optional<FaultTarget> target = FaultTargetOf(parts.front());
    if (!target.has_value()) {
      return Wrong(entry, "target", parts.front(), "worker, keeper, agent or coordinator");
    }
    fault->target = *target;
  } else if (fault->kind == FaultKind::kPartition || fault->kind == FaultKind::kDelay) {
    fault->target = FaultTarget::kAgent;
  }
  if (parts.size() > 1) {
    int number = 0;
    if (!absl::SimpleAtoi(parts.back(), &number) || number < 0) {
      return Wrong(entry, "number", parts.back(), "a rank or the number of a node");
    }
    fault->number = number;
  }
  if (!Suits(fault->kind, fault->target)) {
    return absl::OutOfRangeError(absl::StrCat(
        entry.place, ": ", NameOf(fault->kind), " cannot be done to ",
        fault->target == FaultTarget::kNone ? "nobody: name a target" : NameOf(fault->target)));
  }
  return absl::OkStatus();
}

absl::StatusOr<PlannedFault> Read(const Entry& entry) {
  PlannedFault fault;
  const std::optional<FaultKind> kind = FaultKindOf(entry.fault);
  if (!kind.has_value()) {
    return Wrong(entry, "fault", entry.fault, "kill, stop, partition, delay, fill or corrupt");
  }
  fault.kind = *kind;
  if (entry.at.empty()) {
    return absl::OutOfRangeError(absl::StrCat(entry.place, ": no time is given"));
  }
  RETURN_IF_ERROR(ReadLength(entry, "time", entry.at, &fault.at));
  RETURN_IF_ERROR(ReadTarget(entry, &fault));
  if (Lasts(fault.kind)) {
    fault.length = kDefaultLength;
    RETURN_IF_ERROR(ReadLength(entry, "length", entry.length, &fault.length));
  } else if (!entry.length.empty()) {
    return Wrong(entry, "length", entry.length, "for a fault that takes no time");
  }
  if (fault.kind == FaultKind::kDelay) {
    fault.latency = kDefaultLatency;
    RETURN_IF_ERROR(ReadLength(entry, "latency", entry.latency, &fault.latency));
  } else if (!entry.latency.empty()) {
    return Wrong(entry, "latency", entry.latency, "for a fault other than delay");
  }
  return fault;
}

absl::StatusOr<std::vector<Entry>> LinesOf(absl::string_view text) {
  std::vector<Entry> entries;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const std::vector<std::string> words =
        absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) {
      continue;
    }
    Entry entry{.place = absl::StrCat("line ", number)};
    if (words.size() < 2) {
      return absl::OutOfRangeError(absl::StrCat(
          entry.place, ": expected TIME FAULT [TARGET[:NUMBER]] [LENGTH] [LATENCY], such as ",
          "20s stop agent 4s"));
    }
    entry.at = words[0];
    entry.fault = words[1];
    size_t next = 2;
    if (next < words.size() && !absl::ascii_isdigit(static_cast<unsigned char>(words[next][0]))) {
      entry.target = words[next++];
    }
    for (std::string* field : {&entry.length, &entry.latency}) {
      *field = next < words.size() ? words[next++] : "";
    }
    if (next < words.size()) {
      return Wrong(entry, "word", words[next], "expected after the latency");
    }
    entries.push_back(entry);
  }
  return entries;
}

absl::StatusOr<Entry> EntryOf(const plain_json& object, size_t number) {
  Entry entry{.place = absl::StrCat("entry ", number)};
  if (!object.is_object()) {
    return absl::OutOfRangeError(absl::StrCat(entry.place, ": expected an object"));
  }
  for (const auto& [name, value] : object.items()) {
    std::string* field = name == "at"        ? &entry.at
                         : name == "fault"   ? &entry.fault
                         : name == "target"  ? &entry.target
                         : name == "length"  ? &entry.length
                         : name == "latency" ? &entry.latency
                                             : nullptr;
    if (field == nullptr) {
      return Wrong(entry, "field", name, "at, fault, target, length or latency");
    }
    if (!value.is_string() && !value.is_number()) {
      return Wrong(entry, "value of", name, "a text or a number");
    }
    *field = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return entry;
}

absl::StatusOr<std::vector<Entry>> ObjectsOf(absl::string_view text) {
  const plain_json list =
      plain_json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) {
    return absl::OutOfRangeError("it begins as JSON, but is no list of objects in JSON");
  }
  std::vector<Entry> entries;
  for (const plain_json& object : list) {
    ASSIGN_OR_RETURN(entries.emplace_back(), EntryOf(object, entries.size() + 1));
  }
  return entries;
}

}  // namespace

absl::StatusOr<FaultPlan> ParseSchedule(absl::string_view text, uint64_t seed) {
  const bool is_json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "[");
  ASSIGN_OR_RETURN(const std::vector<Entry> entries, is_json ? ObjectsOf(text) : LinesOf(text));
  FaultPlan plan{.has_fixed_times = true};
  for (const Entry& entry : entries) {
    ASSIGN_OR_RETURN(PlannedFault fault, Read(entry));
    fault.pick = (seed + plan.faults.size() + 1) * kPickStep >> 8;
    plan.faults.push_back(fault);
  }
  if (plan.faults.empty()) {
    return absl::OutOfRangeError("it has no fault");
  }
  std::stable_sort(plan.faults.begin(), plan.faults.end(),
                   [](const PlannedFault& a, const PlannedFault& b) { return a.at < b.at; });
  return plan;
}

}  // namespace fsdprun::chaos
