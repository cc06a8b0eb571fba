#include "launcher/run/own_join_record.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace fsdprun {

OwnJoinRecord::OwnJoinRecord(EventLoop& loop, const Environment& environment,
                             const SlurmJoinRecord& record, std::unique_ptr<FileThread> files,
                             Duration remove_timeout)
    : loop_(loop),
      environment_(environment),
      record_(record),
      remove_timeout_(remove_timeout),
      file_(std::make_shared<std::unique_ptr<JoinRecordFile>>()),
      files_(std::move(files)) {
  const auto status = std::make_shared<absl::Status>();
  files_->Run(
      [environment, record, file = file_, status] {
        auto written = JoinRecordFile::Write(environment, record);
        *status = written.status();
        if (written.ok()) {
          *file = *std::move(written);
        }
      },
      [this, status] { OnWritten(*status); });
}

OwnJoinRecord::~OwnJoinRecord() {
  Remove();
  while (!is_removed_ && files_->Await(remove_until_)) {
  }
}

void OwnJoinRecord::OnWritten(const absl::Status& status) {
  if (!status.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("fsdpctl slurm grow will not find this job: ", std::string(status.message())));
  } else if (file_ != nullptr) {
    sweep_ = std::make_unique<JoinRecordSweep>(loop_, *files_, environment_, record_);
  }
}

void OwnJoinRecord::Remove() {
  if (file_ == nullptr) {
    return;
  }
  remove_until_ = MonoNow() + remove_timeout_;
  files_->Run([file = std::exchange(file_, nullptr)] { file->reset(); },
              [this] { is_removed_ = true; });
}

}  // namespace fsdprun
