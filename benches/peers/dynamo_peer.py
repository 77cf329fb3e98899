"""Dynamo's simulated fleet as a side of `cargo xtask bench fleet`: one JSON object a line, there and back.

usage: dynamo_peer.py PACKAGES TRACE
    PACKAGES  folder that ai-dynamo-runtime was installed into
    TRACE     the Mooncake conversation trace

| request | answer |
|---|---|
| `{"do": "run", "name": "reuse_8", "size": "full"}` | `{"ok": {"fleet.mocker_reuse_8": {"samples": [percent], "remarks": [..]}}}` |

The router and its index are those that `benches/fleet` links, the workers Dynamo's simulation of
vLLM. All settings are those of `benches/fleet/src/setting.rs`; the router's are its defaults.
"""

import json
import os
import sys

# Only JSON lines may go to the real standard output: a library that prints would break the
# protocol.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

packages, trace = sys.argv[1:3]
sys.path.insert(0, packages)
# It would tell of each choice of a worker.
os.environ["DYN_LOG"] = "error"

from dynamo._core import KvRouterConfig, run_mocker_trace_replay

# By the number of workers: how many times as fast as in the trace the requests come.
FLEETS = {8: 1.0, 100: 12.0, 1000: 120.0}
BLOCK_TOKENS = 512
WORKER_BLOCKS = 1000


def simulate(workers, router_mode, **router):
    result = run_mocker_trace_replay(
        [trace],
        extra_engine_args={"engine": {"num_gpu_blocks": WORKER_BLOCKS, "block_size": BLOCK_TOKENS}},
        router_config=KvRouterConfig(**router) if router else None,
        num_workers=workers,
        router_mode=router_mode,
        arrival_speedup_ratio=FLEETS[workers],
        trace_block_size=BLOCK_TOKENS,
    )
    return result.summary


def told(summary):
    reuse = 100 * summary["prefix_cache_reused_ratio"]
    mean, p99 = summary["mean_ttft_ms"], summary["p99_ttft_ms"]
    return f"{reuse:.1f} %; first token after {mean:.0f} ms, p99 {p99:.0f}"


def run(name):
    kind, _, workers = name.partition("_")
    workers = int(workers) if workers.isdecimal() else None
    if kind != "reuse" or workers not in FLEETS:
        raise ValueError(f"no run is named {name}")
    kv = simulate(workers, "kv_router")
    credit = simulate(workers, "kv_router", overlap_score_credit=2.0)
    remarks = [
        f"with the router's defaults: {told(kv)}",
        f"with twice the credit for a block: {told(credit)}",
        f"round robin: {told(simulate(workers, 'round_robin'))}",
    ]
    reuse = 100 * kv["prefix_cache_reused_ratio"]
    return {f"fleet.mocker_reuse_{workers}": {"samples": [reuse], "remarks": remarks}}


for line in sys.stdin:
    try:
        request = json.loads(line)
        if request["do"] != "run":
            raise ValueError(f"not a run: {line.strip()}")
        answer = {"ok": run(request["name"])}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), file=answers, flush=True)
