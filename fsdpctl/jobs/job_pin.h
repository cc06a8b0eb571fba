#pragma once

#include <cstdint>
#include <string>

#include "fsdprun/v1/control.pb.h"

namespace fsdprun {

/// Which job is asked: once it has answered, no other one that takes its place. Its coordinator may
/// get a successor, which goes on with the same launch. Pure.
class JobPin {
 public:
  /// `given`: as --job says. `is_here`: it is one of this machine's jobs, which a pid names, too.
  JobPin(std::string given, bool is_here);

  /// What is asked for: a run id or a pid, or empty.
  const std::string& name() const { return name_; }
  /// Of the process that has answered last; as name() names it.
  const std::string& answerer() const { return answerer_; }
  /// Whether this is an answer of the job.
  bool Takes(const v1::JobStatus& status);
  /// There is none of that name.
  void NotFound();
  /// After an answer that is not taken: why, as a sentence.
  std::string WhyNot(const v1::JobStatus& status) const;

 private:
  bool Continues(const v1::JobStatus& status) const;
  void Keep(const v1::JobStatus& status);

  const bool is_here_;
  std::string name_;
  std::string answerer_;
  bool has_answered_ = false;
  std::string run_id_;
  std::string launch_id_;
  std::string node_;
  int64_t pid_ = 0;
};

}  // namespace fsdprun
