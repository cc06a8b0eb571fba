#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>

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

/// A coordinator that does not answer for so long will not.
constexpr std::chrono::seconds kOnceLimit{30};

absl::Status AskInTime(const JobOptions& options, const Environment& environment,
                       const v1::ControlQuestion& question,
                       const std::function<void(const v1::ControlAnswer&)>& on_answer) {
  const absl::Status status = AskChosenJob(options, environment, question, on_answer, kOnceLimit);
  return absl::IsDeadlineExceeded(status)
             ? absl::DeadlineExceededError(
                   absl::StrCat("the job's coordinator has not answered for ", kOnceLimit.count(),
                                " s; it may be stopped or very busy: ask again"))
             : status;
}

/// One state with workers, as of now.
absl::StatusOr<top::Snapshot> AskOnce(const JobOptions& options, const Environment& environment) {
  std::optional<v1::JobStatus> status;
  v1::ControlQuestion question;
  question.mutable_status()->set_with_workers(true);
  RETURN_IF_ERROR(AskInTime(options, environment, question,
                            [&](const v1::ControlAnswer& answer) { status = answer.status(); }));
  if (!status.has_value()) {
    return absl::UnavailableError("the coordinator has not answered; ask again");
  }
  top::Snapshot snapshot;
  snapshot.status = *std::move(status);
  return snapshot;
}

absl::Status AddEvents(const JobOptions& options, const Environment& environment,
                       top::Snapshot* snapshot) {
  v1::ControlQuestion question;
  question.mutable_events();
  return AskInTime(options, environment, question, [&](const v1::ControlAnswer& answer) {
    for (const std::string& line : answer.events().lines()) {
      snapshot->events.push_back(EventText(line));
    }
  });
}

absl::Status ShowOnce(const JobOptions& options, const Environment& environment) {
  top::UseTerminalsCharacters();
  ASSIGN_OR_RETURN(top::Snapshot snapshot, AskOnce(options, environment));
  if (options.is_json) {
    Show(StatusJson(snapshot.status, /*with_workers=*/true) + "\n");
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(AddEvents(options, environment, &snapshot));
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
