"""What the comparisons with other programs have in common: who takes turns with whom, and how it is told."""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def compare(peer, doc, package, programs, cases, name, measure, bench_arguments):
    """Measures each case on the peer and on `plimsoll bench` in turn, and prints medians and ratios.

    `cases` are tuples whose last element is the number of messages; `measure(case, messages, size, dir)` answers messages a second of the
    peer, `bench_arguments(case)` what of `plimsoll bench` is the same.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often the two take turns [5]")
    parser.add_argument("--size", type=int, default=128, help="bytes of a message [128]")
    parser.add_argument("--share", type=float, default=1.0, help="share of the usual number of messages [1.0]")
    parser.add_argument("--dir", default=None, help="where to make temporary directories: the disk [the usual]")
    parser.add_argument("--plimsoll", default=None, help="the program [built from this repository]")
    parser.add_argument("--json", action="store_true", help="print an array of JSON objects")
    arguments = parser.parse_args()

    install(package, programs)
    plimsoll = arguments.plimsoll or build_plimsoll()

    def ours(case, messages, size, parent):
        return bench(plimsoll, bench_arguments(case), messages, size, parent)

    results = [{peer: [], "plimsoll": []} for _ in cases]
    for turn in range(arguments.rounds):
        for case, result in zip(cases, results):
            print(f"round {turn + 1}/{arguments.rounds}: {name(case)}", file=sys.stderr)
            messages = max(1, int(case[-1] * arguments.share))
            # Who goes first changes from round to round.
            sides = [(peer, measure), ("plimsoll", ours)]
            for side, run in sides if turn % 2 == 0 else reversed(sides):
                result[side].append(run(case, messages, arguments.size, arguments.dir))
    report(peer, cases, name, results, arguments)


def main(run):
    """Runs it; an interrupt is no error."""
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)


def install(package, programs):
    if all(shutil.which(program) for program in programs):
        return
    print(f"installing {package}", file=sys.stderr)
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", package]):
        subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def build_plimsoll():
    subprocess.run(["cargo", "build", "--release", "--package", "plimsoll"], cwd=REPOSITORY, check=True)
    metadata = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--no-deps"],
        cwd=REPOSITORY, check=True, capture_output=True, text=True,
    )
    return Path(json.loads(metadata.stdout)["target_directory"]) / "release" / "plimsoll"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def await_port(port, server):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    sys.exit(f"{server.args[0]} did not start")


def bench(plimsoll, arguments, messages, size, parent):
    """Messages a second of `plimsoll bench`."""
    command = [plimsoll, "bench", "--json", "--rounds", "1", *arguments, "--size", str(size), "--messages", str(messages)]
    if parent:
        command += ["--data", parent]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(f"plimsoll bench ended with {run.returncode}")
    (result,) = json.loads(run.stdout)
    return result["messages_per_second"]


def report(peer, cases, name, results, arguments):
    rows = []
    for case, result in zip(cases, results):
        ratios = [ours / theirs for ours, theirs in zip(result["plimsoll"], result[peer])]
        rows.append({
            "case": name(case),
            "size": arguments.size,
            f"{peer}_per_second": statistics.median(result[peer]),
            "plimsoll_per_second": statistics.median(result["plimsoll"]),
            "ratio": statistics.median(ratios),
            "ratios": [round(ratio, 3) for ratio in ratios],
        })
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    head = f"messages of {arguments.size} bytes a second, medians"
    print(f"{head:50} {peer:>10} {'plimsoll':>10} {'ratio':>7}")
    for row in rows:
        print(f"{row['case']:50} {row[f'{peer}_per_second']:10.0f} {row['plimsoll_per_second']:10.0f} {row['ratio']:7.2f}")
