"""Run by itself: two machines of a cluster, pretended on this one, of which one is lost amid the work."""

from __future__ import annotations

import time
from collections.abc import Callable

import ray
from ray.cluster_utils import Cluster

from assay.scale import RayCluster

STORE = 80 * 2**20


def slowly(advance: Callable[[int], object]) -> Callable[[int], int]:
    def work(number: int) -> int:
        time.sleep(0.3)
        advance(1)
        return number

    return work


def main() -> None:
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    machines = Cluster(initialize_head=True, head_node_args=head)
    other = machines.add_node(num_cpus=1, object_store_memory=STORE)
    ray.init(address=machines.address, log_to_driver=False, logging_level="ERROR")
    parts: list[int] = []
    with RayCluster(workers=2) as cluster:
        list(cluster.run(two_machines.slowly, range(4), parts.append))
        found = []
        for _, result in cluster.run(two_machines.slowly, range(12), parts.append):
            found.append(result)
            if len(found) == 4:
                machines.remove_node(other, allow_graceful=False)
    print("found", sorted(found) == list(range(12)), sum(parts))
    ray.shutdown()
    machines.shutdown()


if __name__ == "__main__":
    from scale import two_machines  # what is sent to workers has the name of a module

    main()
