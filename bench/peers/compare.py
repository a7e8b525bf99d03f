"""Tapedeck against PyTorch, alternating in one run: ./dev bench --peers [--filter TEXT] [--rounds N] [--json FILE]

A ratio is PyTorch's time over ours, of one round; the table has the median round. One thread each, pinned to one core
where the system allows it; both use OpenBLAS's kernels for the processor.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent

# name: our program, its benchmark
ROWS = {
    "reversal_additive": ("reversal_step", "step/additive"),
    "reversal_dot": ("reversal_step", "step/dot"),
    "gru_toy": ("layers", "gru/toy"),
    "gru_large": ("layers", "gru/large"),
    "cross_entropy_toy": ("layers", "cross_entropy_loss/toy"),
    "cross_entropy_large": ("layers", "cross_entropy_loss/large"),
}


def run(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return done.stdout


def ours(programs, row, environment):
    program, benchmark = ROWS[row]
    text = run(
        [programs / program, f"--benchmark_filter=^{benchmark}(/|$)", "--benchmark_min_time=0.5", "--benchmark_format=json"],
        environment,
    )
    entry = json.loads(text[text.index("{") :])["benchmarks"][0]
    return entry["real_time"] * {"ns": 1e-6, "us": 1e-3, "ms": 1}[entry["time_unit"]]


def theirs(python, row, environment):
    return float(run([python, HERE / "torch_case.py", row, "1"], environment))


def cpu():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
        return re.search(r"model name\s*: (.*)", text).group(1)
    except (OSError, AttributeError):
        return platform.processor() or "unknown processor"


def main():
    parser = argparse.ArgumentParser(prog="./dev bench --peers")
    parser.add_argument("--programs", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--python", default=sys.executable, help=argparse.SUPPRESS)
    parser.add_argument("--filter", default="", help="only rows whose name contains this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="write the table there as a list of objects")
    arguments = parser.parse_args()
    rows = [row for row in ROWS if arguments.filter in row]
    if not rows or arguments.rounds < 1:
        parser.error(f"nothing to run; rows are {', '.join(ROWS)}; rounds are at least 1")

    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    flags = pathlib.Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    if "OPENBLAS_CORETYPE" not in environment and "avx2" in flags:
        environment["OPENBLAS_CORETYPE"] = "SkylakeX" if "avx512vl" in flags else "Haswell"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch = run([arguments.python, "-c", "import torch; print(torch.__version__)"], environment).strip()
    print(f"{cpu()}; OpenBLAS kernels {environment.get('OPENBLAS_CORETYPE', 'as found')}; PyTorch {torch}; 1 thread")
    print(f"{'':24}{'ours, ms':>10}{'PyTorch':>10}{'ratio':>8}   least-most")
    table = []
    for row in rows:
        pairs = []
        for done in range(arguments.rounds):
            if sys.stderr.isatty():
                print(f"\r{row}: round {done + 1} of {arguments.rounds} ", end="", file=sys.stderr, flush=True)
            pairs.append((ours(arguments.programs, row, environment), theirs(arguments.python, row, environment)))
        if sys.stderr.isatty():
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
        ratios = [peer / mine for mine, peer in pairs]
        entry = {
            "name": row,
            "threads": 1,
            "ours_ms": statistics.median(mine for mine, _ in pairs),
            "peer": f"PyTorch {torch}",
            "peer_ms": statistics.median(peer for _, peer in pairs),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
        table.append(entry)
        print(
            f"{row:24}{entry['ours_ms']:10.3f}{entry['peer_ms']:10.3f}{entry['ratio']:8.2f}"
            f"   {entry['ratio_min']:.2f}-{entry['ratio_max']:.2f}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
