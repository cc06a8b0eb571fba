#include "tests/unit/fsdp_runtime/nccl/fake_nccl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace fsdp::testing {

FakeNccl& FakeNccl::get() {
  static auto* nccl = new FakeNccl;  // threads that are left behind outlive main()
  return *nccl;
}

void FakeNccl::reset() {
  let_go();
  let_go_of_forming();
  std::lock_guard lock(mu_);
  made_.clear();
  errors_.clear();
  launch_errors_.clear();
  integers_.clear();
}

void FakeNccl::hold(int64_t device) {
  std::lock_guard lock(mu_);
  held_.insert(static_cast<int>(device));
}

void FakeNccl::let_go() {
  std::lock_guard lock(mu_);
  held_.clear();
  for (const auto& communicator : communicators_) {
    for (const KernelPtr& kernel : std::exchange(communicator->kernels, {})) {
      FakeCuda::get().end(kernel);
    }
  }
}

void FakeNccl::hold_forming() {
  std::lock_guard lock(mu_);
  holds_forming_ = true;
}

void FakeNccl::let_go_of_forming() {
  std::lock_guard lock(mu_);
  holds_forming_ = false;
  changed_.notify_all();
}

void FakeNccl::wait_for_forming() {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [this] { return !holds_forming_; });
}

void FakeNccl::set_asynchronous_error(int device, ncclResult_t error) {
  std::lock_guard lock(mu_);
  errors_[device] = error;
}

void FakeNccl::set_launch_error(int device, ncclResult_t error) {
  std::lock_guard lock(mu_);
  launch_errors_[device] = error;
}

void FakeNccl::set_gathered_integers(std::vector<int64_t> values) {
  std::lock_guard lock(mu_);
  integers_ = std::move(values);
}

FakeNccl::Communicator* FakeNccl::make(int rank, int size) {
  std::lock_guard lock(mu_);
  communicators_.push_back(std::make_unique<Communicator>());
  Communicator& made = *communicators_.back();
  made.device = FakeCuda::device();
  made.number = ++made_[made.device];
  made.rank = rank;
  made.size = size;
  return &made;
}

int FakeNccl::size_of_part(const Communicator& whole) const {
  std::lock_guard lock(mu_);
  const auto rank = static_cast<size_t>(whole.rank);
  return rank >= integers_.size()
             ? whole.size
             : static_cast<int>(std::count(integers_.begin(), integers_.end(), integers_[rank]));
}

void FakeNccl::revoke(Communicator& communicator) {
  std::lock_guard lock(mu_);
  communicator.is_revoked = true;
  for (const KernelPtr& kernel : std::exchange(communicator.kernels, {})) {
    FakeCuda::get().end(kernel);
  }
}

bool FakeNccl::is_held_up_by_another(const Communicator& communicator) const {
  std::lock_guard lock(mu_);
  return std::any_of(communicators_.begin(), communicators_.end(), [&](const auto& each) {
    return each->device == communicator.device && !each->kernels.empty();
  });
}

void FakeNccl::free(Communicator* communicator) {
  revoke(*communicator);
  std::lock_guard lock(mu_);
  std::erase_if(communicators_,
                [communicator](const auto& each) { return each.get() == communicator; });
  changed_.notify_all();
}

bool FakeNccl::wait_for_looks(int times) {
  std::unique_lock lock(mu_);
  return changed_.wait_for(lock, std::chrono::minutes(1),
                           [this, end = looks_ + times] { return looks_ >= end; });
}

bool FakeNccl::wait_until_none_is_left() {
  std::unique_lock lock(mu_);
  return changed_.wait_for(lock, std::chrono::minutes(1),
                           [this] { return communicators_.empty(); });
}

ncclResult_t FakeNccl::asynchronous_error(const Communicator& communicator) {
  std::lock_guard lock(mu_);
  ++looks_;
  changed_.notify_all();
  const auto found = errors_.find(communicator.device);
  return found == errors_.end() ? ncclSuccess : found->second;
}

ncclResult_t FakeNccl::launch(Communicator& communicator, const std::string& what,
                              cudaStream_t stream) {
  FakeCuda& cuda = FakeCuda::get();
  const KernelPtr kernel = std::make_shared<Kernel>();
  const bool is_captured = cuda.launch(stream, kernel);
  cuda.write(communicator.device, what + " on communicator " + std::to_string(communicator.number) +
                                      ", " + cuda.name(stream) + (is_captured ? ", captured" : ""));
  std::lock_guard lock(mu_);
  const auto error = launch_errors_.find(communicator.device);
  if (held_.contains(communicator.device) && !communicator.is_revoked &&
      error == launch_errors_.end()) {
    communicator.kernels.push_back(kernel);
  } else {
    cuda.end(kernel);
  }
  return error == launch_errors_.end() ? ncclSuccess : error->second;
}

void FakeNccl::gather_integers(void* to, size_t count) const {
  std::lock_guard lock(mu_);
  if (!integers_.empty()) {
    std::memcpy(to, integers_.data(), std::min(count, integers_.size()) * sizeof(int64_t));
  }
}

}  // namespace fsdp::testing

// LibTorch's watchdog of a new ProcessGroupNCCL reads the prefix of its log while the thread that
// made the group writes another one. Only what that thread copies is left out.
extern "C" const char* __asan_default_suppressions();
extern "C" const char* __asan_default_suppressions() {
  return "interceptor_via_fun:c10d::ProcessGroupNCCL::Watchdog::run\n";
}
