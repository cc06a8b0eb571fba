#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>
#include <fsdp/muon.h>

namespace fsdp {

/// orthogonalize() of a matrix in bfloat16, in its memory and, at a time, that of one more of its
/// size and of two squares of its shorter side.
FSDP_API at::Tensor orthogonalize_here(at::Tensor update, const MuonOptions& options);

// The rest is of flat tensors of one length, element by element: with the bits of torch.optim.Muon
// on whole ones, however they are divided.

/// Writes to `update`, bfloat16, what is to be orthogonalized: of the momentum that
/// `buffer` will be after a step with `gradient`, which apply_update() makes it. Changes nothing
/// else.
FSDP_API void write_update(const at::Tensor& gradient, const at::Tensor& buffer,
                           const MuonOptions& options, const at::Tensor& update);

struct MuonPart {
  at::Tensor param;
  at::Tensor gradient;
  at::Tensor buffer;
  at::Tensor update;  // of orthogonalize(), bfloat16
  at::Tensor copy;    // gets the updated parameter in its own dtype; may be undefined
};

/// The step itself. `rate`: `options.lr` for the shape of the matrix. `is_skipped`: 0-dim, bool; if
/// it is true, nothing changes; undefined: as if it were false.
FSDP_API void apply_update(const MuonPart& part, const MuonOptions& options, double rate,
                           const at::Tensor& is_skipped);

/// See MuonRate.
double muon_rate(const MuonOptions& options, int64_t rows, int64_t columns);

}  // namespace fsdp
