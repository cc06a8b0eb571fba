#include "fsdpctl/jobs/node_answers_shown.h"

#include "absl/strings/str_cat.h"
#include "fsdpctl/jobs/json_text.h"

namespace fsdprun {
namespace {

using json = nlohmann::ordered_json;

std::string Line(const json& object) { return JsonText(object) + "\n"; }

const char* StreamName(bool is_stderr) { return is_stderr ? "standard error" : "standard output"; }

std::string Prefix(const v1::LogLines& lines) {
  return absl::StrCat("[", lines.rank(), lines.is_stderr() ? "!" : "", "]: ");
}

}  // namespace

std::string LogText::Add(const v1::NodesAnswer& answer) {
  const v1::LogLines& lines = answer.answer().logs();
  const std::string prefix = Prefix(lines);
  std::string text;
  if (lines.is_not_kept()) {
    return absl::StrCat(prefix, "(the ", StreamName(lines.is_stderr()), " of rank ", lines.rank(),
                        " is kept in no file; see --log-dir, --redirects and --tee)\n");
  }
  uint64_t& generation = generations_[{lines.rank(), lines.is_stderr()}];
  if (generation != 0 && generation != lines.generation()) {
    absl::StrAppend(&text, prefix, "(generation ", lines.generation(), " on ", answer.node(),
                    ")\n");
  }
  generation = lines.generation();
  if (lines.has_gap()) {
    absl::StrAppend(&text, prefix, "(some lines before this one are not shown)\n");
  }
  for (const std::string& line : lines.lines()) {
    absl::StrAppend(&text, prefix, line, "\n");
  }
  return text;
}

std::string LogJson(const v1::NodesAnswer& answer) {
  const v1::LogLines& lines = answer.answer().logs();
  std::string text;
  const auto add = [&](const json& line) {
    text += Line({{"v", kJsonVersion},
                  {"rank", lines.rank()},
                  {"node", answer.node()},
                  {"generation", lines.generation()},
                  {"stream", lines.is_stderr() ? "stderr" : "stdout"},
                  {"kept", !lines.is_not_kept()},
                  {"gap", text.empty() && lines.has_gap()},
                  {"line", line}});
  };
  if (lines.is_not_kept()) {
    add(nullptr);
  }
  for (const std::string& line : lines.lines()) {
    add(line);
  }
  return text;
}

std::string StacksText(const v1::NodesAnswer& answer) {
  const v1::WorkerStacks& stacks = answer.answer().stacks();
  std::string text =
      absl::StrCat("rank ", stacks.rank(), ", pid ", stacks.pid(), " on ", answer.node());
  if (!stacks.reader().empty()) {
    absl::StrAppend(&text, ", read by ", stacks.reader());
  }
  absl::StrAppend(&text, "\n", stacks.text());
  if (!stacks.text().empty() && stacks.text().back() != '\n') {
    text += "\n";
  }
  if (!stacks.problem().empty()) {
    absl::StrAppend(&text, "(", stacks.problem(), ")\n");
  }
  return text + "\n";
}

std::string StacksJson(const v1::NodesAnswer& answer) {
  const v1::WorkerStacks& stacks = answer.answer().stacks();
  return Line({{"v", kJsonVersion},
               {"rank", stacks.rank()},
               {"node", answer.node()},
               {"pid", stacks.pid()},
               {"reader", stacks.reader()},
               {"text", stacks.text()},
               {"problem", stacks.problem().empty() ? json(nullptr) : json(stacks.problem())},
               {"stopped_s", JsonSeconds(stacks.stopped_ns())}});
}

std::string SavedText(const v1::Saved& saved) {
  return absl::StrCat("step ", saved.step(), " is saved in ", saved.path(), "\n");
}

std::string SavedJson(const v1::Saved& saved) {
  return Line({{"v", kJsonVersion}, {"step", saved.step()}, {"path", saved.path()}});
}

}  // namespace fsdprun
