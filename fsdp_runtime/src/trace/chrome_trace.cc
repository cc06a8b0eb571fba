#include "fsdp_runtime/src/trace/chrome_trace.h"

#include <nlohmann/json.hpp>
#include <optional>

namespace fsdp::trace {
namespace {

using nlohmann::json;

/// What a viewer draws a thread of its own for.
json named(const char* what, int64_t rank, std::optional<int> thread, const std::string& name) {
  json event = {{"ph", "M"}, {"name", what}, {"pid", rank}, {"args", {{"name", name}}}};
  if (thread) {
    event["tid"] = *thread;
  }
  return event;
}

json in_chromes_terms(const Event& event, const Subject& subject) {
  json out = {
      {"name", event.name},
      {"cat", event.category},
      {"pid", subject.rank},
      {"tid", event.thread},
      {"ts",
       static_cast<double>(static_cast<int64_t>(event.at_ns) + subject.clock_offset_ns) / 1e3}};
  switch (event.kind) {
    case Event::Kind::kSpan:
      out["ph"] = "X";
      out["dur"] = static_cast<double>(event.length_ns) / 1e3;
      break;
    case Event::Kind::kBegin:
      out["ph"] = "b";
      out["id"] = event.id;
      out["args"] = {{"bytes", event.bytes}};
      if (!event.group.empty()) {
        out["args"]["group"] = event.group;
      }
      break;
    case Event::Kind::kEnd:
      out["ph"] = "e";
      out["id"] = event.id;
      break;
    case Event::Kind::kAmount:
      out["ph"] = "C";
      out["args"] = {{"bytes", event.bytes}};
      break;
  }
  return out;
}

/// Names come from programs, and may be anything.
std::string text_of(const json& event) {
  return event.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

void write_chrome_trace(const Recording& recording, const Subject& subject,
                        const std::function<void(std::string_view)>& write) {
  write("{\"displayTimeUnit\":\"ms\",\"otherData\":");
  write(text_of({{"rank", subject.rank},
                 {"pid", subject.pid},
                 {"host", subject.host},
                 {"events that there was no room for", recording.dropped}}));
  write(",\"traceEvents\":[\n");
  write(text_of(named("process_name", subject.rank, std::nullopt,
                      "rank " + std::to_string(subject.rank) + " on " + subject.host)));
  for (const auto& [thread, name] : subject.threads) {
    write(",\n");
    write(text_of(named("thread_name", subject.rank, thread, name)));
  }
  for (const Event& event : recording.events) {
    write(",\n");
    write(text_of(in_chromes_terms(event, subject)));
  }
  write("\n]}\n");
}

}  // namespace fsdp::trace
