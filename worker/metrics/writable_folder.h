#pragma once

#include <string>

namespace fsdprun::worker {

/// Makes `folder`, for files of `what` ("TensorBoard files"), and looks whether files can be made
/// there, so that a wrong path is known before the job is formed; empty: does nothing. `key`: of
/// the configuration, for errors. Errors: MetricsError.
void CheckWritableFolder(const std::string& folder, const std::string& what,
                         const std::string& key);

}  // namespace fsdprun::worker
