#include "launcher/report/torch_events.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace fsdprun {
namespace {

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true,
                                   nlohmann::json::error_handler_t::replace);
}

/// An object as Python's json.dumps writes it: scripts look for `"state": "FAILED"`.
class ObjectWriter {
 public:
  ObjectWriter& Add(const char* name, const std::string& text) { return Raw(name, Quoted(text)); }
  ObjectWriter& Add(const char* name, int64_t number) { return Raw(name, absl::StrCat(number)); }
  template <class Value>
  ObjectWriter& Add(const char* name, const std::optional<Value>& value) {
    return value.has_value() ? Add(name, *value) : Raw(name, "null");
  }
  ObjectWriter& Raw(const char* name, const std::string& json) {
    fields_.push_back(absl::StrCat("\"", name, "\": ", json));
    return *this;
  }
  std::string Text() const { return absl::StrCat("{", absl::StrJoin(fields_, ", "), "}"); }

 private:
  std::vector<std::string> fields_;
};

/// torchrun has tuples of one there.
std::string ListOfOne(int64_t number) { return absl::StrCat("[", number, "]"); }

std::string EventDetails(const StateEvent& event, const EventContext& context) {
  ObjectWriter details;
  details.Add("group_world_size", context.group_world_size).Add("entry_point", context.entry_point);
  if (event.worker.has_value()) {
    const EventWorker& worker = *event.worker;
    const bool has_failed = worker.exit_code.has_value();
    details.Raw("local_rank", ListOfOne(worker.local_rank))
        .Raw("role_rank", ListOfOne(worker.role_rank))
        .Raw("role_world_size", ListOfOne(worker.role_world_size))
        .Raw("exit_code", has_failed ? ListOfOne(*worker.exit_code) : "[null]")
        .Raw("worker_pid", has_failed ? ListOfOne(worker.pid) : "[null]");
  }
  return details.Text();
}

std::string EventLine(const std::string& name, const char* source, int64_t unix_ms,
                      const ObjectWriter& metadata) {
  return ObjectWriter()
      .Add("name", name)
      .Add("source", std::string(source))
      .Add("timestamp", unix_ms)
      .Raw("metadata", metadata.Text())
      .Text();
}

/// The first half of the metadata of both kinds, in torchrun's order.
ObjectWriter BeginMetadata(const std::optional<EventWorker>& worker, const std::string& state,
                           const EventContext& context) {
  ObjectWriter metadata;
  metadata.Add("run_id", context.run_id)
      .Add("global_rank", worker ? std::optional<int>(worker->rank) : std::nullopt)
      .Add("group_rank", context.group_rank)
      .Add("worker_id", worker ? std::optional(std::to_string(worker->pid)) : std::nullopt)
      .Add("role", context.role)
      .Add("hostname", context.hostname)
      .Add("state", state)
      .Add("total_run_time", context.total_run_time_s)
      .Add("rdzv_backend", context.rdzv_backend);
  return metadata;
}

}  // namespace

std::string FormatEvent(const StateEvent& event, const EventContext& context) {
  ObjectWriter metadata = BeginMetadata(event.worker, event.state, context);
  metadata.Add("raw_error", event.raw_error)
      .Add("metadata", EventDetails(event, context))
      .Add("agent_restarts", static_cast<int64_t>(context.restarts))
      .Raw("duration_ms",
           event.duration_ms.has_value() ? absl::StrCat(*event.duration_ms) : "null");
  return EventLine(absl::StrCat("torchelastic.worker.status.", event.state),
                   event.worker.has_value() ? "WORKER" : "AGENT", event.unix_ms, metadata);
}

std::string FormatEvent(const WatchdogEvent& event, const EventContext& context) {
  ObjectWriter details;
  details.Add("watchdog_event", event.name)
      .Add("worker_pid", std::to_string(event.pid))
      .Add("scope_id", event.scope)
      .Add("expiration_time", absl::StrFormat("%.6f", event.expires_unix_s))
      .Add("signal", std::to_string(event.signal));
  ObjectWriter metadata = BeginMetadata(std::nullopt, "RUNNING", context);
  metadata.Add("raw_error", std::optional<std::string>())
      .Add("metadata", details.Text())
      .Add("agent_restarts", static_cast<int64_t>(context.restarts));
  return EventLine(event.name, "AGENT", event.unix_ms, metadata);
}

std::string RawErrorOf(const WorkerExit& exit) {
  if (nlohmann::json::accept(exit.error_json)) {
    return exit.error_json;
  }
  ObjectWriter error;
  error.Add("message", std::string("<NONE>"));
  if (exit.signal == 0) {
    error.Raw("errorTraits", R"({"category": "system_terminated_error", "retryability": "False"})");
  }
  return error.Text();
}

}  // namespace fsdprun
