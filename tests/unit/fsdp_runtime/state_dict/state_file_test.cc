// State dicts in files: what is written can be read, and what fails leaves what was there.

#include <fsdp/state_dict.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "fsdp_runtime/archive/zip_archive.h"
#include "tests/unit/base/remove_folder.h"
#include "tests/unit/fsdp_runtime/state_dict/stateful_model.h"

namespace fsdp::testing {
namespace {

namespace fs = std::filesystem;

class StateFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "fsdp_state_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fsdprun::RemoveFolder(folder_); }

  std::string path(const std::string& name = "model.pt") const { return (folder_ / name).string(); }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  std::string bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }

  fs::path folder_;
};

ModelStateDict many_dtypes() {
  ModelStateDict dict;
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
        at::kChar, at::kByte, at::kBool, at::kComplexFloat, at::kComplexDouble}) {
    dict.insert(std::string("of ") + c10::toString(dtype),
                at::arange(12, at::kFloat).view({3, 4}).to(dtype));
  }
  dict.insert("scalar", at::full({}, 2.5));
  dict.insert("empty", at::empty({0, 3}));
  dict.insert("transposed", at::arange(6).view({2, 3}).t());
  return dict;
}

TEST_F(StateFileTest, WhatIsWrittenIsRead) {
  save(many_dtypes(), path());
  expect_equal(load(path()), many_dtypes());
  save(whole_dict(), path());
  expect_equal(load(path()), whole_dict());
  EXPECT_EQ(files(), std::vector<std::string>{"model.pt"});
}

TEST_F(StateFileTest, TiedTensorsAreThereOnce) {
  ModelStateDict dict;
  const at::Tensor tensor = at::ones({1000, 100});
  dict.insert("a", tensor);
  save(dict, path());
  const size_t once = bytes().size();
  dict.insert("b", tensor);
  save(dict, path());
  EXPECT_LT(bytes().size(), once + 1000);
  const ModelStateDict read = load(path());
  EXPECT_EQ(std::get<at::Tensor>(read["a"]).const_data_ptr(),
            std::get<at::Tensor>(read["b"]).const_data_ptr());
}

TEST_F(StateFileTest, OptimizersAreReadWithAllTypesOfOptions) {
  OptimizerStateDict dict;
  torch::OrderedDict<std::string, StateValue> states;
  states.insert("step", at::full({}, 3.0F));
  states.insert("exp_avg", at::rand({2, 3}));
  dict.state.insert("weight", states);
  dict.param_groups = {{{"weight", "bias"},
                        {{"lr", 0.1},
                         {"betas", std::vector<double>{0.9, 0.999}},
                         {"amsgrad", false},
                         {"foreach", std::monostate()},
                         {"count", int64_t{1} << 40},
                         {"name", std::string("first")}}},
                       {}};
  save(dict, path());
  expect_equal(load_optimizer(path()), dict);
}

TEST_F(StateFileTest, ShardsAreNotWritten) {
  run_ranks(2, [this](Rank& rank) {
    Stateful setup = make_stateful(rank);
    const std::string said =
        refusal([&] { save(get_model_state_dict(setup.root), path("shards.pt")); });
    EXPECT_NE(said.find("shards.pt: anchor is a shard; get the dict with full_state_dict"),
              std::string::npos)
        << said;
  });
  ModelStateDict dict;
  dict.insert("a", at::zeros({2}, at::kFloat8_e4m3fn));
  EXPECT_NE(refusal([&] { save(dict, path()); }).find("a is Float8_e4m3fn"), std::string::npos);
  EXPECT_TRUE(files().empty());
}

TEST_F(StateFileTest, WhatTheFileSystemSaysIsSaidWithThePath) {
  const ModelStateDict dict = whole_dict();
  const std::string nowhere = path("missing/model.pt");
  const std::string said = refusal([&] { save(dict, nowhere); });
  EXPECT_NE(said.find(nowhere + ": cannot create the file"), std::string::npos) << said;
  EXPECT_NE(said.find("No such file or directory"), std::string::npos) << said;
  EXPECT_NE(
      refusal([&] { load(nowhere); }).find("load: " + nowhere + ": cannot open it: No such file"),
      std::string::npos);
  fs::create_directory(path());
  EXPECT_NE(refusal([&] { save(dict, path()); }).find("cannot rename it"), std::string::npos);
  EXPECT_NE(refusal([&] { load(path()); }).find("load: " + path() + " is no file"),
            std::string::npos);
  EXPECT_EQ(files(), std::vector<std::string>{"model.pt"});
}

TEST_F(StateFileTest, APipeThatNobodyWritesIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_NE(refusal([&] { load(path()); }).find(path() + " is no file"), std::string::npos);
}

/// No file grows beyond `bytes`, as if the disk were full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(StateFileTest, AFullDiskLeavesTheOldFile) {
  save(whole_dict(), path());
  const std::string before = bytes();
  ModelStateDict large;
  large.insert("large", at::zeros({1 << 20}));
  {
    const FullDisk disk(1 << 20);
    const std::string said = refusal([&] { save(large, path()); });
    EXPECT_NE(said.find(path() + ": cannot write it"), std::string::npos) << said;
    EXPECT_NE(said.find("File too large"), std::string::npos) << said;
  }
  EXPECT_EQ(bytes(), before);
  EXPECT_EQ(files(), std::vector<std::string>{"model.pt"});
}

