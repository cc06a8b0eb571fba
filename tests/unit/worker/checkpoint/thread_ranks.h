#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace fsdprun::checkpoint {

/// Collectives among threads of this process, just those that a checkpoint uses.
class ThreadRanks {
 public:
  explicit ThreadRanks(int64_t size) : size_(size), barrier_(size), pieces_(size) {}

  /// Runs `body(collectives)` once per rank, each on a thread of its own.
  void Run(const std::function<void(std::shared_ptr<fsdp::Collectives>)>& body) {
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] { body(std::make_shared<Rank>(*this, rank)); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

 private:
  class Done : public fsdp::Work {
   public:
    void wait() override {}
    bool is_done() override { return true; }
  };

  class Rank : public fsdp::Collectives {
   public:
    Rank(ThreadRanks& world, int64_t rank) : world_(world), rank_(rank) {}
    int64_t rank() const override { return rank_; }
    int64_t size() const override { return world_.size_; }
    std::string name() const override { return "threads"; }
    fsdp::WorkPtr all_gather_into(at::Tensor output, at::Tensor input, fsdp::Issue) override {
      world_.pieces_[static_cast<size_t>(rank_)] = input;
      world_.barrier_.arrive_and_wait();
      char* out = static_cast<char*>(output.data_ptr());
      for (const at::Tensor& piece : world_.pieces_) {
        std::memcpy(out, piece.const_data_ptr(), piece.nbytes());
        out += piece.nbytes();
      }
      world_.barrier_.arrive_and_wait();
      return std::make_shared<Done>();
    }
    fsdp::WorkPtr broadcast(at::Tensor tensor, int64_t root, fsdp::Issue) override {
      world_.pieces_[static_cast<size_t>(rank_)] = tensor;
      world_.barrier_.arrive_and_wait();
      if (rank_ != root) {
        std::memcpy(tensor.data_ptr(), world_.pieces_[static_cast<size_t>(root)].const_data_ptr(),
                    tensor.nbytes());
      }
      world_.barrier_.arrive_and_wait();
      return std::make_shared<Done>();
    }
    fsdp::WorkPtr reduce_scatter_into(at::Tensor, at::Tensor, fsdp::ReduceOp,
                                      fsdp::Issue) override {
      throw std::logic_error("not used by checkpoints");
    }
    fsdp::WorkPtr all_reduce(at::Tensor, fsdp::ReduceOp, fsdp::Issue) override {
      throw std::logic_error("not used by checkpoints");
    }
    void barrier() override { world_.barrier_.arrive_and_wait(); }

   private:
    ThreadRanks& world_;
    int64_t rank_;
  };

  int64_t size_;
  std::barrier<> barrier_;
  std::vector<at::Tensor> pieces_;
};

}  // namespace fsdprun::checkpoint
