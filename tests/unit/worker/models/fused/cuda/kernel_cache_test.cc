// How kernels are compiled, loaded and launched: what doubles of NVRTC and of the driver are asked,
// and what is said when one of them fails.

#include "worker/models/fused/cuda/kernel_cache.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/worker/models/fused/cuda/fake_libraries.h"

namespace fsdprun::worker {
namespace {

using fused::KernelCache;
using fused::KernelError;
using fused::KernelSource;
using fused::LibraryMissing;

// Of the folder that CMake puts the doubles into.
const std::string kFolder = FSDPRUN_FAKE_CUDA_FOLDER;
const std::string kNvrtc = kFolder + "/libnvrtc.so.12";
const std::string kDriver = kFolder + "/libcuda.so.1";

FakeLibrary& FakeOf(const std::string& file, const char* function) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(handle, nullptr) << ::dlerror();
  return *reinterpret_cast<FakeLibrary* (*)()>(::dlsym(handle, function))();
}

template <typename Error>
std::string MessageOf(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

constexpr KernelSource kSource = {"some.cu", "the text"};
constexpr KernelSource kOtherSource = {"other.cu", "another text"};

class KernelCacheTest : public ::testing::Test {
 protected:
  KernelCacheTest()
      : nvrtc_(FakeOf(kNvrtc, "FakeOfNvrtc")), driver_(FakeOf(kDriver, "FakeOfCuda")) {
    nvrtc_ = FakeLibrary();
    driver_ = FakeLibrary();
  }

  void Launch(int device, const KernelSource& source = kSource,
              const std::string& kernel = "kernel") {
    int number = 42;
    void* arguments[] = {&number};
    cache_.Launch(device, reinterpret_cast<void*>(7), {&source, kernel, {5, 64}, arguments});
  }

  /// Of calls that begin so.
  static size_t CountOf(const FakeLibrary& library, const std::string& name) {
    return static_cast<size_t>(
        std::count_if(library.calls.begin(), library.calls.end(),
                      [&](const std::string& call) { return call.starts_with(name); }));
  }

  FakeLibrary& nvrtc_;
  FakeLibrary& driver_;
  KernelCache cache_{fused::OpenNvrtc({kNvrtc}), fused::OpenDriver({kDriver})};
};

/// Without the handle, which is another one in each test.
std::string LaunchedAs(const std::string& call) {
  return call.substr(call.find(' ', std::string("cuLaunchKernel ").size()));
}

TEST_F(KernelCacheTest, AFirstLaunchCompilesForTheDeviceLoadsAndLaunches) {
  std::thread([&] { Launch(1); }).join();  // a thread without a context
  EXPECT_EQ(nvrtc_.calls,
            (std::vector<std::string>{
                "nvrtcCreateProgram the text some.cu rows.cuh (a text) block_sizes.h (a text)",
                "nvrtcCompileProgram --gpu-architecture=sm_90 --std=c++17", "nvrtcGetCUBINSize",
                "nvrtcGetCUBIN", "nvrtcDestroyProgram"}));
  ASSERT_EQ(driver_.calls.size(), 10U);
  EXPECT_EQ(std::vector<std::string>(driver_.calls.begin(), driver_.calls.begin() + 8),
            (std::vector<std::string>{"cuInit 0", "cuDeviceGet 1", "cuDeviceGetAttribute 75 101",
                                      "cuDeviceGetAttribute 76 101", "cuDeviceGetAttribute 16 101",
                                      "cuDevicePrimaryCtxRetain 101", "cuCtxSetCurrent 1",
                                      "cuModuleLoadData the cubin"}));
  EXPECT_TRUE(driver_.calls[8].starts_with("cuModuleGetFunction ") &&
              driver_.calls[8].ends_with(" kernel"))
      << driver_.calls[8];
  EXPECT_EQ(LaunchedAs(driver_.calls[9]), " 5 1 1 64 1 1 0 stream 7 argument 42");
}

TEST_F(KernelCacheTest, LaterLaunchesDoNothingElse) {
  Launch(0);
  driver_.calls.clear();
  nvrtc_.calls.clear();
  Launch(0);
  EXPECT_EQ(nvrtc_.calls, std::vector<std::string>());
  ASSERT_EQ(driver_.calls.size(), 1U);
  EXPECT_TRUE(driver_.calls[0].starts_with("cuLaunchKernel "));
}

TEST_F(KernelCacheTest, ASourceIsCompiledOnceForAnArchitectureAndLoadedOnceIntoADevice) {
  for (const int device : {0, 1, 0, 1}) {
    Launch(device);
    Launch(device, kSource, "second");
  }
  Launch(0, kOtherSource, "third");
  EXPECT_EQ(CountOf(nvrtc_, "nvrtcCompileProgram"), 2U);
  EXPECT_EQ(CountOf(driver_, "cuModuleLoadData"), 3U);
  EXPECT_EQ(CountOf(driver_, "cuModuleGetFunction"), 5U);
  EXPECT_EQ(CountOf(driver_, "cuDeviceGet "), 2U);
}

TEST_F(KernelCacheTest, ThreadsThatComeTogetherCompileOnce) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { Launch(0); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(CountOf(nvrtc_, "nvrtcCompileProgram"), 1U);
  EXPECT_EQ(CountOf(driver_, "cuModuleLoadData"), 1U);
  EXPECT_EQ(CountOf(driver_, "cuLaunchKernel"), 4U);
}

TEST_F(KernelCacheTest, MultiprocessorsAreTheDevices) {
  EXPECT_EQ(cache_.MultiprocessorsOf(1), 132);
}

TEST_F(KernelCacheTest, SourceThatDoesNotCompileIsShownWithItsLog) {
  nvrtc_.failing = "nvrtcCompileProgram";
  nvrtc_.log = "some.cu(3): error: expected a \";\"";
  EXPECT_EQ(MessageOf<KernelError>([&] { Launch(1); }),
            "cannot compile some.cu for CUDA device 1 (sm_90) with " + kNvrtc +
                ": NVRTC_ERROR_COMPILATION\nsome.cu(3): error: expected a \";\""
                "; model.kernels=reference needs none of these kernels");
  EXPECT_EQ(nvrtc_.calls.back(), "nvrtcDestroyProgram");
  nvrtc_.failing.clear();
  Launch(1);  // nothing of it is left
}

TEST_F(KernelCacheTest, EachFunctionOfNvrtcThatFailsIsAnError) {
  for (const char* function : {"nvrtcCreateProgram", "nvrtcGetCUBINSize", "nvrtcGetCUBIN"}) {
    nvrtc_.failing = function;
    EXPECT_EQ(MessageOf<KernelError>([&] { Launch(0); }),
              "cannot compile some.cu for CUDA device 0 (sm_90) with " + kNvrtc +
                  ": NVRTC_ERROR_COMPILATION; model.kernels=reference needs none of these kernels")
        << function;
  }
}

TEST_F(KernelCacheTest, EachFunctionOfTheDriverThatFailsIsNamedByWhatItWasFor) {
  const std::string end = "out of memory (2); model.kernels=reference needs none of these kernels";
  const std::vector<std::pair<std::string, std::string>> attempts = {
      {"cuInit", "CUDA device 0: cannot initialise the driver: "},
      {"cuDeviceGet", "CUDA device 0: cannot find the device: "},
      {"cuDeviceGetAttribute", "CUDA device 0: cannot read attribute 75: "},
      {"cuDevicePrimaryCtxRetain", "CUDA device 0 (sm_90): cannot get the primary context: "},
      {"cuCtxGetCurrent", "CUDA device 0 (sm_90): cannot find the current context: "},
      {"cuCtxSetCurrent", "CUDA device 0 (sm_90): cannot make the device's context current: "},
      {"cuModuleLoadData", "CUDA device 0 (sm_90): cannot load the kernels of some.cu: "},
      {"cuModuleGetFunction", "CUDA device 0 (sm_90): cannot find kernel turn of some.cu: "},
      {"cuLaunchKernel",
       "CUDA device 0 (sm_90): cannot launch kernel turn with 5 blocks of 64 threads: "}};
  for (const auto& [function, message] : attempts) {
    driver_.failing = function;
    std::string said;
    std::thread([&] {  // without a context
      said = MessageOf<KernelError>([&] { Launch(0, kSource, "turn"); });
    })
        .join();
    EXPECT_EQ(said, message + end);
  }
}

TEST_F(KernelCacheTest, AThreadWithoutAContextLaunchesWhatIsLoaded) {
  Launch(0);
  driver_.calls.clear();
  std::thread([&] { Launch(0); }).join();
  ASSERT_EQ(driver_.calls.size(), 2U);
  EXPECT_EQ(driver_.calls[0], "cuCtxSetCurrent 0");
  EXPECT_TRUE(driver_.calls[1].starts_with("cuLaunchKernel "));
}

TEST_F(KernelCacheTest, AThreadLaunchesOnOneDeviceAfterTheOther) {
  std::thread([&] {
    for (const int device : {0, 1, 0, 0, 1}) {
      Launch(device);
    }
  }).join();
  EXPECT_EQ(CountOf(driver_, "cuCtxSetCurrent"), 4U);
  EXPECT_EQ(CountOf(driver_, "cuLaunchKernel"), 5U);
}

TEST_F(KernelCacheTest, AnErrorThatMayBeOfAnEarlierOperationIsSaidToBe) {
  driver_.failing = "cuLaunchKernel";
  driver_.failure = 719;
  EXPECT_EQ(MessageOf<KernelError>([&] { Launch(0); }),
            "CUDA device 0 (sm_90): cannot launch kernel kernel with 5 blocks of 64 threads: "
            "unspecified launch failure (719); an earlier operation on the device may be what "
            "failed: with CUDA_LAUNCH_BLOCKING=1 in the environment the first that fails is named; "
            "model.kernels=reference needs none of these kernels");
}

TEST_F(KernelCacheTest, AFirstLaunchInACaptureIsToldWhatACaptureNeeds) {
  driver_.failing = "cuModuleLoadData";
  driver_.failure = 900;
  EXPECT_EQ(MessageOf<KernelError>([&] { Launch(0); }),
            "CUDA device 0 (sm_90): cannot load the kernels of some.cu: operation not permitted "
            "when stream is capturing (900); a kernel is loaded when it is first launched, which a "
            "capture has no room for: run a step of the same shapes before a CUDA graph is "
            "captured");
}

TEST(LibrariesTest, AMissingLibraryIsNamedWithWhereItWasLookedFor) {
  EXPECT_EQ(MessageOf<LibraryMissing>([] {
              fused::OpenNvrtc({"libnone.so.1", "/none/libnone.so"});
            }),
            "cannot open NVRTC, the compiler of CUDA's kernels, of which were tried: "
            "libnone.so.1, /none/libnone.so");
  EXPECT_EQ(MessageOf<LibraryMissing>([] { fused::OpenDriver({"libnone.so.1"}); }),
            "cannot open the library of the NVIDIA driver, of which were tried: libnone.so.1");
}

TEST(LibrariesTest, ALibraryWithoutAFunctionIsOfAnotherVersion) {
  const std::string file = kFolder + "/libnvrtc_without_error_texts.so";
  EXPECT_EQ(MessageOf<LibraryMissing>([&] { fused::OpenNvrtc({file}); }),
            file + " has no function nvrtcGetErrorString; it is of another version than 12 or 13");
}

TEST(LibrariesTest, TheFirstThatOpensIsTaken) {
  const std::string copy = kFolder + "/libnvrtc_copy.so";
  EXPECT_EQ(fused::OpenNvrtc({"libnone.so.1", copy, kNvrtc}).path, copy);
  EXPECT_EQ(fused::OpenNvrtc({kNvrtc, copy}).path, kNvrtc);
}

TEST(LibrariesTest, OneThatLeadsToNvrtcIsAsGood) {
  const fused::Nvrtc nvrtc = fused::OpenNvrtc({kFolder + "/libcaffe2_nvrtc.so"});
  EXPECT_EQ(nvrtc.path, kNvrtc);
  EXPECT_STREQ(nvrtc.error_text(6), "NVRTC_ERROR_COMPILATION");
}

TEST(LibrariesTest, NvrtcIsLookedForWhereLibTorchComesWithIt) {
  using Names = std::vector<std::string>;
  const Names own = {"/lib/torch/lib/libcaffe2_nvrtc.so"};
  const Names newer = {"/lib/torch/lib/libnvrtc.so.13",
                       "/lib/torch/lib/../../nvidia/cu13/lib/libnvrtc.so.13", "libnvrtc.so.13"};
  const Names older = {"/lib/torch/lib/libnvrtc.so.12",
                       "/lib/torch/lib/../../nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                       "libnvrtc.so.12"};
  const auto joined = [](std::initializer_list<Names> parts) {
    Names all;
    for (const Names& part : parts) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  const auto nvrtc_of = [](int cuda) {
    return fused::UsualLibraryNames("/lib/torch/lib", cuda).nvrtc;
  };
  EXPECT_EQ(nvrtc_of(13), joined({own, newer, older}));
  EXPECT_EQ(nvrtc_of(0), joined({own, newer, older}));
  EXPECT_EQ(nvrtc_of(12), joined({own, older}));  // a driver of 12 loads nothing that is newer
  EXPECT_EQ(fused::UsualLibraryNames("", 0).nvrtc, (Names{"libnvrtc.so.13", "libnvrtc.so.12"}));
  EXPECT_EQ(fused::UsualLibraryNames("", 12).nvrtc, Names{"libnvrtc.so.12"});
  EXPECT_EQ(fused::UsualLibraryNames("", 12).driver, Names{"libcuda.so.1"});
}

}  // namespace
}  // namespace fsdprun::worker
