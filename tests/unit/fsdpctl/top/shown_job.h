#pragma once

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdprun/v1/control.pb.h"

namespace fsdprun::top {

inline constexpr int64_t kSecondNs = 1'000'000'000;
inline constexpr int64_t kGiB = int64_t{1} << 30;

/// A worker of fsdp-train in its step `step`, that has been heard of just now.
inline v1::WorkerStatus* AddWorker(int rank, int64_t step, v1::JobStatus* status) {
  v1::WorkerStatus* const worker = status->add_workers();
  worker->set_rank(rank);
  worker->set_vitals_age_ns(kSecondNs / 2);
  worker->set_cpus(1.01);
  v1::WorkerVitals* const vitals = worker->mutable_vitals();
  vitals->set_rank(rank);
  vitals->set_pid(4000 + rank);
  vitals->set_state('R');
  vitals->set_rss_bytes(3 * kGiB + rank * kGiB / 8);
  vitals->set_pss_bytes(2 * kGiB);
  v1::OwnVitals* const own = vitals->mutable_own();
  own->set_step(step);
  own->set_total(1000);
  own->set_loss(2.5);
  own->set_tokens_per_second(12345);
  own->set_step_ns(800'000'000 + int64_t{rank} * 1'000'000);
  own->set_collective_wait_ns(200'000'000);
  own->set_data_wait_ns(8'000'000);
  own->set_device_bytes(40 * kGiB);
  own->set_device_peak_bytes(60 * kGiB);
  own->set_phase("waiting_for_data");
  return worker;
}

/// A job that runs on `nodes` nodes with `per_node` workers of fsdp-train each, in step 120.
inline v1::JobStatus ShownJob(int nodes, int per_node) {
  v1::JobStatus status;
  status.set_job("run7");
  status.set_phase("running");
  status.set_reason("all workers run");
  status.set_generation(2);
  status.set_world_size(nodes * per_node);
  status.set_min_nodes(1);
  status.set_max_nodes(4);
  status.set_restarts_used(1);
  status.set_max_restarts(3);
  status.set_age_ns(3 * 3600 * kSecondNs);
  status.mutable_progress()->set_step(119);
  status.mutable_progress()->set_total(1000);
  status.set_progress_age_ns(kSecondNs);
  status.mutable_coordinator()->set_node("node0");
  status.mutable_coordinator()->set_pid(4711);
  status.mutable_coordinator()->set_endpoint("node0:29400");
  status.mutable_coordinator()->mutable_build()->set_release("1.0");
  for (int node = 0; node < nodes; ++node) {
    v1::NodeStatus* const told = status.add_nodes();
    told->set_name(absl::StrCat("node", node));
    told->set_address(absl::StrCat("10.0.0.", node));
    told->set_state("member");
    told->set_connected(true);
    told->set_group_rank(node);
    told->set_first_rank(node * per_node);
    told->set_workers(per_node);
    told->set_heard_age_ns(kSecondNs / 5);
  }
  for (int rank = 0; rank < nodes * per_node; ++rank) {
    AddWorker(rank, 120, &status);
  }
  return status;
}

/// Nothing is said but what is seen from outside, as of a program in Python.
inline void SaysNothing(v1::WorkerStatus* worker) { worker->mutable_vitals()->clear_own(); }

/// The watch has found that the job hangs because of `rank`.
inline void Hangs(int rank, v1::JobStatus* status) {
  v1::Finding* const finding = status->add_findings();
  finding->set_id(1);
  finding->set_kind("hang");
  finding->set_what(absl::StrCat("rank ", rank,
                                 " has been stopped (state T: SIGSTOP or job control; kill -CONT "
                                 "lets it go on) for 8.6 s in step 120"));
  finding->set_age_ns(2 * kSecondNs);
  finding->add_ranks(rank);
}

}  // namespace fsdprun::top
