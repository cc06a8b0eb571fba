// The commands that change the nodes of a running job.

#include "fsdpctl/run/commands.h"
#include "fsdpctl/run/job_command.h"

namespace fsdprun {

int JobDrain(const ControlContext& context) {
  return RunJobCommand(CliProgram::kJobDrain, context,
                       [](const JobOptions& options, const Environment& environment) {
                         v1::ControlQuestion question;
                         question.mutable_drain()->set_node(options.node);
                         question.mutable_drain()->set_below_min(options.may_wait);
                         return AskChosenJob(options, environment, question, ShowDone);
                       });
}

int JobScale(const ControlContext& context) {
  return RunJobCommand(CliProgram::kJobScale, context,
                       [](const JobOptions& options, const Environment& environment) {
                         v1::ControlQuestion question;
                         question.mutable_scale()->set_min_nodes(options.numbers.min);
                         question.mutable_scale()->set_max_nodes(options.numbers.max);
                         return AskChosenJob(options, environment, question, ShowDone);
                       });
}

}  // namespace fsdprun
