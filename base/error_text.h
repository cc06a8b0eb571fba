#pragma once

#include <string>
#include <system_error>

namespace fsdprun {

/// What the number of a failed system call means, for example "No such file or directory". Unlike
/// strerror() it may be called from any thread.
inline std::string ErrorText(int error) { return std::generic_category().message(error); }

}  // namespace fsdprun
