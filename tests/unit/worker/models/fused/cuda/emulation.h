#pragma once

// What CUDA has built in, for kernels that are compiled as C++: one block after the other, of which
// each thread is a context of its own and runs until it meets others. A barrier that some do not
// reach is found, because nobody can go on; one that is missing, before a read or before memory is
// written again, by results that depend on the schedule.

#include <bit>
#include <cmath>
#include <functional>
#include <string>

#include "tests/unit/worker/models/fused/cuda/emulation_schedule.h"

namespace emulation {

struct Index {
  unsigned x = 0;
};

struct Launch {
  unsigned blocks = 1;
  unsigned threads = 1;
  Schedule schedule;
};

/// Runs `kernel` for each thread of each block. Returns the condition of the first assertion that
/// failed, or "". Throws std::logic_error if threads wait for others that do not come. Not
/// re-entrant; one thread at a time.
std::string Run(const Launch& launch, const std::function<void()>& kernel);

// Of the thread that runs.
extern Index thread_index, block_index, block_size, grid_size;
void Synchronise();
float Shuffle(float value, int distance);
void FailAssertion(const char* condition);

}  // namespace emulation

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)
#define threadIdx emulation::thread_index
#define blockIdx emulation::block_index
#define blockDim emulation::block_size
#define gridDim emulation::grid_size
#define __syncthreads emulation::Synchronise
#define __shfl_xor_sync(mask, value, distance) emulation::Shuffle(value, distance)
#define __float_as_uint std::bit_cast<unsigned, float>
#define __uint_as_float std::bit_cast<float, unsigned>
#define __assertfail(condition, file, line, function, size) emulation::FailAssertion(condition)
