#pragma once

#include <functional>
#include <string>

#include "fsdpctl/doctor/checks/facts.h"
#include "fsdpctl/doctor/doctor_options.h"
#include "fsdpctl/doctor/report.h"

namespace fsdprun::doctor {

struct MeetingSetup {
  const DoctorOptions* options = nullptr;
  Environment environment;
  std::vector<InterfaceFacts> interfaces;
  /// What the host name of this node is; empty: nothing.
  std::string name_address;
  int stop_fd = -1;
  /// Told, for people, what is waited for.
  std::function<void(const std::string&)> notify;
};

/// Meets the other nodes as the options say, and adds to the report what that has found. True if
/// another node has been told all of it, and prints it. Thread: one; returns when all nodes were
/// tested, when none has come in time, or after a signal.
bool MeetNodes(const MeetingSetup& setup, DoctorReport* report);

}  // namespace fsdprun::doctor
