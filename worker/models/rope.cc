#include "worker/models/rope.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numbers>

namespace fsdprun::worker {
namespace {

/// Long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
at::Tensor ScaleAsLlama3(const at::Tensor& inv_freq, const Llama3RopeScaling& scaling) {
  const double old_length = scaling.original_max_position_embeddings;
  const double low_wavelength = old_length / scaling.low_freq_factor;
  const double high_wavelength = old_length / scaling.high_freq_factor;
  const at::Tensor wavelength = 2 * std::numbers::pi / inv_freq;
  const at::Tensor stretched =
      at::where(wavelength > low_wavelength, inv_freq / scaling.factor, inv_freq);
  const at::Tensor smooth = (old_length / wavelength - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor smoothed = (1 - smooth) * stretched / scaling.factor + smooth * stretched;
  const at::Tensor is_medium = ~(wavelength < high_wavelength) * ~(wavelength > low_wavelength);
  return at::where(is_medium, smoothed, stretched);
}

}  // namespace

at::Tensor RopeInverseFrequencies(const DecoderConfig& config) {
  const at::Tensor exponent =
      at::arange(0, config.head_dim, 2, at::TensorOptions(at::kLong)).to(at::kFloat) /
      static_cast<double>(config.head_dim);
  const at::Tensor inv_freq = 1.0 / at::pow(config.rope_theta, exponent);
  return config.rope_scaling ? ScaleAsLlama3(inv_freq, *config.rope_scaling) : inv_freq;
}

std::pair<at::Tensor, at::Tensor> RopeTables(const DecoderConfig& config, int64_t length,
                                             at::Device device) {
  const at::NoGradGuard no_grad;
  const at::Tensor inv_freq = RopeInverseFrequencies(config).to(device);
  const at::Tensor positions =
      at::arange(length, at::TensorOptions(at::kLong).device(device)).to(at::kFloat);
  const at::Tensor freqs =
      at::matmul(inv_freq.view({1, -1, 1}), positions.view({1, 1, -1})).transpose(1, 2);
  const at::Tensor emb = at::cat({freqs, freqs}, -1);
  return {emb.cos(), emb.sin()};
}

at::Tensor ApplyRope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor rotated = at::cat({-x.slice(-1, half, x.size(-1)), x.slice(-1, 0, half)}, -1);
  return x * cos.unsqueeze(1) + rotated * sin.unsqueeze(1);
}

}  // namespace fsdprun::worker
