"""What the benchmarks share: the fastest of several calls."""
import time


def best(f, repeat):
    "Seconds of the fastest of `repeat` calls of `f`"
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)
