// fsdpctl doctor.

#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdpctl/doctor/checks/checks.h"
#include "fsdpctl/doctor/doctor_options.h"
#include "fsdpctl/doctor/machine/read_facts.h"
#include "fsdpctl/doctor/pair/meeting.h"
#include "fsdpctl/doctor/pair/stop_signal.h"
#include "fsdpctl/doctor/report.h"
#include "fsdpctl/doctor/report_json.h"
#include "fsdpctl/doctor/report_text.h"
#include "fsdpctl/run/command_end.h"
#include "fsdpctl/run/commands.h"
#include "launcher/directory/host_lookup.h"
#include "proto/release.h"

namespace fsdprun {
namespace {

using doctor::DoctorOptions;
using doctor::DoctorReport;
using doctor::Finding;
using doctor::PairRole;

void Add(std::vector<Finding> more, std::vector<Finding>* findings) {
  findings->insert(findings->end(), std::make_move_iterator(more.begin()),
                   std::make_move_iterator(more.end()));
}

/// All but the network: before any thread is started, see Note [What may hang].
std::vector<Finding> LookAtMachine(const DoctorOptions& options, const Environment& environment) {
  std::vector<Finding> findings;
  Add(CheckLimits(doctor::ReadLimits("")), &findings);
  Add(CheckMemory(doctor::ReadMemory("")), &findings);
  Add(CheckCpus(doctor::ReadCpus("", environment)), &findings);
  Add(CheckSharedMemory(doctor::ReadSharedMemory()), &findings);
  Add(CheckStorage(doctor::ReadStorage(options.log_dir, environment)), &findings);
  Add(CheckProcesses(doctor::ReadProcesses()), &findings);
  Add(CheckClock(doctor::ReadClock()), &findings);
  Add(CheckGpus(doctor::ReadGpus("", environment)), &findings);
  Add(CheckNccl(doctor::ReadNccl("", environment)), &findings);
  Add(CheckPython(doctor::ReadPython(options.python, environment)), &findings);
  Add(CheckInstallation(
          doctor::ReadInstallation({options.token_file, options.takes_anybody}, environment)),
      &findings);
  return findings;
}

void Notify(const std::string& text) { std::fprintf(stderr, "fsdpctl doctor: %s\n", text.c_str()); }

/// Prints what was found, and returns the exit code.
int Examine(const DoctorOptions& options, const Environment& environment) {
  const std::string& name = options.place.node_name;
  DoctorReport report;
  report.own = {.node = name.empty() ? HostName() : name,
                .release = kRelease,
                .findings = LookAtMachine(options, environment)};
  const bool meets = options.role != PairRole::kNone;
  std::optional<doctor::StopSignal> stop;
  if (meets) {
    stop.emplace();
  }
  const doctor::NetworkFacts network = doctor::ReadNetwork(
      {.port = options.port, .is_given = options.port_is_given, .is_left_alone = meets});
  Add(CheckNetwork(network), &report.own.findings);
  bool is_told = false;
  if (meets) {
    is_told =
        doctor::MeetNodes({.options = &options,
                           .environment = environment,
                           .interfaces = network.interfaces,
                           .name_address = network.resolved.empty() ? "" : network.resolved.front(),
                           .stop_fd = stop->fd(),
                           .notify = Notify},
                          &report);
  }
  if (!is_told) {
    Show(options.is_json ? absl::StrCat(doctor::ReportJson(report), "\n")
                         : doctor::ReportText(report, options.shows_all));
  } else if (!options.place.shares_console && !options.is_json) {
    Show(absl::StrCat("this node was tested; the node at ", ToString(options.place.endpoint),
                      " prints what was found\n"));
  }
  return WorstOf(report) == doctor::Severity::kProblem ? kValueError : 0;
}

}  // namespace

int Doctor(const ControlContext& context) {
  const std::string name = ProgramName(CliProgram::kDoctor);
  const absl::StatusOr<DoctorOptions> options =
      doctor::ReadDoctorOptions(context.args, context.environment);
  if (!options.ok()) {
    return Fail(name, options.status());
  }
  const std::optional<int> shown = ShowText(CliProgram::kDoctor, options->request);
  return shown.has_value() ? *shown : Examine(*options, context.environment);
}

}  // namespace fsdprun
