// Whether a job is still the coordinator's that has a process of its own: asked before a world is
// formed, where another may take the job over while this one lives. What follows is decided by
// PlaceSearch, as for launchers.

#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "launcher/run/coordinator_run.h"

namespace fsdprun {

bool CoordinatorRun::CanBeTaken() const {
  return place_.can_be_taken || (journal_ != nullptr && journal_->can_be_taken());
}

void CoordinatorRun::BeginPlace() {
  StepPlace(place::Began{Place::MayMove::kNever, CanBeTaken(), place_.longest_look_pause});
}

void CoordinatorRun::StepPlace(place::Event event) {
  place::Facts facts{.hosts = true, .is_alone = false, .has_run = true, .was_admitted = false};
  facts.awaits_check = host_ != nullptr && host_->machine().awaits_place();
  for (place::Action& action : search_.Step(std::move(event), facts, MonoNow())) {
    std::visit([this](auto& what) { Execute(what); }, action);
  }
  loop_.Cancel(std::exchange(search_timer_, 0));
  if (search_.wake_at() != MonoTime::max()) {
    search_timer_ = loop_.At(search_.wake_at(), [this] { StepPlace(place::TimerDue{}); });
  }
}

// By whoever has taken the journal, or by a launcher that must not have.
void CoordinatorRun::OnClaimTaken() {
  const auto why = std::make_shared<absl::Status>();
  directory_thread_.Run(
      [why, journal = journal_] {
        *why = journal != nullptr ? journal->Confirm() : absl::OkStatus();
      },
      [this, why] {
        if (absl::IsAborted(*why)) {
          OnJournalTaken(*why);
        } else {
          StepPlace(place::Taken{});
        }
      });
}

// The journal and the claim: who has lost either may form no world.
void CoordinatorRun::Execute(const place::Ask&) {
  struct Answer {
    place::Asked asked{absl::UnknownError(""), {}};
    absl::Status journal;
  };
  const auto answer = std::make_shared<Answer>();
  directory_thread_.Run(
      [answer, journal = journal_, directory = directory_, has_claim = place_.can_be_taken] {
        answer->asked.at = MonoNow();
        answer->journal = journal != nullptr ? journal->Confirm() : absl::OkStatus();
        const absl::StatusOr<bool> is_own =
            has_claim ? directory->Confirm() : absl::StatusOr<bool>(true);
        answer->asked.has_moved = is_own.ok() ? absl::StatusOr<bool>(!*is_own) : is_own.status();
        if (!answer->journal.ok()) {
          answer->asked.has_moved = answer->journal;
        }
      },
      [this, answer] {
        if (absl::IsAborted(answer->journal)) {
          OnJournalTaken(answer->journal);
        } else if (taken_.ok()) {
          StepPlace(answer->asked);
        }
      });
}

void CoordinatorRun::Execute(const place::Confirmed& confirmed) {
  host_->PlaceChecked(confirmed.at);
}

void CoordinatorRun::Execute(const place::Unknown& unknown) {
  Log(LogLevel::kWarning,
      absl::StrCat("cannot make sure that no other coordinator has taken run id '", plan_.rdzv_id,
                   "' over meanwhile: ", unknown.why,
                   "; no workers are started before that is known, and it is tried again"));
  host_->PlaceUnknown(unknown.why);
}

// Of the claim alone: the journal is this one's.
void CoordinatorRun::Execute(const place::Replaced& replaced) {
  const std::string what = absl::StrCat("another launcher has taken run id '", plan_.rdzv_id,
                                        "' while this coordinator could not renew its claim at ",
                                        ToString(plan_.endpoint));
  if (!replaced.is_told) {
    Log(LogLevel::kWarning,
        absl::StrCat(what, "; workers that run go on, but none are started any more"));
  }
  host_->Replaced(absl::StrCat(what,
                               "; end one of the two jobs, and give launchers is_host=0 in "
                               "--rdzv-conf, so that none takes the coordinator's place"));
}

void CoordinatorRun::Execute(const place::GiveUpClaim&) {
  directory_thread_.Run([directory = directory_] { directory->JobEnded(/*closes=*/false); }, [] {});
}

}  // namespace fsdprun
