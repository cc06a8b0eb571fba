// A worker that reduces with Gloo all the time, and notes when its first collective was done: what
// bench_elastic.py and bench_restarts.py run under a launcher.
//
//   collective_worker FOLDER [DEATHS]
//
// FOLDER/met.<world size>.<rank>.<pid> has nanoseconds of CLOCK_MONOTONIC: when main() began, when
// the first collective was done. The rank that is last is killed in each of the first DEATHS
// worlds; the next one ends well.

#include <ATen/ATen.h>
#include <fsdp/process_group.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

namespace {

constexpr int kExitPeerLost = 79;
constexpr std::chrono::milliseconds kPause{5};

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void reduce(fsdp::Collectives& group) {
  at::Tensor ones = at::ones({16});
  group.all_reduce(ones, fsdp::ReduceOp::kSum)->wait();
  TORCH_CHECK(ones[0].item<float>() == static_cast<float>(group.size()), "wrong sum");
}

void note(const std::string& folder, const fsdp::Collectives& group, int64_t began_ns) {
  const std::string name = "met." + std::to_string(group.size()) + "." +
                           std::to_string(group.rank()) + "." + std::to_string(::getpid());
  const std::string part = folder + "/part-" + name;
  std::ofstream(part) << began_ns << ' ' << now_ns() << '\n';
  std::filesystem::rename(part, folder + "/" + name);
}

int run(const std::string& folder, int deaths, int64_t began_ns) {
  fsdp::ProcessGroupOptions options = fsdp::ProcessGroupOptions::from_environment(at::kCPU);
  options.backend = "gloo";
  const auto group = fsdp::init_process_group(options);
  reduce(*group);
  note(folder, *group, began_ns);
  if (deaths >= 0) {
    const char* restart = std::getenv("TORCHELASTIC_RESTART_COUNT");
    if (restart != nullptr && std::atoi(restart) >= deaths) {
      group->barrier();
      return 0;
    }
    group->barrier();  // All have noted it.
    if (group->rank() == group->size() - 1) {
      std::raise(SIGKILL);
    }
  }
  while (true) {
    reduce(*group);
    ::usleep(static_cast<useconds_t>(std::chrono::microseconds(kPause).count()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t began_ns = now_ns();
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: collective_worker FOLDER [DEATHS]\n";
    return 2;
  }
  try {
    return run(argv[1], argc == 3 ? std::atoi(argv[2]) : -1, began_ns);
  } catch (const fsdp::PeerError& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return kExitPeerLost;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
