// The commands about running jobs that the job's nodes answer.

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdpctl/jobs/node_answers_shown.h"
#include "fsdpctl/run/command_end.h"
#include "fsdpctl/run/job_command.h"

namespace fsdprun {
namespace {

v1::ControlQuestion QuestionFor(const JobOptions& options) {
  v1::ControlQuestion question;
  for (const std::string& node : options.nodes) {
    question.mutable_nodes()->add_nodes(node);
  }
  for (const int rank : options.ranks) {
    question.mutable_nodes()->add_ranks(rank);
  }
  return question;
}

/// On standard error: what a node cannot answer. False for any other answer.
bool SaysRefusal(const char* command, const v1::NodesAnswer& answer) {
  if (answer.answer().refusal().empty()) {
    return false;
  }
  std::fprintf(stderr, "%s: node %s: %s\n", command, answer.node().c_str(),
               answer.answer().refusal().c_str());
  return true;
}

std::string Described(std::chrono::milliseconds time) {
  return absl::StrCat(static_cast<double>(time.count()) / 1e3, " s");
}

}  // namespace

int JobLogs(const ControlContext& context) {
  return RunJobCommand(
      CliProgram::kJobLogs, context, [](const JobOptions& options, const Environment& environment) {
        v1::ControlQuestion question = QuestionFor(options);
        question.mutable_nodes()->mutable_logs()->set_tail_lines(options.tail_lines);
        question.mutable_nodes()->mutable_logs()->set_follow(options.follows);
        LogText text;
        return AskChosenJob(options, environment, question, [&](const v1::ControlAnswer& answer) {
          const v1::NodesAnswer& from = answer.from_node();
          if (!SaysRefusal("fsdpctl logs", from) && from.answer().has_logs()) {
            Show(options.is_json ? LogJson(from) : text.Add(from));
          }
        });
      });
}

int JobStacks(const ControlContext& context) {
  return RunJobCommand(
      CliProgram::kJobStacks, context,
      [](const JobOptions& options, const Environment& environment) {
        v1::ControlQuestion question = QuestionFor(options);
        question.mutable_nodes()->mutable_stacks();
        return AskChosenJob(options, environment, question, [&](const v1::ControlAnswer& answer) {
          const v1::NodesAnswer& from = answer.from_node();
          if (!SaysRefusal("fsdpctl stacks", from) && from.answer().has_stacks()) {
            Show(options.is_json ? StacksJson(from) : StacksText(from));
          }
        });
      });
}

int JobSave(const ControlContext& context) {
  return RunJobCommand(
      CliProgram::kJobSave, context, [](const JobOptions& options, const Environment& environment) {
        v1::ControlQuestion question;
        question.mutable_nodes()->mutable_save();
        int told = 0;
        std::optional<v1::Saved> saved;
        const absl::Status status = AskChosenJob(
            options, environment, question,
            [&](const v1::ControlAnswer& answer) {
              const v1::NodesAnswer& from = answer.from_node();
              SaysRefusal("fsdpctl checkpoint now", from);
              told += from.answer().save().workers();
              if (from.answer().has_saved()) {
                saved = from.answer().saved();
              }
            },
            options.timeout);
        if (absl::IsDeadlineExceeded(status) || (status.ok() && !saved.has_value())) {
          return absl::DeadlineExceededError(
              absl::StrCat(told, " workers were told to save, and none has told of a checkpoint ",
                           status.ok() ? "before the job was over"
                                       : absl::StrCat("within ", Described(options.timeout)),
                           "; programs other than fsdp-train have to read the record for it: see "
                           "proto/worker_contract.h"));
        }
        if (status.ok()) {
          Show(options.is_json ? SavedJson(*saved) : SavedText(*saved));
        }
        return status;
      });
}

}  // namespace fsdprun
