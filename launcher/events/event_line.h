#pragma once

// What has happened to a job, as lines of JSON: the content of events.jsonl. docs/EVENTS.md is the
// schema, which programs may rely on: fields and events are added, never renamed, and "v" tells if
// that should ever be broken.

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/node/node_machine.h"
#include "launcher/coordinator/job_events.h"
#include "launcher/watch/findings.h"

namespace fsdprun {

/// Whose events they are.
struct EventSource {
  /// The run id.
  std::string job;
  /// The name of the node that writes them.
  std::string node;
};

/// As an event names it, such as "worker_failed".
std::string_view CauseName(CauseKind kind);
std::string_view CauseName(job::StopKind kind);

/// One object without the newline; text that is not UTF-8 is replaced, and what workers wrote is
/// cut. `unix_ms`: when it happened. Pure.
std::string FormatEvent(const job::News& news, const EventSource& source, int64_t unix_ms);
std::string FormatEvent(const watch::Finding& finding, const EventSource& source, int64_t unix_ms);
std::string FormatEvent(const node::News& news, const EventSource& source, int64_t unix_ms);

}  // namespace fsdprun
