#include "launcher/run/coordinator_port.h"

#include "launcher/directory/host_lookup.h"
#include "launcher/metrics/metric_page.h"
#include "launcher/run/monitoring.h"
#include "launcher/run/node_monitor.h"

namespace fsdprun {

std::unique_ptr<HealthPort> OpenCoordinatorPort(EventLoop& loop, const Environment& environment,
                                                const std::string& job, CoordinatorHost& host) {
  return OpenHealthPort(loop, environment,
                        {[&host] { return DescribeHealth(host.machine()); },
                         [&host, job] {
                           MetricPage page({{"run_id", job}, {"node", HostName()}});
                           CollectOwnProcess(&page);
                           host.Collect(&page);
                           return page.Text();
                         }});
}

}  // namespace fsdprun
