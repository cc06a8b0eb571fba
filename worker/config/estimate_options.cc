#include "worker/config/estimate_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <system_error>
#include <utility>

#include "worker/config/command_line.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kMaxRanks = int64_t{1} << 20;
constexpr double kMaxBytes = 0x1p60;
constexpr char kByteCount[] = "a number of bytes such as 80GiB";
constexpr char kRankCount[] = "an integer from 1 to 1048576";

using EstimateTake = std::function<void(const std::string&)>;

/// An option that takes one value; of several the last counts.
struct EstimateOption {
  std::string name;
  const char* value;
  std::string expectation;
  const char* help;
};

void AddEstimateOption(CLI::App& command, std::map<std::string, std::string>& expectations,
                       const EstimateOption& option, const EstimateTake& take) {
  expectations[option.name] = option.expectation;
  command.add_option_function<std::string>(option.name, take, option.help)
      ->type_name(option.value)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

[[noreturn]] void RefuseValue(const EstimateOption& option, const std::string& text) {
  throw UsageError(option.name + " " + text + ": expected " + option.expectation);
}

/// The whole of `text`, if it is a number.
template <class T>
std::optional<T> ParseWhole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

EstimateTake TakeBytes(const EstimateOption& option, const std::function<void(int64_t)>& take) {
  return [option, take](const std::string& text) {
    const std::optional<int64_t> bytes = ParseByteCount(text);
    if (!bytes) {
      RefuseValue(option, text);
    }
    take(*bytes);
  };
}

EstimateTake TakeNumber(const EstimateOption& option, double high,
                        const std::function<void(double)>& take) {
  return [option, high, take](const std::string& text) {
    const std::optional<double> number = ParseWhole<double>(text);
    if (!number || !(*number > 0) || !(*number <= high)) {
      RefuseValue(option, text);
    }
    take(*number);
  };
}

}  // namespace

std::optional<int64_t> ParseByteCount(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 10> kUnits = {{{"", 1},
                                                                           {"B", 1},
                                                                           {"KB", 1e3},
                                                                           {"MB", 1e6},
                                                                           {"GB", 1e9},
                                                                           {"TB", 1e12},
                                                                           {"KiB", 0x1p10},
                                                                           {"MiB", 0x1p20},
                                                                           {"GiB", 0x1p30},
                                                                           {"TiB", 0x1p40}}};
  const size_t length = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::optional<double> number = ParseWhole<double>(text.substr(0, length));
  std::string_view unit = text.substr(length);
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  for (const auto& [name, factor] : kUnits) {
    if (number && unit == name) {
      const double bytes = std::floor(*number * factor);
      return bytes >= 1 && bytes < kMaxBytes ? std::optional(static_cast<int64_t>(bytes))
                                             : std::nullopt;
    }
  }
  return std::nullopt;
}

void AddWorldOption(CLI::App& command, EstimateRequest& request,
                    std::map<std::string, std::string>& expectations) {
  const EstimateOption option{"--world", "N", kRankCount,
                              "ranks that the run is to have; default: as many as there are"};
  AddEstimateOption(command, expectations, option, [option, &request](const std::string& text) {
    const std::optional<int64_t> ranks = ParseWhole<int64_t>(text);
    if (!ranks || *ranks < 1 || *ranks > kMaxRanks) {
      RefuseValue(option, text);
    }
    request.ranks = *ranks;
  });
}

void AddEstimateOptions(CLI::App& command, EstimateRequest& request,
                        std::map<std::string, std::string>& expectations) {
  AddWorldOption(command, request, expectations);
  const EstimateOption device{"--device", "NAME", "the name of a GPU",
                              "a GPU such as H100, whose peak is known; default: this machine's"};
  AddEstimateOption(command, expectations, device,
                    [&request](const std::string& text) { request.device = text; });
  const EstimateOption memory{"--device-memory", "SIZE", kByteCount,
                              "of a GPU, such as 80GiB: whether the run fits"};
  AddEstimateOption(command, expectations, memory,
                    TakeBytes(memory, [&request](int64_t b) { request.device_memory = b; }));
  const EstimateOption peak{"--peak-flops", "F", "a number > 0",
                            "of one device, in operations per second, such as 989e12;\n"
                            "default: metrics.peak_flops, else --device's"};
  AddEstimateOption(command, expectations, peak,
                    TakeNumber(peak, 1e30, [&request](double f) { request.peak_flops = f; }));
  const EstimateOption mfu{"--mfu", "PART", "a number > 0, up to 1",
                           "what part of it is made use of (default 0.4)"};
  AddEstimateOption(command, expectations, mfu,
                    TakeNumber(mfu, 1, [&request](double m) { request.mfu = m; }));
  const EstimateOption bandwidth{"--bandwidth", "SIZE", kByteCount,
                                 "in a second to and from a rank (default 50GB)"};
  AddEstimateOption(command, expectations, bandwidth, TakeBytes(bandwidth, [&request](int64_t b) {
                      request.bandwidth = static_cast<double>(b);
                    }));
  command
      .add_flag_callback(
          "--json", [&request] { request.is_json = true; }, "as JSON")
      ->disable_flag_override();
  command.footer(
      "Says what a run of this configuration takes: memory of a rank, what ranks send each other, "
      "and the time of\na step. It starts nothing, and needs neither GPUs nor data "
      "(docs/TRAINING.md).");
}

}  // namespace fsdprun::worker
