// Trains a small model by DistributedDataParallel in several ways and writes what has become of it:
// the other side of data_parallel_test.py, step by step alike.
//
//   data_parallel <output> <backend>   (one process per rank, started by a launcher)

#include <ATen/ATen.h>
#include <fsdp/ddp_comm_hooks.h>
#include <fsdp/distributed_data_parallel.h>
#include <fsdp/process_group.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

namespace {

constexpr int64_t kWidth = 6;

at::Tensor values(at::IntArrayRef sizes, double seed) {
  const at::Tensor index = at::arange(c10::multiply_integers(sizes), at::kDouble) + seed;
  return ((index * 12.9898).sin() * 0.3).to(at::kFloat).view(sizes);
}

struct Model : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = at::linear(x, weight).tanh();
    {
      at::NoGradGuard no_grad;
      mean.mul_(0.5).add_(y.detach().mean(0), 0.5);
    }
    y = y - mean;
    y = uses_spare ? y + at::linear(y, spare).sum(1, true) : y;
    return at::linear(y, head);
  }
  bool uses_spare = true;
  at::Tensor weight = register_parameter("weight", values({kWidth, kWidth}, 0));
  at::Tensor spare = register_parameter("spare", values({5, kWidth}, 1));
  at::Tensor head = register_parameter("head", values({4, kWidth}, 100));
  at::Tensor mean = register_buffer("mean", at::zeros({kWidth}));
};

using Ddp = fsdp::DistributedDataParallel<Model>;

struct Training {
  Ddp ddp;
  torch::optim::SGD optimizer;
  int64_t rank;

  Training(const fsdp::DistributedDataParallelOptions& options, int64_t rank)
      : ddp(std::make_shared<Model>(), options),
        optimizer(ddp->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        rank(rank) {}
  void backward(int64_t step) {
    const double seed = 1000.0 * static_cast<double>(rank) + 100.0 * static_cast<double>(step);
    ddp(values({8, kWidth}, seed)).square().mean().backward();
  }
  void update() {
    optimizer.step();
    optimizer.zero_grad();
  }
  void step(int64_t step) {
    backward(step);
    update();
  }
};

void write(std::ostream& out, const std::string& way, const Training& training) {
  const auto line = [&](const std::string& name, const at::Tensor& tensor) {
    out << way << '.' << name;
    const at::Tensor flat = tensor.detach().flatten();
    for (int64_t i = 0; i < flat.numel(); ++i) {
      char text[32];
      std::snprintf(text, sizeof text, " %a", static_cast<double>(flat[i].item<float>()));
      out << text;
    }
    out << '\n';
  };
  for (const auto& param : training.ddp->named_parameters()) {
    line(param.key(), param.value());
  }
  line("mean", training.ddp->mean);
}

std::shared_ptr<fsdp::Collectives> group_of(const std::string& backend) {
  auto options = fsdp::ProcessGroupOptions::from_environment(at::kCPU);
  options.backend = backend;
  return fsdp::init_process_group(options);
}

void train(const std::string& path, const std::string& backend) {
  const auto group = group_of(backend);
  const int64_t rank = group->rank();
  std::ofstream file(path + std::to_string(rank));
  const auto way = [&](const std::string& name, fsdp::DistributedDataParallelOptions options,
                       const std::function<void(Training&)>& run) {
    Training training(options, rank);
    run(training);
    write(file, name, training);
  };
  way("plain", {.bucket_cap_mb = 0.0001}, [](Training& training) {
    for (int64_t step = 0; step < 4; ++step) {
      training.step(step);
    }
  });
  way("no_sync", {}, [](Training& training) {
    for (int64_t step = 0; step < 6; ++step) {
      std::optional<fsdp::NoSync> no_sync;
      if (step % 3 != 2) {
        no_sync.emplace(training.ddp.no_sync());
      }
      training.backward(step);
      if (step % 3 == 2) {
        training.update();
      }
    }
  });
  way("unused", {.find_unused_parameters = true}, [&](Training& training) {
    for (int64_t step = 0; step < 4; ++step) {
      training.ddp->uses_spare = step < 3 && (step + rank) % 2 == 0;
      training.step(step);
    }
  });
  way("static", {.static_graph = true}, [](Training& training) {
    training.ddp->uses_spare = false;
    for (int64_t step = 0; step < 3; ++step) {
      training.step(step);
    }
  });
  for (const bool is_half : {true, false}) {
    way(is_half ? "fp16" : "bf16", {}, [is_half](Training& training) {
      training.ddp.register_comm_hook(is_half ? fsdp::fp16_compress_hook()
                                              : fsdp::bf16_compress_hook());
      for (int64_t step = 0; step < 3; ++step) {
        training.step(step);
      }
    });
  }
  // Two backwards without loss, then one of the matrices by factors.
  way("powersgd", {}, [](Training& training) {
    training.ddp.register_comm_hook(fsdp::powerSGD_hook(
        {.start_powerSGD_iter = 2, .min_compression_rate = 2.8, .random_seed = 7}));
    for (int64_t step = 0; step < 6; ++step) {
      training.step(step);
    }
  });
  for (const bool divides_by_all : {true, false}) {
    way(divides_by_all ? "join_all" : "join_left", {}, [&](Training& training) {
      training.ddp.join(
          [&] {
            for (int64_t step = 0; step < 2 + 2 * rank; ++step) {
              training.step(step);
            }
          },
          {.divide_by_initial_world_size = divides_by_all});
    });
  }
  TORCH_CHECK(file.flush(), "cannot write ", path);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    TORCH_CHECK(argc == 3, "usage: data_parallel <output> <backend>");
    train(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
