#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun {

/// Adds the process that holds the port, and what to do, to an "address in use" error.
absl::Status WithPortHolder(const absl::Status& status, uint16_t port, absl::string_view advice);

/// The port of `endpoint` is in use on this machine, by the job's coordinator or by another
/// program. A launcher that does not answer yet is busy and will be tried again; any other program
/// is an error, and so is a launcher that speaks TLS if this one does not (`uses_tls`), or the
/// reverse. Takes a second at most.
absl::Status CheckPortHolder(const NumericEndpoint& endpoint, bool uses_tls);

}  // namespace fsdprun
