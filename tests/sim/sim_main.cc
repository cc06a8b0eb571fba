// sim_main --seed 1|random --nodes 64 [--hours H] [--faults FILE] [--log short] [--runs N]
// [--minutes M] [--check-every K] [--min-heartbeats B] [--max-seconds S] [--wire-every W]
// [--min-questions Q] [--max-formation F]
//
// Runs N seeds from --seed on, or as many as M minutes allow. Prints for each the command line that
// reproduces it, before it runs so that a crash or a hang has a seed, too; and what came of it.
// Exit code 1 at the first violation; or if all runs together asked an oracle fewer questions than
// Q says, as in outcome=10,overlap=200; or if a run delivered fewer heartbeats than B or took more
// than S seconds of CPU time, which a busy machine does not lengthen as it does the time on the
// wall; or if the first world was committed later than F virtual seconds after the start.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <string>

#include "tests/sim/sim_world.h"

namespace {

using fsdprun::sim::SimOptions;
using fsdprun::sim::SimResult;
/// By the name of the oracle.
using Questions = std::map<std::string, int>;

std::map<std::string, std::string> ParseArguments(int argc, char** argv) {
  std::map<std::string, std::string> arguments = {
      {"--seed", "1"},         {"--nodes", "64"},
      {"--hours", "0"},        {"--faults", ""},
      {"--log", ""},           {"--check-every", "1"},
      {"--max-seconds", "0"},  {"--min-heartbeats", "0"},
      {"--runs", "1"},         {"--local", "2"},
      {"--wire-every", "1"},   {"--minutes", "0"},
      {"--min-questions", ""}, {"--max-formation", "0"}};
  for (int i = 1; i < argc; i += 2) {
    if (arguments.count(argv[i]) == 0 || i + 1 == argc) {
      std::fprintf(stderr, "sim_main: unknown flag or missing value: %s\n", argv[i]);
      std::exit(2);
    }
    arguments[argv[i]] = argv[i + 1];
  }
  return arguments;
}

/// Small enough to be typed.
uint64_t RandomSeed() { return std::random_device()() % 1'000'000'000; }

/// What a run must reach besides breaking nothing.
struct Bounds {
  double hours = 0;
  double max_seconds = 0;
  uint64_t min_heartbeats = 0;
  double max_formation = 0;
};

void PrintCommand(const SimOptions& options, const Bounds& bounds, const std::string& faults_file) {
  std::printf("sim_main --seed %llu --nodes %d --local %d --hours %g --faults %s --log short\n",
              static_cast<unsigned long long>(options.seed), options.nodes,
              options.local_world_size, bounds.hours, faults_file.c_str());
  std::fflush(stdout);
}

void Print(uint64_t seed, const SimResult& r, double seconds) {
  std::printf(
      "seed %llu: %s, %.1f virtual s in %.2f s, %llu events, %llu heartbeats, %d faults, %d "
      "worlds, the first after %.2f s, "
      "%d restarts, %d membership changes, %llu stale\n",
      static_cast<unsigned long long>(seed),
      r.outcome ? r.outcome->reason.c_str() : "still running",
      static_cast<double>(r.ended_at) / fsdprun::sim::kSecond, seconds,
      static_cast<unsigned long long>(r.items), static_cast<unsigned long long>(r.heartbeats),
      r.faults, r.formations, static_cast<double>(r.committed_at) / fsdprun::sim::kSecond,
      r.restarts, r.membership_changes, static_cast<unsigned long long>(r.stale_dropped));
}

bool RunSeed(const SimOptions& options, const Bounds& bounds, const std::string& faults_file,
             Questions* questions) {
  PrintCommand(options, bounds, faults_file);
  const std::clock_t start = std::clock();
  fsdprun::sim::World world(options);
  const SimResult result = world.Run(bounds.hours);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  Print(options.seed, result, seconds);
  for (const auto& [oracle, count] : result.questions) {
    (*questions)[oracle] += count;
  }
  if (!result.violation.empty()) {
    std::printf("VIOLATION %s\nreproduce: ", result.violation.c_str());
    PrintCommand(options, bounds, faults_file);
    return false;
  }
  if (result.heartbeats < bounds.min_heartbeats) {
    std::printf("TOO FEW HEARTBEATS: %llu, expected at least %llu\n",
                static_cast<unsigned long long>(result.heartbeats),
                static_cast<unsigned long long>(bounds.min_heartbeats));
    return false;
  }
  const double committed = static_cast<double>(result.committed_at) / fsdprun::sim::kSecond;
  if (bounds.max_formation > 0 && (result.committed_at == 0 || committed > bounds.max_formation)) {
    std::printf("FORMED TOO LATE: after %.2f virtual s, limit %.2f s\n", committed,
                bounds.max_formation);
    return false;
  }
  if (bounds.max_seconds > 0 && seconds > bounds.max_seconds) {
    std::printf("TOO SLOW: %.2f s of CPU time, limit %.2f s\n", seconds, bounds.max_seconds);
    return false;
  }
  return true;
}

/// Reads name=count,name=count. A wrong name would ask for nothing.
Questions ParseMinimum(const std::string& text, const Questions& asked) {
  Questions minimum;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string oracle = part.substr(0, equals);
    if (equals == std::string::npos || asked.count(oracle) == 0) {
      std::fprintf(stderr, "sim_main: --min-questions: not an oracle and its count: %s\n",
                   part.c_str());
      std::exit(2);
    }
    minimum[oracle] = std::stoi(part.substr(equals + 1));
  }
  return minimum;
}

/// A check that is never asked anything passes whatever happens.
bool WereAsked(const Questions& asked, const std::string& text) {
  Questions minimum = ParseMinimum(text, asked);
  bool enough = true;
  for (const auto& [oracle, count] : asked) {
    std::printf("questions of the %s: %d, expected %d\n", oracle.c_str(), count, minimum[oracle]);
    enough = enough && count >= minimum[oracle];
  }
  return enough;
}

/// False at the first seed that fails.
bool RunSeeds(SimOptions options, const Bounds& bounds,
              const std::map<std::string, std::string>& arguments) {
  using Clock = std::chrono::steady_clock;
  const double minutes = std::stod(arguments.at("--minutes"));
  const auto end = Clock::now() + std::chrono::duration<double, std::ratio<60>>(minutes);
  const uint64_t runs =
      minutes > 0 ? std::numeric_limits<uint64_t>::max() : std::stoull(arguments.at("--runs"));
  Questions questions;
  for (uint64_t run = 0; run < runs; ++run, ++options.seed) {
    if (minutes > 0 && Clock::now() >= end) {
      std::printf("%llu seeds, none of which failed\n", static_cast<unsigned long long>(run));
      return true;
    }
    if (!RunSeed(options, bounds, arguments.at("--faults"), &questions)) {
      return false;
    }
  }
  return WereAsked(questions, arguments.at("--min-questions"));
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> arguments = ParseArguments(argc, argv);
  SimOptions options;
  options.nodes = std::stoi(arguments["--nodes"]);
  options.local_world_size = std::stoi(arguments["--local"]);
  options.log = arguments["--log"] == "short";
  options.check_every = std::stoi(arguments["--check-every"]);
  options.wire_every = std::stoi(arguments["--wire-every"]);
  if (!arguments["--faults"].empty()) {
    std::string error;
    options.mix = fsdprun::sim::LoadFaultMix(arguments["--faults"], &error);
    if (!error.empty()) {
      std::fprintf(stderr, "sim_main: %s\n", error.c_str());
      return 2;
    }
  }
  Bounds bounds;
  bounds.hours = std::stod(arguments["--hours"]);
  bounds.max_seconds = std::stod(arguments["--max-seconds"]);
  bounds.max_formation = std::stod(arguments["--max-formation"]);
  bounds.min_heartbeats = std::stoull(arguments["--min-heartbeats"]);
  options.seed = arguments["--seed"] == "random" ? RandomSeed() : std::stoull(arguments["--seed"]);
  return RunSeeds(options, bounds, arguments) ? 0 : 1;
}
