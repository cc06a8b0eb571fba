#pragma once

// What some code asks LibTorch to do, as a CUDA graph would keep it: operators, the numbers that
// they are given, and where memory is that was there before.

#include <functional>
#include <string>
#include <vector>

namespace fsdprun::worker {

/// An operator, its arguments but for tensors, and the memory of those that were there before.
using ObservedCall = std::string;

/// Of all operators that `work` calls, and its backwards, in their order. Thread: one at a time.
std::vector<ObservedCall> CallsOf(const std::function<void()>& work);

/// "" if there is none.
std::string FirstDifference(const std::vector<ObservedCall>& a, const std::vector<ObservedCall>& b);

}  // namespace fsdprun::worker
