#include "launcher/report/progress_line.h"

#include "absl/strings/str_cat.h"
#include "launcher/report/failure_report.h"

namespace fsdprun {

std::string FormatProgressLine(const Progress& progress) {
  if (progress.step < 0) {
    return StripControl(progress.text);
  }
  std::string line = absl::StrCat("step ", progress.step);
  if (progress.total > 0) {
    absl::StrAppend(&line, "/", progress.total);
  }
  if (!progress.text.empty()) {
    absl::StrAppend(&line, " ", StripControl(progress.text));
  }
  return line;
}

}  // namespace fsdprun
