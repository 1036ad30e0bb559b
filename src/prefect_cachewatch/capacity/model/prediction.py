"""What each job sees at a mix of classes, and how long a batch takes; nothing is limited here."""

from __future__ import annotations

import math

from prefect_cachewatch.capacity.model.convolution import ClosedNetwork
from prefect_cachewatch.capacity.model.demands import Demands
from prefect_cachewatch.capacity.model.results import ClassPrediction

_PAUSE_99 = 0.49  # of pauses that vary evenly by half, one in a hundred is so much longer than the mean


def predict(demands: Demands, network: ClosedNetwork, counts: list[int]) -> tuple[tuple[ClassPrediction, ...], float]:
    """What each class sees at a mix, and how many bursts are at the storage on average.

    Args:
        demands: the network's description.
        network: the network prepared for at least these counts.
        counts: jobs of each class.

    Returns:
        A prediction for each class, its band still equal to its mean, and the mean number of
        bursts at the storage.

    Raises:
        InputError: if the network was prepared for fewer jobs.
    """
    solution = network.at(counts)
    busy = dict.fromkeys(demands.stations, 0.0)
    for name, share in zip(demands.stations, solution.utilisation, strict=True):
        busy[name] = max(busy[name], float(share))
    # Of all that the storage could give, not of what it gives to so few.
    busy[demands.stations[-1]] = float(solution.throughput_per_s @ demands.demands_s[:, -1] / demands.alpha.max())
    policy, usual = demands.scenario.policy, demands.scenario.accepted_alone_s
    predictions = []
    for c, workload in enumerate(demands.scenario.classes):
        n, alone = counts[c], demands.alone_s[c]
        burst = float(solution.response_s[c]) + demands.delay_s[c] if n else alone
        cycle = workload.think_s + burst
        job = workload.bursts_per_job * cycle
        rounds, left = divmod(workload.jobs, max(1, n))
        batch = rounds * job
        if left and workload.jobs > 1:  # the last ones run beside fewer others, and so faster
            fewer = network.at([left if d == c else count for d, count in enumerate(counts)])
            last = workload.think_s + float(fewer.response_s[c]) + demands.delay_s[c]
            batch += workload.bursts_per_job * last
        silent = 0.0 if workload.bytes_appear == "while_moving" else burst / workload.files_per_burst
        # Pause and burst vary each for itself: their distances from the mean to the 99th percentile add as squares do.
        late = math.hypot(_PAUSE_99 * workload.think_s, (policy.p99_over_mean(workload.burst_cv) - 1) * silent)
        rate = float(solution.throughput_per_s[c])
        predictions.append(
            ClassPrediction(
                name=workload.name,
                n=n,
                throughput_per_s=rate,
                bytes_per_s=rate * workload.burst_bytes,
                burst_s=burst,
                burst_low_s=burst,
                burst_high_s=burst,
                io_slowdown=burst / alone,
                slowdown=cycle / (usual.get(workload.name) or workload.think_s + alone),
                gap_p99_s=workload.think_s + silent + late,
                job_s=job,
                batch_s=batch or job,
                utilisation=busy,
            )
        )
    return tuple(predictions), float(solution.queue_length[:, -1].sum())