TEST_F(StateFileTest, WhatIsCutOffOrNoArchiveIsRefused) {
  save(whole_dict(), path());
  const std::string good = bytes();
  for (size_t at = 64; at < good.size(); at += good.size() / 16) {
    write(good.substr(0, at));
    EXPECT_NE(refusal([&] { load(path()); }).find(path()), std::string::npos) << at;
  }
  write("no archive");
  EXPECT_NE(refusal([&] { load(path()); }).find("expected: a file that fsdp::save or"),
            std::string::npos);
}

// As one that another program goes on to write, or a disk that fails.
TEST_F(StateFileTest, AChangedByteIsNoticedWhereverATensorOrADescriptionHasIt) {
  ModelStateDict dict;
  dict.insert("a", at::full({1000}, 1.5));
  save(dict, path());
  const std::string good = bytes();
  const std::string element("\0\0\xc0\x3f", 4);
  const size_t data = good.find(element + element);
  const size_t pickle = good.find("_rebuild_tensor_v2");
  ASSERT_TRUE(data != std::string::npos && pickle != std::string::npos);
  for (const size_t at : {data, data + 3999, pickle}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    write(bad);
    const std::string said = refusal([&] { load(path()); });
    EXPECT_NE(said.find("is damaged: its CRC-32 does not match"), std::string::npos) << said;
    EXPECT_NE(said.find(path()), std::string::npos) << said;
  }
  write(good);
  expect_equal(load(path()), dict);
}

class TextSource : public archive::ByteSource {
 public:
  explicit TextSource(const std::string& bytes) : bytes_(bytes) {}
  int64_t size() const override { return std::ssize(bytes_); }
  void read(int64_t offset, void* out, int64_t byte_count) const override {
    bytes_.copy(static_cast<char*>(out), static_cast<size_t>(byte_count),
                static_cast<size_t>(offset));
  }

 private:
  const std::string& bytes_;
};

std::string pickle_in(const std::string& file) {
  const TextSource source(file);
  const archive::ZipRecord record = archive::read_zip(source, "it").at("data.pkl");
  return file.substr(static_cast<size_t>(record.data_offset),
                     static_cast<size_t>(record.byte_count));
}

/// Records by name.
std::string archive_with(const std::map<std::string, std::string>& records) {
  archive::ZipWriter zip;
  for (const auto& [name, content] : records) {
    zip.add("archive/" + name, content);
  }
  return zip.finish();
}

// Whole archives with the right checksums, by somebody who means harm, or from another machine.
TEST_F(StateFileTest, WhatAnArchiveMustNotHaveIsRefused) {
  ModelStateDict dict;
  dict.insert("a", at::ones({4}));
  save(dict, path());
  const std::string pickle = pickle_in(bytes());
  const auto expect_refused = [&](const std::map<std::string, std::string>& records,
                                  const std::string& words) {
    write(archive_with(records));
    const std::string said = refusal([&] { load(path()); });
    EXPECT_NE(said.find(words), std::string::npos) << words << " is not in: " << said;
    EXPECT_NE(said.find("load: " + path()), std::string::npos) << said;
  };
  const std::string call(
      "\x80\x02"
      "cos\nsystem\nX\x04\0\0\0true\x85R.",
      25);
  expect_refused({{"data.pkl", call}}, "names the Python object os.system");
  expect_refused({{"byteorder", "big"}, {"data.pkl", pickle}}, "on a big-endian machine");
  expect_refused({{"data/0", std::string(16, 'x')}}, "no record data.pkl");
  expect_refused({{"data.pkl", pickle}}, "no record data/0");
  expect_refused({{"data.pkl", pickle}, {"data/0", std::string(15, 'x')}},
                 "does not lie within data/0, which has 15 bytes");
  write(archive_with({{"data.pkl", pickle}, {"data/0", std::string(16, '\0')}}));
  EXPECT_TRUE(at::equal(std::get<at::Tensor>(load(path())["a"]), at::zeros({4})));
}

TEST_F(StateFileTest, StatesThatAreNoneAndViewsWithFlagsAreWritten) {
  OptimizerStateDict dict;
  torch::OrderedDict<std::string, StateValue> states;
  states.insert("momentum_buffer", at::Tensor());
  dict.state.insert("weight", states);
  save(dict, path());
  EXPECT_FALSE(
      std::get<at::Tensor>(load_optimizer(path()).state["weight"]["momentum_buffer"]).defined());
  ModelStateDict model;
  model.insert("conjugated", at::full({3}, c10::complex<double>(1, 2), at::kComplexDouble).conj());
  save(model, path());
  expect_equal(load(path()), model);
}

TEST_F(StateFileTest, WhatIsNoStateDictOfTheKindIsSaid) {
  save(whole_dict(), path());
  EXPECT_NE(
      refusal([&] { load_optimizer(path()); }).find("it has no \"state\" and \"param_groups\""),
      std::string::npos);
  save(OptimizerStateDict(), path());
  const std::string said = refusal([&] { load(path()); });
  EXPECT_NE(said.find("its \"state\" is a dict, a tensor expected"), std::string::npos) << said;
}

}  // namespace
}  // namespace fsdp::testing
