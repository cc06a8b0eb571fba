// sim_main --seed 1 --nodes 64 [--hours H] [--faults FILE] [--log short] [--runs N] [--check-every
// K] [--max-seconds S] Runs N seeds from --seed on and prints one line each. Exit code 1 at the
// first violation, with its command line.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/sim/sim_world.h"

namespace {

std::map<std::string, std::string> ParseArguments(int argc, char** argv) {
  std::map<std::string, std::string> arguments = {
      {"--seed", "1"},        {"--nodes", "64"}, {"--hours", "0"},
      {"--faults", ""},       {"--log", ""},     {"--check-every", "1"},
      {"--max-seconds", "0"}, {"--runs", "1"},   {"--local", "2"}};
  for (int i = 1; i < argc; i += 2) {
    if (arguments.count(argv[i]) == 0 || i + 1 == argc) {
      std::fprintf(stderr, "sim_main: unknown flag or missing value: %s\n", argv[i]);
      std::exit(2);
    }
    arguments[argv[i]] = argv[i + 1];
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> arguments = ParseArguments(argc, argv);
  fsdprun::sim::SimOptions options;
  options.nodes = std::stoi(arguments["--nodes"]);
  options.local_world_size = std::stoi(arguments["--local"]);
  options.log = arguments["--log"] == "short";
  options.check_every = std::stoi(arguments["--check-every"]);
  if (!arguments["--faults"].empty()) {
    std::string error;
    options.mix = fsdprun::sim::LoadFaultMix(arguments["--faults"], &error);
    if (!error.empty()) {
      std::fprintf(stderr, "sim_main: %s\n", error.c_str());
      return 2;
    }
  }
  const uint64_t first = std::stoull(arguments["--seed"]);
  const uint64_t runs = std::stoull(arguments["--runs"]);
  const double max_seconds = std::stod(arguments["--max-seconds"]);
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    options.seed = seed;
    const auto start = std::chrono::steady_clock::now();
    fsdprun::sim::World world(options);
    const fsdprun::sim::SimResult r = world.Run(std::stod(arguments["--hours"]));
    const double wall =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf(
        "seed %llu: %s, %.1f virtual s in %.2f s, %llu events, %llu beats, %d faults, %d worlds, "
        "%d restarts, %d "
        "membership changes, %llu stale\n",
        static_cast<unsigned long long>(seed),
        r.outcome ? r.outcome->reason.c_str() : "still running",
        static_cast<double>(r.ended_at) / fsdprun::sim::kSecond, wall,
        static_cast<unsigned long long>(r.items), static_cast<unsigned long long>(r.beats),
        r.faults, r.formations, r.restarts, r.membership_changes,
        static_cast<unsigned long long>(r.stale_dropped));
    if (!r.violation.empty()) {
      std::printf(
          "VIOLATION %s\nreproduce: sim_main --seed %llu --nodes %d --local %d --faults %s --log "
          "short\n",
          r.violation.c_str(), static_cast<unsigned long long>(seed), options.nodes,
          options.local_world_size, arguments["--faults"].c_str());
      return 1;
    }
    if (max_seconds > 0 && wall > max_seconds) {
      std::printf("TOO SLOW: %.2f s, limit %.2f s\n", wall, max_seconds);
      return 1;
    }
  }
  return 0;
}
