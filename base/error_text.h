#pragma once

#include <string>
#include <system_error>

namespace fsdprun {

/// The text for an errno value, for example "No such file or directory". Unlike strerror(),
/// thread-safe.
inline std::string ErrorText(int error) { return std::generic_category().message(error); }

}  // namespace fsdprun
