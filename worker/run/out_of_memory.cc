#include "worker/run/out_of_memory.h"

#include <c10/util/Exception.h>
#include <fsdp/collectives.h>

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <string_view>

#include "formats/checkpoint/error.h"
#include "worker/batch/micro_batch_limit.h"
#include "worker/batch/step_plan.h"
#include "worker/estimate/advice.h"
#include "worker/estimate/base_dtype.h"

namespace fsdprun::worker {
namespace {

/// What is no c10::OutOfMemoryError: of the allocator of the host, and of CUDA's libraries.
constexpr std::array<std::string_view, 4> kMessages = {
    "DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory",
    "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED"};

std::string FirstLineOf(const std::exception& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(0, text.find('\n')));
}

/// "; set ...", or nothing. An error in it must not hide the one that there is.
std::string AdviceFor(const StepWithoutMemory& failed) {
  try {
    const std::string advice =
        AdviceText(failed.config, failed.model,
                   {.ranks = failed.ranks,
                    .speed = {},
                    .weights_dtype = DtypeOfStoredBase(failed.config, failed.model)});
    return advice.empty() ? "; more ranks take less memory each" : "; " + advice;
  } catch (const std::exception&) {
    return "";
  }
}

/// "step 3: no memory for a forward and backward of 8 windows (train.micro_batch_size)"
std::string Describe(const StepWithoutMemory& failed, int64_t windows) {
  const bool is_whole = windows == failed.config.train.micro_batch_size;
  return (failed.is_evaluation ? "the evaluation after step " : "step ") +
         std::to_string(failed.step) + ": no memory for a forward " +
         (failed.is_evaluation ? "" : "and backward ") + "of " + std::to_string(windows) +
         (windows == 1 ? " window" : " windows") + (is_whole ? " (train.micro_batch_size)" : "") +
         (failed.has_graph ? ", beside that of a step which the graph of train.step_graph keeps"
                           : "");
}

/// What became of the limit.
std::string WriteLimit(checkpoint::FileSystem& file_system, const StepWithoutMemory& failed,
                       int64_t windows) {
  const std::string& dir = failed.config.checkpoint.dir;
  const std::string path = MicroBatchLimitPath(dir);
  if (failed.is_replaced) {
    return "; another launch has taken over " + dir + ", so " + path + " is left as it is";
  }
  try {
    WriteMicroBatchLimit(file_system, dir, failed.launch + "-" + std::to_string(failed.rank),
                         {windows, failed.step, failed.run, failed.launch,
                          MicroBatchSettings(failed.resolved, failed.model, failed.ranks)});
  } catch (const checkpoint::CheckpointError& error) {
    return "; that it takes at most " + std::to_string(windows) +
           " could not be written: " + error.what();
  }
  return "; " + path + " says now that it takes at most " + std::to_string(windows) +
         ", and the next start does the same batches so" +
         (failed.is_restarted ? ", from the newest checkpoint"
                              : "; start it again, or with a launcher that does (fsdprun "
                                "--max-restarts)" +
                                    AdviceFor(failed));
}

}  // namespace

bool IsOutOfMemory(const std::exception& error) {
  if (dynamic_cast<const fsdp::PeerError*>(&error) != nullptr) {
    return false;  // it may quote what the peer had no memory for
  }
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return true;
  }
  const std::string line = FirstLineOf(error);
  return std::any_of(kMessages.begin(), kMessages.end(), [&line](std::string_view message) {
    return line.find(message) != std::string::npos;
  });
}

void EndForMemory(checkpoint::FileSystem& file_system, const StepWithoutMemory& failed,
                  const std::exception& error) {
  // An evaluation takes as many as a forward may have, a step with few for each rank fewer.
  const int64_t windows =
      failed.is_evaluation ? failed.config.train.micro_batch_size
                           : PlanStep(failed.config, failed.rank, failed.ranks).largest_forward();
  const std::string text = Describe(failed, windows) + ": " + FirstLineOf(error);
  if (failed.config.train.on_out_of_memory != "shrink") {
    throw MemoryError(text + AdviceFor(failed) + "; with train.on_out_of_memory=shrink a run " +
                          "divides its batches into smaller ones itself",
                      /*is_final=*/false);
  }
  const std::optional<int64_t> smaller = SmallerMicroBatch(windows);
  if (!smaller) {
    throw MemoryError(text + "; there is nothing smaller" + AdviceFor(failed), /*is_final=*/true);
  }
  throw MemoryError(text + WriteLimit(file_system, failed, *smaller), /*is_final=*/false);
}

}  // namespace fsdprun::worker
