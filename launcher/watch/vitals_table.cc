#include "launcher/watch/vitals_table.h"

#include <algorithm>
#include <utility>

namespace fsdprun {
namespace {

watch::OwnSample SampleOf(const v1::OwnVitals& own) {
  watch::OwnSample sample;
  sample.step = own.step();
  sample.activity = watch::ActivityNamed(own.phase());
  sample.begun = own.collectives_begun();
  // Each was read at a time of its own.
  sample.ended = std::min(own.collectives_ended(), own.collectives_begun());
  sample.collective = own.collective();
  sample.unit = own.unit();
  sample.bytes = own.collective_bytes();
  sample.step_time = Duration(own.step_ns());
  sample.collective_wait = Duration(own.collective_wait_ns());
  sample.data_wait = Duration(own.data_wait_ns());
  sample.save_time = Duration(own.save_ns());
  return sample;
}

/// Both are of one process, at different times.
std::optional<double> CpusBetween(const VitalsTable::Entry& before, const v1::WorkerVitals& after,
                                  MonoTime now) {
  const int64_t used = after.cpu_ns() - before.vitals.cpu_ns();
  if (before.vitals.pid() == 0 || before.vitals.pid() != after.pid() || now <= before.at ||
      used < 0) {
    return std::nullopt;
  }
  return static_cast<double>(used) / static_cast<double>((now - before.at).count());
}

}  // namespace

void VitalsTable::Begin(Generation generation) {
  generation_ = generation;
  entries_.clear();
}

bool VitalsTable::Take(const v1::NodeVitals& vitals, MonoTime now) {
  if (Generation(vitals.generation()) != generation_) {
    return false;
  }
  for (const v1::WorkerVitals& worker : vitals.workers()) {
    Entry& entry = entries_[worker.rank()];
    entry = {worker, now, CpusBetween(entry, worker, now)};
  }
  return true;
}

watch::VitalsCame SamplesOf(const v1::NodeVitals& vitals) {
  watch::VitalsCame came{Generation(vitals.generation()), {}};
  for (const v1::WorkerVitals& worker : vitals.workers()) {
    watch::Sample sample{worker.rank(), worker.pid(), static_cast<char>(worker.state()),
                         Duration(worker.cpu_ns()), std::nullopt};
    if (worker.has_own()) {
      sample.own = SampleOf(worker.own());
    }
    came.workers.push_back(std::move(sample));
  }
  return came;
}

}  // namespace fsdprun
