#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/checkpoint/thread_ranks.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/run/stoppable_file_system.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kElements = 1000;

/// Names in the directory, without those that begin with a dot.
std::vector<std::string> Visible(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename().string()[0] != '.') {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

checkpoint::State Half(int64_t rank) {
  checkpoint::State state;
  const int64_t half = kElements / 2;
  state.tensors.push_back(
      {{"model.a", {kElements}, {{{rank * half}, {half}}}, {}}, at::full({half}, 1.0F)});
  return state;
}

/// Saves steps 1 and 2 with two ranks, of which rank 1 gives up step 2 at its question `give_up_at`
/// (counted from 1). Returns each rank's errno of step 2, 0 without an error.
std::vector<int> SaveTwice(const std::string& directory, int give_up_at) {
  std::vector<int> errors(2, -1);
  checkpoint::ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& ranks) {
    const int64_t rank = ranks->rank();
    bool is_counting = false;
    int questions = 0;
    checkpoint::SaverOptions options;
    options.dir = directory;
    options.group.collectives = ranks;
    options.chunk_bytes_max = 100;  // so that a rank is asked often
    options.file_system = std::make_shared<StoppableFileSystem>(
        [&] { return is_counting && ++questions >= give_up_at; });
    checkpoint::Saver saver(options);
    saver.Save(1, Half(rank));
    is_counting = rank == 1;
    try {
      saver.Save(2, Half(rank));
      errors[static_cast<size_t>(rank)] = 0;
    } catch (const checkpoint::CheckpointError& error) {
      errors[static_cast<size_t>(rank)] = error.error_number();
    }
  });
  return errors;
}

TEST(StoppableSaveTest, RankInTheMiddleOfItsFileEndsTheSaveOfAllAndLeavesNothing) {
  const checkpoint::TemporaryDirectory directory;
  EXPECT_EQ(SaveTwice(directory.path(), 10), (std::vector<int>{ECANCELED, ECANCELED}));
  EXPECT_EQ(Visible(directory.path()), (std::vector<std::string>{"latest", "step-1"}));
}

TEST(StoppableSaveTest, SaveWhoseFilesAreWrittenIsFinished) {
  const checkpoint::TemporaryDirectory directory;
  EXPECT_EQ(SaveTwice(directory.path(), 100'000), (std::vector<int>{0, 0}));
  EXPECT_EQ(Visible(directory.path()), (std::vector<std::string>{"latest", "step-1", "step-2"}));
}

}  // namespace
}  // namespace fsdprun::worker
