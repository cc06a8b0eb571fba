// Saves and loads a checkpoint of random tensors, as a rank of a job. bench_checkpoint.py compares
// it with dcp_io.py, which does the same with PyTorch.
//
//   checkpoint_io DIR PARAMETERS REPEATS
//
// PARAMETERS: how many there are, each with two moments, in tensors of 1024 columns that are
// sharded over the ranks. Rank 0 prints a line of JSON for each repeat: seconds, and seconds of CPU
// of this rank, of a save, and of finding, checking and loading it; and of the second save beside
// steps that are as long as the other took, how long it took, and how long the steps waited for it.

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <fsdp/process_group.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fsdp_runtime/plan/box.h"
#include "fsdp_runtime/store/store_client.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/store_channel.h"

namespace {

using fsdprun::checkpoint::Candidate;
using fsdprun::checkpoint::Group;
using fsdprun::checkpoint::State;

constexpr int64_t kColumns = 1024;
constexpr int64_t kRowsMax = 4096;

struct Cost {
  double seconds = 0;
  double cpu_seconds = 0;
};

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Of all ranks together, from when the last has come to when the last is done.
Cost CostOf(const Group& group, const std::function<void()>& work) {
  group.collectives->barrier();
  const auto start = std::chrono::steady_clock::now();
  const double cpu_before = CpuSeconds();
  work();
  const double cpu = CpuSeconds() - cpu_before;
  group.collectives->barrier();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), cpu};
}

State StateOf(const fsdp::Collectives& world, int64_t parameters) {
  State state;
  for (int64_t left = parameters / kColumns, index = 0; left > 0; ++index) {
    const int64_t rows = std::min(left, kRowsMax);
    left -= rows;
    for (const char* kind : {"model.", "optim.state.", "optim.state."}) {
      const bool is_second = state.tensors.size() % 3 == 2;
      fsdp::LocalShard slice;
      slice.fqn = kind + std::string("weight_") + std::to_string(index) +
                  (kind[0] == 'm' ? ""
                   : is_second    ? ".exp_avg_sq"
                                  : ".exp_avg");
      slice.global_shape = {rows, kColumns};
      const int64_t begin = rows * world.rank() / world.size();
      const int64_t end = rows * (world.rank() + 1) / world.size();
      if (end > begin) {
        slice.boxes = {{{begin, 0}, {end - begin, kColumns}}};
      }
      slice.local = at::rand({end - begin, kColumns});
      state.tensors.push_back(std::move(slice));
    }
  }
  return state;
}

std::shared_ptr<fsdprun::checkpoint::Channel> StoreChannelOf(const fsdp::Collectives& world) {
  const auto options = fsdp::ProcessGroupOptions::from_environment(at::kCPU);
  fsdprun::checkpoint::StoreChannelOptions channel;
  channel.store = std::make_shared<fsdp::StoreClient>(options.master_addr, options.master_port,
                                                      std::chrono::seconds(30));
  channel.prefix = options.store_prefix + "/bench";
  channel.rank = world.rank();
  channel.size = world.size();
  return std::make_shared<fsdprun::checkpoint::StoreChannel>(std::move(channel));
}

/// Forwards and backwards of a training that has nothing else to do.
void Compute(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const at::Tensor a = at::rand({256, 256});
  while (std::chrono::steady_clock::now() < end) {
    at::mm(a, a);
  }
}

struct Beside {
  double seconds = 0;
  double waited_seconds = 0;
};

/// Of a save that is begun beside steps of so many seconds.
Beside CostBeside(fsdprun::checkpoint::Saver& saver, const Group& group, int64_t step,
                  const State& state, double step_seconds) {
  Beside cost;
  const auto wait = [&](const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    cost.waited_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  group.collectives->barrier();
  wait([&] { saver.Begin(step, state); });
  do {
    Compute(step_seconds);
    wait([&] { saver.AwaitCopy(); });
  } while (!saver.HasEnded());
  group.collectives->barrier();  // as a step has collectives anyhow
  wait([&] { saver.Finish(); });
  cost.seconds = std::chrono::duration<double>(saver.save_time()).count();
  return cost;
}

void Run(const std::string& dir, int64_t parameters, int64_t repeats) {
  const auto world =
      fsdp::init_process_group(fsdp::ProcessGroupOptions::from_environment(at::kCPU));
  const Group group{world, at::kCPU, nullptr, nullptr};
  State state = StateOf(*world, parameters);
  fsdprun::checkpoint::SaverOptions options;
  options.dir = dir;
  options.keep = 1;
  options.group = group;
  options.job_id = "bench";
  options.background = StoreChannelOf(*world);
  fsdprun::checkpoint::Saver saver(options);
  for (int64_t step = 1; step < 3 * repeats; step += 3) {
    const Cost save = CostOf(group, [&] { saver.Save(step, state); });
    const Cost load = CostOf(group, [&] {
      const auto found = fsdprun::checkpoint::FindResume(dir, "auto", group,
                                                         fsdprun::checkpoint::Verify::kStructure);
      if (!found || found->step != step) {
        throw std::runtime_error("the checkpoint of step " + std::to_string(step) +
                                 " was not found");
      }
      fsdprun::checkpoint::Load(*found, state, group);
    });
    const Beside first = CostBeside(saver, group, step + 1, state, save.seconds);
    const Beside beside = CostBeside(saver, group, step + 2, state, save.seconds);
    if (world->rank() == 0) {
      std::printf("{\"save\": %.4f, \"save_cpu\": %.4f, \"load\": %.4f, \"load_cpu\": %.4f, ",
                  save.seconds, save.cpu_seconds, load.seconds, load.cpu_seconds);
      std::printf("\"beside\": %.4f, \"stall\": %.4f, \"first_stall\": %.4f}\n", beside.seconds,
                  beside.waited_seconds, first.waited_seconds);
      std::fflush(stdout);
    }
  }
  saver.Release();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: checkpoint_io DIR PARAMETERS REPEATS\n");
    return 2;
  }
  try {
    Run(argv[1], std::stoll(argv[2]), std::stoll(argv[3]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_io: %s\n", error.what());
    return 1;
  }
}
