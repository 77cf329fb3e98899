#!/bin/bash
# Joins and unpacks the parts beside this file, runs each section with a time limit, and writes
# report.md and report.json into a folder (the first argument, or `results` beside this file).
set -u
variant=@VARIANT@
here=$(cd "$(dirname "$0")" && pwd) && cd "$here" || exit 1
results=${1:-$here/results} && mkdir -p "$results" unpacked logs || exit 1
deadline=${MOTET_CHECK_SECONDS:-570}
entries="" failed=0 quick=""
[[ $variant == cpu ]] && quick=--quick

unpack() { # parts' name
  [[ -e unpacked/$1.done ]] && return
  grep " $1-" SHA256SUMS | sha256sum --check --quiet || { echo "parts $1 are incomplete"; exit 1; }
  cat "$1"-[0-9]* | { xz -dc 2>/dev/null || exit 1; } | tar -x -C unpacked ||
    python3 -c 'import glob, lzma, sys, tarfile
class Parts:
    def __init__(self): self.files = [open(name, "rb") for name in sorted(glob.glob(sys.argv[1] + "-[0-9]*"))]
    def read(self, count):
        while self.files:
            if found := self.files[0].read(count): return found
            self.files.pop(0)
        return b""
tarfile.open(fileobj=lzma.open(Parts()), mode="r|").extractall("unpacked")' "$1" || exit 1
  touch "unpacked/$1.done"
}

section() { # name, limit in seconds, command
  local name=$1 limit=$2 begun=$SECONDS state=passed code text; shift 2
  ((limit > deadline - SECONDS)) && limit=$((deadline - SECONDS))
  if ((limit > 0)); then
    (cd unpacked && timeout -k 5 "$limit" "$@") >"logs/$name" 2>&1; code=$?
  else
    echo "no time was left" >"logs/$name"; code=124
  fi
  # The runner of tests succeeds where no test has the name.
  [[ "$*" == *" --exact "* && $code == 0 ]] && ! grep -q "ok. 1 passed" "logs/$name" && code=1
  case $code in 0) ;; 77) state=skipped ;; 124 | 137) state="out of time" failed=1 ;; *) state=failed failed=1 ;; esac
  echo "$name: $state, $((SECONDS - begun)) s"
  text=$(grep '^{' "logs/$name" | paste -sd, -)
  entries+="${entries:+,}
{\"section\": \"$name\", \"state\": \"$state\", \"seconds\": $((SECONDS - begun)), \"records\": [$text]}"
  echo "{\"variant\": \"$variant\", \"sections\": [$entries]}" >"$results/report.json"
  { echo "## $name: $state, $((SECONDS - begun)) s"; echo; echo '```text'; cat "logs/$name"; echo '```'; } >>"$results/report.md"
}

check() { # name, limit, program, test
  section "$1" "$2" "./$3" --exact "$4" --include-ignored --nocapture
}

echo "# Check of MLX for $variant" >"$results/report.md"
unpack base
export MOTET_MODEL=$here/unpacked/model.gguf MOTET_FIXTURES=$here/unpacked/fixtures MLX_PTX_CACHE_DIR=$here/ptx
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1} RUST_BACKTRACE=0
if [[ $variant != cpu ]]; then
  export MOTET_GPU_REQUIRED=1
  if ls libraries-[0-9]* >/dev/null 2>&1; then unpack libraries; else
    # The machine's own: Python's packages, and a toolkit.
    read -r own headers < <(python3 -c 'import glob, importlib.util as u; s = u.find_spec("nvidia")
found = [f for p in (s.submodule_search_locations if s else []) for f in glob.glob(p + "/*/")]
has = lambda pattern: [f for f in found if glob.glob(f + pattern)]
print(":".join(f + "lib" for f in has("lib/*.so*")) or "-", (has("include/cuda_fp16.h") or ["-"])[0])')
    export LD_LIBRARY_PATH=$own:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
    [[ -d /usr/local/cuda ]] && headers=/usr/local/cuda
    export CUDA_HOME=${CUDA_HOME:-$headers}
  fi
fi
echo "unpacked: $SECONDS s"

section machine 20 bash -c 'uname -srm; nproc; nvidia-smi; ldd ./measure'
check parity 120 parity device::families_on_a_gpu_have_the_logits_of_the_cpu
section speed-q4 120 ./measure speed model.gguf $quick
check budget 90 mlx_gpu rules::the_budget_bounds_the_memory_of_the_device
check out-of-memory 90 mlx_gpu rules::streams_survive_a_device_out_of_memory
check transfer-queue 60 mlx_gpu rules::state_from_the_host_gives_the_tokens_of_state_on_the_device
check two-steps 60 mlx_gpu rules::two_steps_are_in_flight
section weights 30 bash -c 'mkdir -p export && ./measure export model.gguf export'
section speed-unquantised 60 ./measure speed export $quick
section torch 90 python3 speed_torch.py export $quick
check greedy 60 mlx_gpu greedy_tokens_are_the_cpus_up_to_a_near_tie
check logits 60 mlx_gpu logits_after_the_same_text_are_near_the_cpus
check moved 60 mlx_gpu moved_state_gives_nearly_the_same_logits
check batch 90 mlx_gpu a_batch_gives_the_tokens_of_single_sequences
# Minutes of work for the CPU.
[[ $variant == cpu ]] || check offload 120 mlx_gpu an_engine_offloads_and_restores
echo "all: $SECONDS s; $results/report.md"
exit $failed
