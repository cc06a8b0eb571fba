#include "launcher/coordinator/host_place.h"

#include <utility>

namespace fsdprun {

bool HostPlace::Ask(MonoTime now) {
  if (spec_.place_sure_for <= Duration{} || is_asked()) {
    return false;
  }
  asked_at_ = now;
  return true;
}

void HostPlace::Doubt(MonoTime now) {
  doubted_at_ = now;
  sure_until_ = MonoTime::min();
}

HostPlace::Found HostPlace::Checked(MonoTime at) {
  if (!is_asked()) {
    return Found::kUnasked;
  }
  Withdraw();
  unknown_why_.clear();
  if (at < doubted_at_) {
    return Found::kOutdated;
  }
  sure_until_ = at + spec_.place_sure_for;
  return Found::kSure;
}

bool HostPlace::NotFound(const std::string& why) {
  sure_until_ = MonoTime::min();
  unknown_why_ = is_asked() ? why : unknown_why_;
  return is_asked();
}

std::string HostPlace::Question() const {
  return "making sure that no other launcher has taken the run id" +
         (unknown_why_.empty() ? "" : ": " + unknown_why_);
}

void HostPlace::Lose(std::string why) {
  lost_why_ = std::move(why);
  Withdraw();
}

void HostPlace::GiveUp() {
  was_given_up_ = true;
  Lose("it could not be found out whether this launcher still hosts its run id (" +
       (unknown_why_.empty() ? "the rendezvous file, etcd or the endpoint did not answer"
                             : unknown_why_) +
       "), and a launcher that could find out may have taken it; remove the cause, then start "
       "all nodes of this job again");
}

}  // namespace fsdprun
