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
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/device_graph.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
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

/// Steps of a training: as the host issues them, or, behind the first ones, as a graph.
class Steps {
 public:
  Steps(const TrainCase& given, Training& training) : given_(given), training_(training) {}

  struct Done {
    at::Tensor losses;  // one for each micro batch
    at::Tensor norm;    // undefined if gradients are not clipped
  };
  Done run(int64_t step, const std::vector<at::Tensor>& rounds) {
    if (given_.lr_factor != 1) {
      training_.set_lr(given_.lr * std::pow(given_.lr_factor, static_cast<double>(step)));
    }
    if (!given_.is_graph || issued_ < kIssuedBefore) {
      ++issued_;
      return issue(rounds);
    }
    if (!graph_) {
      capture(rounds);
    }
    for (size_t i = 0; i < rounds.size(); ++i) {
      rounds_[i].copy_(rounds[i]);
    }
    graph_->replay();
    return {done_.losses.clone(), given_.max_grad_norm > 0 ? done_.norm.clone() : at::Tensor()};
  }

 private:
  static constexpr int64_t kIssuedBefore = 2;

  Done issue(const std::vector<at::Tensor>& rounds) {
    std::vector<at::Tensor> losses;
    for (const at::Tensor& tokens : rounds) {
      losses.push_back(training_.backward(tokens, losses.size() + 1 == rounds.size()));
    }
    return {at::stack(losses), training_.update()};
  }

  void capture(const std::vector<at::Tensor>& rounds) {
    for (const at::Tensor& tokens : rounds) {
      rounds_.push_back(at::empty_like(tokens));
    }
    const auto options = at::TensorOptions(at::kFloat).device(given_.device);
    done_ = {at::empty({given_.micro_batches}, options), at::empty({}, options)};
    graph_ = fsdp::make_device_graph(given_.device);
    graph_->capture([this] {
      const Done done = issue(rounds_);
      done_.losses.copy_(done.losses);
      if (done.norm.defined()) {
        done_.norm.copy_(done.norm);
      }
    });
  }

  const TrainCase& given_;
  Training& training_;
  int64_t issued_ = 0;
  // What the graph reads and writes.
  std::vector<at::Tensor> rounds_;
  Done done_;
  std::unique_ptr<fsdp::DeviceGraph> graph_;
};

void run_step(const TrainCase& given, Steps& steps, int64_t step, Notes& notes) {
  std::vector<at::Tensor> rounds;
  for (int64_t round = 0; round < given.micro_batches; ++round) {
    rounds.push_back(tokens_of(given, step, round));
  }
  const Clock::time_point begin = Clock::now();
  const auto [losses, norm] = steps.run(step, rounds);
  notes.host_seconds.push_back(seconds_since(begin));
  if (given.is_timed) {
    synchronize(given);
  }
  notes.seconds.push_back(seconds_since(begin));
  notes.losses.push_back(losses.to(at::kDouble).mean());
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
  std::optional<c10::StreamGuard> stream;
  if (given.is_graph && given.device.is_cuda()) {
    synchronize(given);
    stream.emplace(c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(given.device));
  }
  Steps steps(given, *training);
  Notes notes;
  const Clock::time_point begin = Clock::now();
  for (int64_t step = 0; step < given.steps; ++step) {
    training->what();  // begins to count anew
    run_step(given, steps, given.first_step + step, notes);
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
