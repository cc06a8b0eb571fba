#include "agent/output/stream_plan.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fsdprun {
namespace {

struct Row {
  const char* redirects;
  const char* tee;
  const char* shown;
  const char* cells;
};
/// make_reify_table.py says what it means.
constexpr Row kTorchrun[] = {
#include "tests/unit/agent/output/reify_table.inc"
};

StreamSets Sets(absl::string_view text) {
  StreamSets sets;
  if (text.size() == 1) {
    sets.of_all = text[0] - '0';
    return sets;
  }
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    sets.of_rank[item[0] - '0'] = item[2] - '0';
  }
  return sets;
}

OutputOptions Options(const Row& row) {
  OutputOptions options;
  options.redirects = Sets(row.redirects);
  options.tee = Sets(row.tee);
  options.names_files = !(options.redirects == StreamSets{}) || !(options.tee == StreamSets{});
  if (*row.shown != '\0') {
    options.shown_local_ranks.emplace();
    for (absl::string_view item : absl::StrSplit(row.shown, ',')) {
      options.shown_local_ranks->insert(item[0] - '0');
    }
  }
  return options;
}

std::string Cell(const StreamPlan& plan) {
  std::string cell = plan.file == StreamFile::kLog    ? "F"
                     : plan.file == StreamFile::kNone ? "0"
                                                      : "-";
  cell += plan.display == StreamDisplay::kPrefixed ? "P"
          : plan.display == StreamDisplay::kPlain  ? "C"
                                                   : "-";
  return cell;
}

TEST(StreamPlanTest, FilesAndConsoleAreTorchruns) {
  for (const Row& row : kTorchrun) {
    const OutputOptions options = Options(row);
    const std::vector<std::string> cells = absl::StrSplit(row.cells, ' ');
    for (int i = 0; i < 4; ++i) {
      const StreamSet stream = i % 2 == 0 ? kOutStream : kErrorStream;
      std::string expected = cells[static_cast<size_t>(i)];
      if (!options.names_files) {
        expected[0] = 'F';  // The one difference: nothing is thrown away unless files are named.
      }
      EXPECT_EQ(Cell(PlanStream(options, i / 2, stream)), expected)
          << "--redirects=" << row.redirects << " --tee=" << row.tee
          << " --local-ranks-filter=" << row.shown << ", local rank " << i / 2 << ", stream "
          << stream;
    }
  }
}

TEST(StreamPlanTest, WithoutADirectoryEverythingIsShownPlainly) {
  OutputOptions options = Options({"3", "3", "0", ""});
  options.stdout_filters = {"x"};
  options.has_directory = false;
  const StreamPlan plan = PlanStream(options, 1, kOutStream);
  EXPECT_EQ(plan, (StreamPlan{.file = StreamFile::kSpool, .opens_late = true}));
  EXPECT_TRUE(NeedsSpool(options, 1));
}

TEST(StreamPlanTest, FilesThatSomebodyAskedForAreMadeAtOnce) {
  EXPECT_TRUE(PlanStream(OutputOptions(), 0, kOutStream).opens_late);
  EXPECT_FALSE(PlanStream({.names_directory = true}, 0, kOutStream).opens_late);
  const OutputOptions named = Options({"0:1", "0", "", ""});
  EXPECT_FALSE(PlanStream(named, 0, kOutStream).opens_late);
  EXPECT_TRUE(PlanStream(named, 0, kErrorStream).opens_late) << "spooled for the console";
}

TEST(StreamPlanTest, WorkersHaveFoldersIfSomebodyAskedForLogs) {
  EXPECT_FALSE(HasWorkerFolders({}));
  EXPECT_TRUE(HasWorkerFolders({.names_directory = true}));
  EXPECT_TRUE(HasWorkerFolders({.names_files = true}));
  EXPECT_FALSE(HasWorkerFolders({.names_directory = true, .has_directory = false}));
}

TEST(StreamPlanTest, OnlyShownTeedStreamsAreFiltered) {
  OutputOptions options = Options({"3", "0:1", "", ""});
  options.stdout_filters = {"x"};
  EXPECT_TRUE(PlanStream(options, 0, kOutStream).is_filtered);
  EXPECT_FALSE(PlanStream(options, 0, kErrorStream).is_filtered);
  EXPECT_FALSE(PlanStream(options, 1, kOutStream).is_filtered);
  options.shown_local_ranks = {1};
  EXPECT_FALSE(PlanStream(options, 0, kOutStream).is_filtered);
}

TEST(StreamPlanTest, ASpoolIsNeededForWhatIsShownButNotKept) {
  EXPECT_FALSE(NeedsSpool(OutputOptions(), 2));
  EXPECT_FALSE(NeedsSpool(Options({"3", "0", "", ""}), 2));
  EXPECT_TRUE(NeedsSpool(Options({"0:3", "0", "", ""}), 2));
  EXPECT_FALSE(NeedsSpool(Options({"0:3", "0", "", ""}), 1));
  EXPECT_FALSE(NeedsSpool(Options({"0:3", "0", "0", ""}), 2));
}

}  // namespace
}  // namespace fsdprun
