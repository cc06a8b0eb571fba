#include <sys/ioctl.h>
#include <unistd.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "fsdpctl/jobs/status_json.h"
#include "fsdpctl/jobs/status_text.h"
#include "fsdpctl/run/command_end.h"
#include "fsdpctl/run/commands.h"
#include "fsdpctl/run/job_command.h"
#include "fsdpctl/run/top_session.h"
#include "fsdpctl/run/worker_text.h"
#include "fsdpctl/top/make_frame.h"

namespace fsdprun {
namespace {

/// One state with workers, as of now.
absl::StatusOr<top::Snapshot> AskOnce(const JobOptions& options, const Environment& environment) {
  top::Snapshot snapshot;
  v1::ControlQuestion question;
  question.mutable_status()->set_with_workers(true);
  RETURN_IF_ERROR(
      AskChosenJob(options, environment, question,
                   [&](const v1::ControlAnswer& answer) { snapshot.status = answer.status(); }));
  if (!snapshot.status.has_value()) {
    return absl::UnavailableError("the coordinator has not answered; ask again");
  }
  return snapshot;
}

absl::Status AddEvents(const JobOptions& options, const Environment& environment,
                       top::Snapshot* snapshot) {
  v1::ControlQuestion question;
  question.mutable_events();
  return AskChosenJob(options, environment, question, [&](const v1::ControlAnswer& answer) {
    for (const std::string& line : answer.events().lines()) {
      snapshot->events.push_back(EventText(line));
    }
  });
}

absl::Status ShowOnce(const JobOptions& options, const Environment& environment) {
  ASSIGN_OR_RETURN(top::Snapshot snapshot, AskOnce(options, environment));
  if (options.is_json) {
    Show(StatusJson(*snapshot.status, /*with_workers=*/true) + "\n");
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(AddEvents(options, environment, &snapshot));
  top::UseTerminalsCharacters();
  Show(top::PlainText(top::MakeFrame(snapshot, {}, {0, TextColumns(environment)})));
  return absl::OkStatus();
}

}  // namespace

int TextColumns(const Environment& environment) {
  const auto given = environment.find("COLUMNS");
  int columns = 0;
  if (given != environment.end() && absl::SimpleAtoi(given->second, &columns) &&
      columns >= top::kColumnsMin) {
    return columns;
  }
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= top::kColumnsMin) {
    return size.ws_col;
  }
  return kColumnsOfFiles;
}

int JobTop(const ControlContext& context) {
  return RunJobCommand(
      CliProgram::kJobTop, context, [](const JobOptions& options, const Environment& environment) {
        return options.once || options.is_json ? ShowOnce(options, environment)
                                               : TopSession(options, environment).Run();
      });
}

}  // namespace fsdprun
