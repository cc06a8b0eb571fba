#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/cluster/types.h"

namespace fsdprun {

/// What all of an agent's events say.
struct EventContext {
  std::string run_id;
  std::string role;
  std::string hostname;
  std::string rdzv_backend;
  /// Name of the program that workers are started with, without its folder.
  std::string entry_point;
  /// Of the last world whose ranks were assigned.
  std::optional<int> group_rank;
  std::optional<int> group_world_size;
  int restarts = 0;
  /// Once the agent has ended; 0 before.
  int64_t total_run_time_s = 0;
};

/// The place of the worker that an event is about.
struct EventWorker {
  int local_rank = 0;
  int rank = 0;
  int role_rank = 0;
  int role_world_size = 1;
  int64_t pid = 0;
  /// As Python has it, negative for signals; set for a worker that did not exit with 0.
  std::optional<int> exit_code;
};

/// One change of state. Without `worker` it is the agent's.
struct StateEvent {
  /// START, SUCCEEDED, FAILED, TERMINATED, RENDEZVOUS, ASSIGN_WORKER_RANKS.
  std::string state;
  int64_t unix_ms = 0;
  std::optional<EventWorker> worker;
  std::optional<double> duration_ms;
  /// JSON of a worker's error file, or a text.
  std::optional<std::string> raw_error;
};

/// What the watchdog has done with the timer of a worker.
struct WatchdogEvent {
  std::string name;
  int64_t unix_ms = 0;
  int64_t pid = 0;
  std::string scope;
  double expires_unix_s = 0;
  int signal = 0;
};

/// One line of JSON, without the newline, with torchrun's names, fields and spaces; but for the
/// timestamp, which is 0 there. Pure.
std::string FormatEvent(const StateEvent& event, const EventContext& context);
std::string FormatEvent(const WatchdogEvent& event, const EventContext& context);

/// The error data of a worker that has failed, for StateEvent::raw_error. Pure.
std::string RawErrorOf(const WorkerExit& exit);

}  // namespace fsdprun
