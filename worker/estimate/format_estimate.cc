#include "worker/estimate/format_estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

namespace fsdprun::worker {
namespace {

constexpr int kLabelWidth = 26;

std::string Line(const std::string& label, const std::string& value) {
  std::string text = label;
  text.resize(std::max<size_t>(kLabelWidth, label.size() + 1), ' ');
  return text + value + "\n";
}

std::string Number(double value, const char* format = "%.3g") {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

/// "8.03e+09" is hard to read.
std::string CountText(double count) {
  constexpr std::array<std::pair<double, const char*>, 3> kUnits = {
      {{1e9, " billion"}, {1e6, " million"}, {1e3, " thousand"}}};
  for (const auto& [unit, name] : kUnits) {
    if (count >= unit) {
      return Number(count / unit) + name;
    }
  }
  return Number(count, "%.0f");
}

std::string CountText(int64_t count) { return CountText(static_cast<double>(count)); }

std::string PercentText(double part) { return Number(100 * part, "%.0f") + " %"; }

std::string Plural(int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string BandwidthText(double bytes_per_second) {
  return Number(bytes_per_second / 1e9) + " GB/s";
}

std::string DurationText(double seconds) {
  if (seconds < 120) {
    return Number(seconds) + " s";
  }
  if (seconds < 7200) {
    return Number(seconds / 60) + " minutes";
  }
  return seconds < 48 * 3600 ? Number(seconds / 3600) + " hours"
                             : Number(seconds / 86400) + " days";
}

std::string RanksText(const Arrangement& arrangement) {
  std::string text = Plural(arrangement.ranks, "rank") + ", each with a " +
                     (arrangement.is_gpu ? "GPU" : "part of a CPU");
  if (arrangement.copies > 1) {
    text += "; " + std::to_string(arrangement.copies) + " copies of the model, each on " +
            Plural(arrangement.shard_ranks, "rank");
  }
  return text;
}

std::string ModelText(const ModelConfig& model, const Estimate& estimate) {
  const bool is_all = estimate.trainable == estimate.parameters;
  return model.model_type + ", " + CountText(estimate.parameters) + " parameters" +
         (is_all ? ", all trained" : ", " + CountText(estimate.trainable) + " of them trained") +
         "; " + CountText(estimate.parameters_of_rank) + " on a rank";
}

std::string StepText(const TrainConfig& config, const Estimate& estimate) {
  return Plural(estimate.windows_per_step, "window") + " of " +
         Plural(config.data.seq_len, "token") + ", " + CountText(estimate.tokens_per_step) +
         " tokens; on a rank " + Plural(estimate.step.forwards, "forward") + " of at most " +
         Plural(estimate.micro_batch_size, "window");
}

std::string MemoryText(const TrainConfig& config, const Estimate& estimate) {
  const auto line = [](const char* label, int64_t bytes) {
    return Line(std::string("  ") + label, BytesText(bytes));
  };
  const Activations& activations = estimate.activations;
  std::string text = "memory of a rank\n";
  text += line("weights, sharded", estimate.held.shards);
  text += line("their gradients", estimate.held.gradients);
  text += line(("state of " + config.optimizer.name).c_str(), estimate.optimizer.state);
  text += line("gathered weights", estimate.held.gathered);
  text += line("gradients to reduce", estimate.held.unreduced);
  text += line("activations of blocks", activations.blocks + activations.recomputed);
  text += line("logits and loss", activations.at_loss);
  text += line("most of activations", activations.peak());
  if (estimate.optimizer.working > 0) {
    text += line("work of the optimizer", estimate.optimizer.working);
  }
  text += line("batches", estimate.batches);
  const bool is_gpu = estimate.arrangement.is_gpu;
  const std::string copy = estimate.checkpoint_copy > 0
                               ? line(is_gpu ? "on the host, for saves" : "copy for checkpoints",
                                      estimate.checkpoint_copy)
                               : std::string();
  return text + (is_gpu ? "" : copy) + line("peak", estimate.peak()) + (is_gpu ? copy : "");
}

std::string TrafficText(const Estimate& estimate) {
  const Traffic& traffic = estimate.traffic;
  // A step of 2^40 forwards may send more than int64 can count.
  const auto bytes = [](double value) { return BytesText(std::llround(std::min(value, 0x1p62))); };
  std::string text = bytes(traffic.total()) + ": " + bytes(traffic.gathered) + " of weights, " +
                     bytes(traffic.reduced) + " of gradients";
  text += traffic.copied > 0 ? ", " + bytes(traffic.copied) + " between copies" : "";
  text += traffic.optimizer > 0 ? ", " + bytes(traffic.optimizer) + " of the optimizer" : "";
  return text;
}

std::string TimeText(const Estimate& estimate) {
  if (!estimate.time) {
    return "not known; give --device or --peak-flops";
  }
  const double seconds = estimate.time->seconds();
  return DurationText(seconds) + ", up to " +
         DurationText(estimate.time->seconds_without_overlap()) + " if nothing overlaps (compute " +
         DurationText(estimate.time->compute_seconds) + ", communication " +
         DurationText(estimate.time->communication_seconds) + "); " +
         CountText(estimate.tokens_per_second()) + " tokens/s, " +
         DurationText(seconds * static_cast<double>(estimate.total_steps)) + " for " +
         Plural(estimate.total_steps, "step");
}

std::string AssumptionsText(const Estimate& estimate) {
  std::string text;
  if (estimate.time) {
    text =
        Line("assumed",
             Number(estimate.speed.peak_flops / 1e12) + " TFLOP/s at most in a device, of which " +
                 PercentText(estimate.speed.mfu) + " are used (--mfu); " +
                 BandwidthText(estimate.speed.bandwidth) + " to and from a rank (--bandwidth)");
  }
  return text + Line("not counted",
                     "a CUDA context, buffers of NCCL, and what is lost between "
                     "pieces of memory");
}

std::string VerdictText(const MemoryVerdict& verdict, int64_t peak) {
  const std::string part =
      PercentText(static_cast<double>(peak) / static_cast<double>(verdict.device_memory));
  std::string text =
      Line("verdict", std::string(verdict.fits ? "fits" : "does not fit") + ": " + BytesText(peak) +
                          " are " + part + " of " + BytesText(verdict.device_memory) + "; up to " +
                          PercentText(kUsablePart) + " fit");
  for (const Remedy& remedy : verdict.remedies) {
    text += Line("  with", remedy.settings + ": " + BytesText(remedy.peak));
  }
  if (!verdict.fits && verdict.remedies.empty()) {
    text += Line("  with", "more ranks, or a smaller model");
  }
  return text;
}

Json MemoryJson(const Estimate& estimate) {
  const Activations& activations = estimate.activations;
  return {{"shards", estimate.held.shards},
          {"gradients", estimate.held.gradients},
          {"optimizer", estimate.optimizer.state},
          {"gathered", estimate.held.gathered},
          {"unreduced", estimate.held.unreduced},
          {"activations",
           {{"blocks", activations.blocks},
            {"recomputed", activations.recomputed},
            {"at_loss", activations.at_loss},
            {"in_block", activations.in_block},
            {"at_end", activations.at_end},
            {"tables", activations.tables},
            {"peak", activations.peak()}}},
          {"optimizer_work", estimate.optimizer.working},
          {"batches", estimate.batches},
          {"checkpoint_copy", estimate.checkpoint_copy},
          {"peak", estimate.peak()}};
}

Json TimeJson(const Estimate& estimate) {
  Json time = {{"model_flops_per_step", estimate.model_flops},
               {"executed_flops_per_step", estimate.executed_flops},
               {"peak_flops", nullptr},
               {"mfu", estimate.speed.mfu},
               {"bandwidth", estimate.speed.bandwidth},
               {"compute_seconds", nullptr},
               {"communication_seconds", nullptr},
               {"seconds_per_step", nullptr},
               {"seconds_per_step_without_overlap", nullptr},
               {"tokens_per_second", nullptr}};
  if (estimate.time) {
    time["peak_flops"] = estimate.speed.peak_flops;
    time["compute_seconds"] = estimate.time->compute_seconds;
    time["communication_seconds"] = estimate.time->communication_seconds;
    time["seconds_per_step"] = estimate.time->seconds();
    time["seconds_per_step_without_overlap"] = estimate.time->seconds_without_overlap();
    time["tokens_per_second"] = estimate.tokens_per_second();
  }
  return time;
}

Json VerdictJson(const std::optional<MemoryVerdict>& verdict) {
  if (!verdict) {
    return nullptr;
  }
  Json remedies = Json::array();
  for (const Remedy& remedy : verdict->remedies) {
    remedies.push_back({{"settings", remedy.settings}, {"peak", remedy.peak}});
  }
  return {{"device_memory", verdict->device_memory},
          {"usable", UsableBytes(verdict->device_memory)},
          {"fits", verdict->fits},
          {"remedies", remedies}};
}

}  // namespace

std::string BytesText(int64_t bytes) {
  constexpr std::array<std::pair<double, const char*>, 4> kUnits = {
      {{0x1p40, " TiB"}, {0x1p30, " GiB"}, {0x1p20, " MiB"}, {0x1p10, " KiB"}}};
  for (const auto& [unit, name] : kUnits) {
    if (static_cast<double>(bytes) >= unit) {
      return Number(static_cast<double>(bytes) / unit, "%.1f") + name;
    }
  }
  return std::to_string(bytes) + " B";
}

std::string PeakText(const Estimate& estimate) {
  return BytesText(estimate.peak()) + " of a rank " +
         (estimate.arrangement.is_gpu ? "with a GPU" : "on a CPU");
}

MemoryVerdict JudgeMemory(const TrainConfig& config, const ModelConfig& model,
                          const EstimateOptions& options, const Estimate& estimate,
                          int64_t device_memory) {
  const int64_t usable = UsableBytes(device_memory);
  MemoryVerdict verdict{device_memory, estimate.peak() <= usable, {}};
  if (verdict.fits) {
    return verdict;
  }
  verdict.remedies = RemediesFor(config, model, options);
  const auto fits = [usable](const Remedy& remedy) { return remedy.peak <= usable; };
  if (std::any_of(verdict.remedies.begin(), verdict.remedies.end(), fits)) {
    std::erase_if(verdict.remedies, [&fits](const Remedy& remedy) { return !fits(remedy); });
  }
  return verdict;
}

std::string EstimateText(const TrainConfig& config, const ModelConfig& model,
                         const Estimate& estimate, const std::optional<MemoryVerdict>& verdict) {
  std::string text = Line("ranks", RanksText(estimate.arrangement));
  text += Line("model", ModelText(model, estimate));
  text += Line("step", StepText(config, estimate));
  text += MemoryText(config, estimate);
  text += Line("sent by a rank in a step", TrafficText(estimate));
  text += Line("operations of a step",
               Number(estimate.model_flops) +
                   (estimate.executed_flops > estimate.model_flops
                        ? "; with what is computed again " + Number(estimate.executed_flops)
                        : ""));
  text += Line("time of a step", TimeText(estimate));
  text += Line("checkpoint", BytesText(estimate.checkpoint_bytes));
  text += AssumptionsText(estimate);
  return verdict ? text + VerdictText(*verdict, estimate.peak()) : text;
}

Json EstimateJson(const TrainConfig& config, const ModelConfig& model, const Estimate& estimate,
                  const std::optional<MemoryVerdict>& verdict) {
  return {{"ranks", estimate.arrangement.ranks},
          {"shard_ranks", estimate.arrangement.shard_ranks},
          {"copies", estimate.arrangement.copies},
          {"device", estimate.arrangement.is_gpu ? "gpu" : "cpu"},
          {"model_type", model.model_type},
          {"optimizer", config.optimizer.name},
          {"parameters",
           {{"total", estimate.parameters},
            {"trainable", estimate.trainable},
            {"of_rank", estimate.parameters_of_rank}}},
          {"step",
           {{"windows", estimate.windows_per_step},
            {"tokens", estimate.tokens_per_step},
            {"forwards", estimate.step.forwards},
            {"micro_batch_size", estimate.micro_batch_size}}},
          {"memory", MemoryJson(estimate)},
          {"bytes_sent_per_step",
           {{"gathered", estimate.traffic.gathered},
            {"reduced", estimate.traffic.reduced},
            {"copied", estimate.traffic.copied},
            {"optimizer", estimate.traffic.optimizer},
            {"total", estimate.traffic.total()}}},
          {"time", TimeJson(estimate)},
          {"checkpoint_bytes", estimate.checkpoint_bytes},
          {"verdict", VerdictJson(verdict)}};
}

}  // namespace fsdprun::worker
