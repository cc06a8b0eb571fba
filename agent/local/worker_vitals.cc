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
}

void WorkerVitals::NoteStarted(int local_rank, pid_t pid) {
  workers_.insert_or_assign(local_rank, Worker{.gauge = ProcessGauge(pid)});
}

v1::NodeVitals WorkerVitals::Read(MonoTime now) {
  v1::NodeVitals node;
  node.set_generation(generation_.value());
  for (const auto& [local_rank, worker] : workers_) {
    const std::optional<ProcessUse> use = worker.gauge.Read();
    if (!use.has_value()) {
      continue;
    }
    v1::WorkerVitals* const told = node.add_workers();
    told->set_rank(rank_offset_ + local_rank);
    told->set_pid(worker.gauge.pid());
    told->set_state(static_cast<unsigned char>(use->state));
    told->set_cpu_ns(use->cpu_ns);
    told->set_rss_bytes(use->rss_bytes);
    told->set_pss_bytes(worker.pss_bytes);
    if (HasPage(generation_, local_rank)) {
      const auto now_ns = static_cast<uint64_t>(now.time_since_epoch().count());
      if (std::optional<v1::OwnVitals> own =
              pages_.views[static_cast<size_t>(local_rank)].Read(copy_, now_ns)) {
        *told->mutable_own() = *std::move(own);
      }
    }
  }
  AskForPss(now);
  return node;
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
  for (const auto& [local_rank, worker] : workers_) {
    (*all)[local_rank] = {worker.gauge.pid(), 0};
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
          if (it != workers_.end() && it->second.gauge.pid() == process.first) {
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
    Beat();
  }
}

void VitalsBeat::Beat() {
  timer_ = loop_.At(MonoNow() + period_, [this] { Beat(); });
  tell_();
}

}  // namespace fsdprun
