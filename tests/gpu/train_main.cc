// Trains a Llama on one device, with libfsdp or without: the C++ side of gpu_parity.py and of
// tests/bench/bench_gpu.py.
//
//   gpu_train CASE OUTPUT
//
// CASE: keys as in train_case.h. OUTPUT, JSON: losses (mean of the micro batches, in float64),
// norms, and seconds of each step until the device is done, and until the host has issued it; the
// peak of what was allocated on the device; collectives of the last step.

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <vector>

#include "formats/models/model_flops.h"
#include "tests/gpu/training.h"

namespace {

using fsdp::gpu::TrainCase;
using fsdp::gpu::Training;
using fsdprun::Json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Ids that depend on step and micro batch only: int64 [batch, length + 1].
at::Tensor tokens_of(const TrainCase& given, int64_t step, int64_t round) {
  const at::Tensor index =
      at::arange(given.batch * (given.length + 1), at::kLong) + 1000 * step + 100 * round;
  return (index * index * 7 + index * 13)
      .remainder(given.model.vocab_size)
      .view({given.batch, given.length + 1})
      .to(given.device);
}

void synchronize(const TrainCase& given) {
  if (given.device.is_cuda()) {
    c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(given.device.index());
  }
}

int64_t peak_bytes(const TrainCase& given) {
  if (!given.device.is_cuda()) {
    return 0;
  }
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(c10::kCUDA)
      ->getDeviceStats(given.device.index())
      .allocated_bytes[kAll]
      .peak;
}

/// What is noted of each step; losses and norms are still on the device.
struct Notes {
  std::vector<at::Tensor> losses, norms;
  Json seconds = Json::array(), host_seconds = Json::array();
};

void run_step(const TrainCase& given, Training& training, int64_t step, Notes& notes) {
  std::vector<at::Tensor> rounds;
  for (int64_t round = 0; round < given.micro_batches; ++round) {
    rounds.push_back(tokens_of(given, step, round));
  }
  const Clock::time_point begin = Clock::now();
  std::vector<at::Tensor> losses;
  for (const at::Tensor& tokens : rounds) {
    losses.push_back(training.backward(tokens, losses.size() + 1 == rounds.size()));
  }
  const at::Tensor norm = training.update();
  notes.host_seconds.push_back(seconds_since(begin));
  if (given.is_timed) {
    synchronize(given);
  }
  notes.seconds.push_back(seconds_since(begin));
  notes.losses.push_back(at::stack(losses).to(at::kDouble).mean());
  if (norm.defined()) {
    notes.norms.push_back(norm);
  }
}

Json numbers(const std::vector<at::Tensor>& values) {
  Json list = Json::array();
  for (const at::Tensor& value : values) {
    list.push_back(value.cpu().to(at::kDouble).item<double>());
  }
  return list;
}

Json train(const TrainCase& given) {
  at::globalContext().setDeterministicAlgorithms(!given.is_timed, /*warn_only=*/true);
  const std::unique_ptr<Training> training = fsdp::gpu::make_training(given);
  if (!given.read_from.empty()) {
    training->read(given.read_from);
  }
  Notes notes;
  const Clock::time_point begin = Clock::now();
  for (int64_t step = 0; step < given.steps; ++step) {
    training->what();  // begins to count anew
    run_step(given, *training, given.first_step + step, notes);
    if (given.seconds > 0 && seconds_since(begin) > given.seconds) {
      break;
    }
  }
  synchronize(given);
  Json result = {{"losses", numbers(notes.losses)},
                 {"norms", numbers(notes.norms)},
                 {"seconds", notes.seconds},
                 {"host_seconds", notes.host_seconds},
                 {"peak_bytes", peak_bytes(given)},
                 {"parameters", fsdprun::ParameterCount(given.model)},
                 {"flops_per_token", fsdprun::ModelFlopsPerToken(given.model, given.length)}};
  result.update(training->what());
  if (!given.write_to.empty()) {
    training->write(given.write_to);
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: gpu_train CASE OUTPUT\n";
    return 2;
  }
  try {
    const TrainCase given = fsdp::gpu::read_case(argv[1]);
    const Json result = train(given);
    std::ofstream output(argv[2]);
    output << result.dump() << '\n';
    TORCH_CHECK(output.flush(), "cannot write ", argv[2]);
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  return 1;
}
