#include "agent/local/worker_vitals.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace fsdprun {
namespace {

void RemoveOtherPages(const std::string& directory, Generation generation) {
  const std::string prefix = absl::StrCat(generation.value(), ".");
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    if (!absl::StartsWith(it->path().filename().string(), prefix)) {
      std::error_code ignored;
      std::filesystem::remove(it->path(), ignored);
    }
  }
}

template <typename GetView>
WorkerPages TakeAll(const RunDirs& dirs, Generation generation, int workers,
                    const GetView& get_view) {
  WorkerPages pages{.generation = generation, .views = {}, .problem = ""};
  for (int local_rank = 0; local_rank < workers && !dirs.vitals.empty(); ++local_rank) {
    absl::StatusOr<VitalsView> view = get_view(VitalsPath(dirs, generation, local_rank));
    if (!view.ok()) {
      pages.problem = std::string(view.status().message());
      break;
    }
    pages.views.push_back(*std::move(view));
  }
  return pages;
}

}  // namespace

WorkerPages MakeWorkerPages(const RunDirs& dirs, Generation generation, int workers) {
  if (!dirs.vitals.empty()) {
    // Somebody may have cleaned up meanwhile, as systemd does at a logout.
    std::error_code ignored;
    std::filesystem::create_directories(dirs.vitals, ignored);
    RemoveOtherPages(dirs.vitals, generation);
  }
  return TakeAll(dirs, generation, workers, VitalsView::Make);
}

WorkerPages OpenWorkerPages(const RunDirs& dirs, Generation generation, int workers) {
  return TakeAll(dirs, generation, workers, VitalsView::Open);
}

bool WorkerVitals::HasPage(Generation generation, int local_rank) const {
  return pages_.generation == generation && static_cast<size_t>(local_rank) < pages_.views.size();
}

void WorkerVitals::Begin(Generation generation, int rank_offset) {
  generation_ = generation;
  rank_offset_ = rank_offset;
  workers_.clear();
  pss_due_ = MonoTime::min();
  families_due_ = MonoTime::min();
}

void WorkerVitals::NoteStarted(int local_rank, pid_t pid) {
  workers_.insert_or_assign(local_rank, Worker{.family = WorkerFamily(pid)});
  families_due_ = MonoTime::min();
}

pid_t WorkerVitals::Speaker(int local_rank, Worker& worker) {
  return worker.family.Speaker(HasPage(generation_, local_rank)
                                   ? pages_.views[static_cast<size_t>(local_rank)].Writer(copy_)
                                   : 0);
}

pid_t WorkerVitals::SpeakerOf(int local_rank) {
  const auto it = workers_.find(local_rank);
  return it == workers_.end() ? 0 : Speaker(local_rank, it->second);
}

v1::NodeVitals WorkerVitals::Read(MonoTime now) {
  v1::NodeVitals node;
  node.set_generation(generation_.value());
  const auto now_ns = static_cast<uint64_t>(now.time_since_epoch().count());
  for (auto& [local_rank, worker] : workers_) {
    const pid_t speaker = Speaker(local_rank, worker);
    std::optional<v1::OwnVitals> own;
    if (HasPage(generation_, local_rank)) {
      own = pages_.views[static_cast<size_t>(local_rank)].Read(copy_, now_ns);
    }
    // Of who says what it does, what it does by itself: what loads data for it may go on while it
    // hangs. Of who says nothing, what all of its processes do.
    std::optional<ProcessUse> use = worker.family.Read();
    if (use.has_value() && own.has_value() && worker.family.IsWriter(speaker)) {
      use = worker.family.ReadSpeaker();
    }
    if (!use.has_value()) {
      continue;
    }
    v1::WorkerVitals* const told = node.add_workers();
    told->set_rank(rank_offset_ + local_rank);
    told->set_pid(speaker);
    told->set_state(static_cast<unsigned char>(use->state));
    told->set_cpu_ns(use->cpu_ns);
    told->set_rss_bytes(use->rss_bytes);
    told->set_pss_bytes(worker.pss_bytes);
    if (own.has_value()) {
      *told->mutable_own() = *std::move(own);
    }
  }
  AskForFamilies(now);
  AskForPss(now);
  return node;
}

/// On the thread that reads what may take long.
void WorkerVitals::AskForFamilies(MonoTime now) {
  if (now < families_due_ || workers_.empty() || families_are_asked_) {
    return;
  }
  families_are_asked_ = true;
  families_due_ = now + kFamilyPeriod;
  const auto families = std::make_shared<std::vector<FamilyMembers>>();
  for (const auto& [local_rank, worker] : workers_) {
    families->push_back({worker.family.worker(), {}});
  }
  pss_thread_.Run([families] { FindFamilies(*families); },
                  [this, families] {
                    families_are_asked_ = false;
                    for (auto& [local_rank, worker] : workers_) {
                      for (const FamilyMembers& found : *families) {
                        if (found.worker == worker.family.worker()) {
                          worker.family.SetOthers(found.others);
                        }
                      }
                    }
                  });
}

void WorkerVitals::AskForPss(MonoTime now) {
  if (now < pss_due_ || workers_.empty()) {
    return;
  }
  if (pss_is_asked_) {  // The kernel does not answer.
    for (auto& [local_rank, worker] : workers_) {
      worker.pss_bytes = 0;
    }
    return;
  }
  pss_is_asked_ = true;
  pss_due_ = now + kPssPeriod;
  const auto all = std::make_shared<std::map<int, std::pair<pid_t, int64_t>>>();
  for (auto& [local_rank, worker] : workers_) {
    (*all)[local_rank] = {Speaker(local_rank, worker), 0};
  }
  pss_thread_.Run(
      [all] {
        for (auto& [local_rank, process] : *all) {
          process.second = ReadPssBytes(process.first);
        }
      },
      [this, all] {
        pss_is_asked_ = false;
        for (const auto& [local_rank, process] : *all) {
          const auto it = workers_.find(local_rank);
          if (it != workers_.end() && Speaker(local_rank, it->second) == process.first) {
            it->second.pss_bytes = process.second;
          }
        }
      });
}

void VitalsBeat::Want(Duration period) {
  loop_.Cancel(timer_);
  timer_ = 0;
  period_ = period <= Duration::zero() ? Duration::zero() : std::max(period, kLeastPeriod);
  if (period_ > Duration::zero()) {
    Beat(Duration(static_cast<int64_t>(static_cast<double>(period_.count()) * first_share_)));
  }
}

void VitalsBeat::Beat(Duration next) {
  timer_ = loop_.At(MonoNow() + next, [this] { Beat(period_); });
  tell_();
}

}  // namespace fsdprun
