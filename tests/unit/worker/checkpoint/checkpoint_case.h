#pragma once

// A small checkpoint with known values: what the checkpoint's tests write, read and spoil.

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/file_system.h"
#include "fsdp_runtime/plan/box.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/checkpoint/thread_ranks.h"
#include "worker/checkpoint/checkpoint.h"

namespace fsdprun::checkpoint {

using nlohmann::json;

struct TensorSpec {
  std::string key;
  std::vector<int64_t> shape;
  at::ScalarType dtype;
};

inline const TensorSpec kSpecs[] = {
    {"model.embed.weight", {7, 5}, at::kFloat},
    {"model.layers.0.weight", {3, 2, 4}, at::kBFloat16},
    {"model.norm.weight", {5}, at::kFloat},
    {"optim.state.embed.weight.exp_avg", {7, 5}, at::kFloat},
    {"optim.state.embed.weight.step", {}, at::kFloat},
};

inline int64_t NumelOf(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    numel *= size;
  }
  return numel;
}

/// The whole tensor number `index` of a checkpoint of `step`: distinct values, exact in bfloat16.
inline at::Tensor Whole(size_t index, int64_t step) {
  const TensorSpec& spec = kSpecs[index];
  const double base = static_cast<double>(step) + 30.0 * static_cast<double>(index);
  return at::arange(NumelOf(spec.shape), at::TensorOptions().dtype(at::kFloat))
      .add(base)
      .to(spec.dtype);
}

/// The elements of `whole`, flat, that the slice holds.
inline at::Tensor PartOf(const at::Tensor& whole, fsdp::LocalShard slice) {
  slice.local = at::empty({fsdp::plan::total_numel(slice.boxes)}, whole.options());
  fsdp::copy_part_of(whole.view(slice.global_shape), slice);
  return slice.local;
}

/// Rank `rank` of `size`: uneven flat ranges that ignore rows; filled for `step`, or zero (-1).
inline State StateOf(int64_t rank, int64_t size, int64_t step) {
  State state;
  for (size_t i = 0; i < std::size(kSpecs); ++i) {
    const int64_t numel = NumelOf(kSpecs[i].shape);
    const bool is_replicated = kSpecs[i].shape.empty();
    fsdp::LocalShard slice;
    slice.fqn = kSpecs[i].key;
    slice.global_shape = kSpecs[i].shape;
    slice.boxes =
        fsdp::plan::flat_range_to_boxes(slice.global_shape, is_replicated ? 0 : numel * rank / size,
                                        is_replicated ? 1 : numel * (rank + 1) / size);
    slice.local = PartOf(Whole(i, std::max<int64_t>(step, 0)), slice);
    if (step < 0) {
      slice.local.zero_();
    }
    state.tensors.push_back(std::move(slice));
  }
  state.param_groups_json = R"([{"lr":0.1,"betas":[0.9,0.95],"params":["embed.weight"]}])";
  state.training_state_json = json{{"step", step}, {"seed", ~uint64_t{0}}}.dump();
  state.tokens = 10 * step;
  return state;
}

inline Group GroupOf(const std::shared_ptr<fsdp::Collectives>& collectives,
                     std::vector<std::string>* warnings = nullptr) {
  Group group;
  group.collectives = collectives;
  group.warn = [warnings](const std::string& text) {
    if (warnings != nullptr) {
      warnings->push_back(text);
    }
  };
  return group;
}

inline SaverOptions OptionsOf(const std::string& dir, const Group& group) {
  SaverOptions options;
  options.dir = dir;
  options.group = group;
  options.job_id = "job";
  options.generation = 1;
  return options;
}

inline void SaveSteps(const std::string& dir, int64_t size, const std::vector<int64_t>& steps,
                      int64_t keep = 0) {
  ThreadRanks(size).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir, GroupOf(collectives));
    options.keep = keep;
    Saver saver(std::move(options));
    for (const int64_t step : steps) {
      saver.Save(step, StateOf(collectives->rank(), size, step));
    }
    saver.Release();
  });
}

/// What a launch of one save does.
inline void SaveOnce(SaverOptions options, int64_t step, const State& state) {
  Saver saver(std::move(options));
  saver.Save(step, state);
  saver.Release();
}

/// Loads at `size` ranks what FindResume chooses; checks every value; returns the step (-1: none).
inline int64_t LoadAndCheck(const std::string& dir, int64_t size, Verify verify = Verify::kFull,
                            const std::string& resume = "auto",
                            std::vector<std::string>* warnings = nullptr) {
  std::atomic<int64_t> found{-1};
  std::mutex mutex;
  std::string failure;
  ThreadRanks(size).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    try {
      const Group group = GroupOf(collectives, warnings);
      const std::optional<Candidate> candidate = FindResume(dir, resume, group, verify);
      if (!candidate) {
        return;
      }
      State state = StateOf(collectives->rank(), size, -1);
      Load(*candidate, state, group);
      for (size_t i = 0; i < state.tensors.size(); ++i) {
        const fsdp::LocalShard& slice = state.tensors[i];
        EXPECT_TRUE(slice.local.equal(PartOf(Whole(i, candidate->step), slice))) << slice.fqn;
      }
      EXPECT_EQ(json::parse(state.training_state_json),
                (json{{"step", candidate->step}, {"seed", ~uint64_t{0}}}));
      EXPECT_EQ(json::parse(state.param_groups_json)[0]["lr"], 0.1);
      found = candidate->step;
    } catch (const CheckpointError& error) {
      const std::lock_guard<std::mutex> lock(mutex);
      failure = error.what();
    }
  });
  if (!failure.empty()) {
    throw CheckpointError(failure);
  }
  return found;
}

inline void FlipBit(const std::string& path, uint64_t random) {
  const auto size = std::filesystem::file_size(path);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto offset = static_cast<std::streamoff>(random / 8 % size);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ (1 << (random % 8)));
  file.seekp(offset);
  file.put(byte);
}

inline std::vector<std::string> FilesOf(const std::string& directory) {
  std::vector<std::string> files;
  for (const std::string& name : ListDirectory(directory)) {
    files.push_back(directory + "/" + name);
  }
  return files;
}

}  // namespace fsdprun::checkpoint
