#!/usr/bin/env python3
"""What more machines than there are would do: measured layer times, replayed through a simulated pipeline and network.

    build/bam inspect --model DIR --stages 1 --measure 32768 --json > layers.json
    bench/cluster/simulate.py layers.json [--nodes 1,2,4,8,16] [--gbit 10] [--length 500000]

A node is the machine that measured. Layers are shared out so that the slowest stage is as fast as it can be; steps of
`chunk` rows go from stage to stage; 2n of them are on their way at once; a link sends one message after the other. A
length beyond the measured one goes on from its last quarter, as all of it rose (medians).
"""
import argparse
import itertools
import json
import pathlib
import statistics


def layer_time(parts, tokens, begin, end):
    """Seconds of one layer for the rows [begin, end): per-row times of the parts, between their middles in a straight line."""
    size = tokens / len(parts)
    per_row = [seconds / size for seconds in parts]
    # One part that something else disturbed must not decide what lies beyond: the median of all slopes, from the last quarter's.
    pairs = itertools.combinations(range(len(parts)), 2)
    slope = max(0.0, statistics.median((per_row[b] - per_row[a]) / ((b - a) * size) for a, b in pairs)) if len(parts) > 1 else 0.0
    last = range(len(parts) * 3 // 4, len(parts))
    level, centre = statistics.median(per_row[i] for i in last), (last[0] + last[-1] + 1) / 2 * size

    def at(position):
        place = position / size - 0.5
        if place >= len(parts) - 1:
            return level + slope * (position - centre)
        low = max(0, int(place))
        return per_row[low] + (per_row[low + 1] - per_row[low]) * max(0.0, place - low) if len(parts) > 1 else per_row[0]
    return (end - begin) * at((begin + end) / 2)


def split(costs, stages):
    """Layer counts per stage whose largest sum is smallest."""
    count = len(costs)
    sums = [0.0, *itertools.accumulate(costs)]
    best = {(0, 0): (0.0, ())}
    for stage in range(1, stages + 1):
        for end in range(stage, count - (stages - stage) + 1):
            best[stage, end] = min(((max(best[stage - 1, begin][0], sums[end] - sums[begin]), best[stage - 1, begin][1] + (end - begin,))
                                    for begin in range(stage - 1, end) if (stage - 1, begin) in best), key=lambda found: found[0])
    return best[stages, count][1]


def pipeline(times, row_bytes, rows, bytes_per_second, latency, overhead):
    """Seconds until the last of the steps is done. times[stage][step]; overhead: of a stage for each step."""
    stages, steps = len(times), len(rows)
    depth = 2 * stages
    free, link_free, done = [0.0] * stages, [0.0] * stages, []
    for step in range(steps):
        ready = done[step - depth] if step >= depth else 0.0  # a result is the credit for another step
        for stage in range(stages):
            free[stage] = max(free[stage], ready) + times[stage][step] + overhead
            if stage + 1 < stages:
                link_free[stage] = max(link_free[stage], free[stage]) + rows[step] * row_bytes / bytes_per_second
                ready = link_free[stage] + latency
        done.append(free[-1] + (latency if stages > 1 else 0.0))
    return done[-1]


def simulate(measured, hidden, length, nodes, gbit, latency, overhead):
    """(stages, seconds, seconds of the slowest stage) of one prompt."""
    tokens, chunk, layers = measured["tokens"], measured["chunk"], measured["layer_seconds"]
    begins = range(0, length, chunk)
    rows = [min(chunk, length - begin) for begin in begins]
    by_layer = [[layer_time(parts, tokens, begin, begin + count) for begin, count in zip(begins, rows, strict=True)] for parts in layers]
    counts = split([sum(steps) for steps in by_layer], min(nodes, len(layers)))
    times, first = [], 0
    for count in counts:
        times.append([sum(steps) for steps in zip(*by_layer[first:first + count], strict=True)])
        first += count
    return len(counts), pipeline(times, 4 * hidden, rows, gbit * 1e9 / 8, latency, overhead), max(map(sum, times))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=pathlib.Path, help="what `bam inspect --stages 1 --measure N --json` printed")
    parser.add_argument("--nodes", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 4, 8, 16])
    parser.add_argument("--gbit", type=float, default=10)
    parser.add_argument("--latency-us", type=float, default=60, help="of a message between two machines")
    parser.add_argument("--overhead-us", type=float, default=150, help="of a stage for each step, beside computing")
    parser.add_argument("--length", type=int, help="of the prompt; as measured unless given")
    args = parser.parse_args()
    inspection = json.loads(args.measured.read_text(encoding="utf-8"))
    stages = inspection["stages"]
    hidden = stages["bytes_per_token_and_boundary"] // 4
    length = args.length or stages["measured"]["tokens"]
    alone = simulate(stages["measured"], hidden, length, 1, args.gbit, args.latency_us * 1e-6, 0.0)[1]
    print(f"simulated: {length} tokens, {args.gbit:g} GbE, layers measured with {stages['measured']['tokens']} tokens")
    print(f"{'nodes':>5} {'stages':>6} {'seconds':>9} {'speed-up':>9} {'of balance':>10}")
    for nodes in args.nodes:
        used, seconds, slowest = simulate(stages["measured"], hidden, length, nodes, args.gbit, args.latency_us * 1e-6, args.overhead_us * 1e-6)
        print(f"{nodes:>5} {used:>6} {seconds:>9.1f} {alone / seconds:>9.2f} {100 * slowest / seconds:>8.1f} %")


if __name__ == "__main__":
    main()
