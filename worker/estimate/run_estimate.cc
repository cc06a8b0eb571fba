#include "worker/estimate/run_estimate.h"

#include <optional>

#include "worker/config/command_line.h"
#include "worker/config/config.h"
#include "worker/config/config_schema.h"
#include "worker/estimate/base_dtype.h"
#include "worker/estimate/estimate.h"
#include "worker/estimate/format_estimate.h"
#include "worker/estimate/run_rules.h"
#include "worker/metrics/peak_flops.h"

namespace fsdprun::worker {
namespace {

/// Of one device; 0: not known.
double PeakFlopsFor(const TrainConfig& config, const EstimateRequest& request) {
  if (request.peak_flops) {
    return *request.peak_flops;
  }
  if (!request.device.empty()) {
    const std::optional<double> peak = PeakFlopsOf(request.device);
    if (!peak) {
      throw UsageError("--device " + request.device +
                       ": expected the name of a known GPU, such as H100, A100 or L40S; give "
                       "--peak-flops for another");
    }
    return *peak;
  }
  return config.metrics.peak_flops ? *config.metrics.peak_flops
                                   : PeakFlopsOfMachine(GpuNames()).value_or(0);
}

}  // namespace

std::string AutoBackendHere(bool is_one_host) {
  if (!GpuNames().empty()) {
    return "nccl";
  }
  return is_one_host ? "shm" : "gloo";
}

std::string RunEstimate(Json merged, const EstimateRequest& request, int64_t present_ranks) {
  Json& data = merged.at("data");
  if (data.at("train").is_null() && data.at("mixture").empty()) {
    data.at("train") = Json::array({"none"});  // of which nothing depends here
  }
  ValidateConfig(merged);
  const TrainConfig config = ParseConfig(merged);
  const ModelConfig model = ReadModelConfig(config.model.config);
  EstimateOptions options;
  options.ranks = request.ranks > 0 ? request.ranks : present_ranks;
  CheckFitsModel(config, model, options.ranks);
  options.weights_dtype = DtypeOfStoredBase(config, model);
  options.speed = {PeakFlopsFor(config, request), request.mfu, request.bandwidth};
  const Estimate estimate = EstimateRun(config, model, options);
  std::optional<MemoryVerdict> verdict;
  if (request.device_memory) {
    verdict = JudgeMemory(config, model, options, estimate, *request.device_memory);
  }
  return request.is_json ? EstimateJson(config, model, estimate, verdict).dump(2) + "\n"
                         : EstimateText(config, model, estimate, verdict);
}

}  // namespace fsdprun::worker
