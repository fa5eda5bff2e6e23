#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An hour with a GPU: all that is checked and measured on one, in order of worth, as pieces of at most nine minutes. Each piece
# leaves a JSON file, which is also its mark: a second call goes on where the first one was cut off. Needs no compiler: `./dev gpu
# bundle` packs this script with the programs. A failed piece keeps its mark, and the others run all the same.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
cd "$root"

usage() {
  cat <<'TEXT'
usage: bench/gpu/run.sh [options]
  --list          the pieces in their order, and how far they are
  --only NAME     this piece, measured anew; may be given again
  --lease SECONDS instead of all pieces what is worth most in this time, tests side by side (lease.py, which has pieces of its
                  own and takes --only and --out); leaves summary.txt and results.tgz in bench/results/gpu/lease
  --again         all pieces anew
  --minutes N     start no piece that may end later than this; default 60
  --limit SECONDS of a piece, or of a lease's process of tests; default 540
  --out FOLDER    of the results; default bench/results/gpu, which takes only those of a device that nvidia-smi lists
  --bin FOLDER    of the programs, default bin
TESSERA_PYTHON names a Python with PyTorch, for the peers, and with NVIDIA's libraries where the loader finds none.
TEXT
}

# Name, and the function that does it with its arguments. Of train, golden and graph: model, precision, batch, length.
pieces=(
  "laws            tests tessera_law_tests Laws/Cuda.*:CudaSizes.*"
  "attention       tests tessera_law_tests *AttentionPathsCuda*"
  "attention_own   tests tessera_law_tests *AttentionPathsCuda* env TESSERA_CUDNN_LIBRARY=none"
  "runs            tests tessera_device_tests DeviceRun.*-*WithoutADevice*:*WithADriver*"
  "ceilings        bench bench_ceilings"
  "golden_debug    golden debugmodel float32 8 512"
  "golden_124M     golden 124M float32 2 512"
  "golden_mixed    golden 124M mixed 2 512"
  "train_debug     train debugmodel float32 8 512"
  "train_mixed     train debugmodel mixed 8 512"
  "train_124M      train 124M float32 8 1024"
  "train_124M_bf16 train 124M mixed 16 1024"
  "golden_1B       golden 1B float32 1 256"
  "train_1B_bf16   train 1B mixed 4 4096"
  "train_1B        train 1B float32 1 4096"
  "ops             bench bench_ops --benchmark_filter=^[^+]*$"
  "ops_grad        bench bench_ops --benchmark_filter=[+]grad$"
  "host_cost       bench bench_host_cost"
  "experts         bench bench_moe"
  "nccl            tests tessera_nccl_tests *"
  "graph           graph 124M mixed 4 1024"
  "graph_debug     graph debugmodel float32 4 512"
  "laws_timed      tests tessera_law_tests Laws/Cuda.* env TESSERA_TEST_FULL=1"
  "peer_debug      peer train_step.py --model debugmodel --batch 8 --seq 512"
  "peer_124M       peer train_step.py --model 124M --precision mixed --batch 16 --seq 1024"
  "peer_1B         peer train_step.py --model 1B --precision mixed --batch 4 --seq 4096"
  "peer_ops        peer_ops"
  "peer_compiled   peer train_step.py --model 124M --precision mixed --batch 16 --seq 1024 --compile"
  "peer_compiled_1B peer train_step.py --model 1B --precision mixed --batch 4 --seq 4096 --compile"
  "memcheck        sanitized memcheck --track-stream-ordered-races all"
  "initcheck       sanitized initcheck"
  "racecheck       sanitized racecheck"
)

say() { printf 'gpu: %s\n' "$*"; }
die() { printf 'gpu: %s\n' "$*" >&2; exit 2; }

list='' only='' again='' lease='' minutes=60 limit=540 out='' bin=bin
while [ $# -gt 0 ]; do
  case $1 in
    --list) list=1 ;;
    --again) again=1 ;;
    --help | -h) usage; exit 0 ;;
    --only | --minutes | --limit | --out | --bin | --lease)
      [ $# -ge 2 ] || die "$1 needs a value"
      if [ "$1" = --only ]; then only+=${only:+$'\n'}$2; else printf -v "${1#--}" %s "$2"; fi
      shift
      ;;
    *) usage >&2; die "unknown argument '$1'" ;;
  esac
  shift
done
for number in "$minutes" "$limit" "${lease:-1}"; do
  [[ "$number" =~ ^[1-9][0-9]*$ ]] || die "'$number' is no number of minutes or seconds"
done
results=${out:-bench/results/gpu}

names() { printf '%s\n' "${pieces[@]}" | sed 's/ .*//'; }
if [ -z "$lease" ] && [ -n "$only" ]; then
  unknown=$(grep -Fxv -f <(names) <<<"$only" | head -n 1 || true)
  [ -z "$unknown" ] || die "there is no piece '$unknown'; --list names them"
fi

if [ -f COMMIT ]; then commit=$(cat COMMIT)
else
  commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
  git diff --quiet HEAD -- . ':!bench/results' 2>/dev/null || commit+=+changes
fi

# field <file> <name>: of a result.
field() { sed -nE "s/^\"$2\": \"?([^\"]*)\"?,\$/\1/p" "$1" 2>/dev/null | head -n 1; }
status_of() { # status_of <piece>: of the present code and device; else nothing
  local file=$results/$1.json
  if [ "$(field "$file" commit)" = "$commit" ] && [ "$(field "$file" device)" = "${device:-$(field "$file" device)}" ]; then
    field "$file" status
  fi
}
if [ -n "$list" ]; then
  for name in $(names); do printf '%-18s %s\n' "$name" "$(status_of "$name")"; done
  exit 0
fi

# --- what is here ------------------------------------------------------------------------------------------------------------

python=''
for candidate in "${TESSERA_PYTHON:-}" build/venv/bin/python python3; do
  if [ -n "$candidate" ] && command -v "$candidate" >/dev/null; then python=$(command -v "$candidate"); break; fi
done

# Adds the folder of a Python's nvidia/*/lib, or of the toolkit, that holds a library.
find_library() { # find_library <name>
  local folder
  for folder in $({ [ -z "$python" ] || "$python" -c 'import sys; print(*sys.path[1:], sep="\n")'; } |
    sed 's|$|/nvidia/*/lib|') /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64; do
    if [ -e "$folder/$1" ]; then
      export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
      return
    fi
  done
}
find_libraries() { # find_libraries <library>: what the loader does not find for it
  local missing
  for missing in $(ldd "$1" 2>/dev/null | awk '/not found/ { print $1 }'); do find_library "$missing"; done
}

lib=$bin/../lib
if [ -d "$lib" ]; then export LD_LIBRARY_PATH=$(readlink -f "$lib")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi # the bundle's own
[ -x "$bin/bench_ceilings" ] || die "there is no $bin/bench_ceilings: ./dev gpu builds it"
export TESSERA_CUDA_LIBRARY=${TESSERA_CUDA_LIBRARY:-$(readlink -f "$lib")/libtessera_cuda.so}
find_libraries "$TESSERA_CUDA_LIBRARY"
find_libraries "$lib/libtessera_nccl.so"
for name in libcupti.so.13 libcudnn.so.9 libnvrtc.so.13; do find_library "$name"; done # opened by name: times, attention
about=$("$bin/bench_ceilings" --device cuda --about 2>&1) || die "$about"
device=$(sed -nE 's/.*"device":"([^"]*)".*/\1/p' <<<"$about")
listed=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || true)
driver=''
while IFS=, read -r name version; do
  if [ -n "$name" ] && [[ "$device" == "$name"* ]]; then driver=${version# }; fi
done <<<"$listed"
if [ -z "$driver" ] && [ -z "$out" ]; then
  die "nvidia-smi lists no '$device': figures of an emulated device are none of $results; --out FOLDER takes them"
fi
if [ -n "$lease" ]; then
  [ -n "$python" ] || die "--lease needs python3"
  words=("$lease" --bin "$bin" --out "${out:-$results/lease}" --device "$device" --driver "${driver:-none}" --commit "$commit"
    --limit "$limit")
  while IFS= read -r name; do [ -z "$name" ] || words+=(--only "$name"); done <<<"$only"
  exec "$python" bench/gpu/lease.py "${words[@]}"
fi
work=$results/.work # logs, and how far the tests are
mkdir -p "$work"
say "$device, driver ${driver:-none}, commit $commit"

# --- kinds of pieces -----------------------------------------------------------------------------------------------------------
# Each writes its lines of JSON to $lines, its text to $log and its commands to $commands, and gives 0: passed, 3: cut off and to be
# taken up again, 4: skipped, with the reason in $reason, or else: failed.

child=''
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 130' INT TERM
run() { # run <command>...: within what is left of the piece
  local left=$((deadline - SECONDS)) status=0
  [ "$left" -gt 0 ] || return 124
  printf '%s\n' "$*" >>"$commands"
  timeout --kill-after=10 "$left" "$@" >>"$log" 2>&1 &
  child=$!
  wait "$child" || status=$?
  child=''
  return $status
}

bench() { # bench <program> <args>
  run "$bin/$1" --device cuda --json "$lines" "${@:2}"
}

train_step() { # train_step <device> <model> <precision> <batch> <length> <args>
  run "$bin/bench_train_step" --device "$1" --model "$2" --precision "$3" --batch "$4" --seq "$5" "${@:6}"
}
train() { train_step cuda "$@" --steps 10 --kernels --json "$lines"; }
golden() { # the CPU's losses, and whether the device has them
  local expected=$work/$piece.cpu.json
  [ -s "$expected" ] || { train_step cpu "$@" --steps 3 --json "$expected.part" && mv "$expected.part" "$expected"; } || return
  train_step cuda "$@" --steps 3 --json "$lines" --golden "$expected"
}

graph() { # the same steps op by op, and as launches of a CUDA graph with the same losses
  local eager=$work/$piece.eager.json
  train_step cuda "$@" --steps 10 --json "$eager" &&
    train_step cuda "$@" --steps 10 --graph --json "$lines" --golden "$eager" || return
  head -n 1 "$eager" >>"$lines"
}

# A device that a test has broken fails the tests after it in the same process: each failure ends the process, and the rest runs in
# another. What is done is kept by name, so that the next call runs the rest alone.
tests() { # tests <program> <filter> <command before it>...
  local program=$bin/$1 filter=$2 before=("${@:3}") done=$work/$piece.tests all left status news started first=1
  all=$("$program" --gtest_list_tests --gtest_filter="$filter" 2>/dev/null |
    awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }') || true
  [ -n "$all" ] || { reason="$program lists no tests"; return 1; }
  [ "$resumed" = 1 ] || : >"$done"
  while left=$(grep -Fxv -f <(sed 's/^[a-z]* //' "$done") <<<"$all"); do
    status=0
    : >"$log"
    run "${before[@]}" "$program" --gtest_fail_fast --gtest_color=no --gtest_filter="$(paste -sd : <<<"$left")" || status=$?
    news=$(sed -nE 's/^\[       OK \] ([^ ,]+).*/passed \1/p; s/^\[  FAILED  \] ([^ ,]+).* \([0-9]+ ms\)$/failed \1/p' "$log")
    started=$(sed -nE 's/^\[ RUN      \] ([^ ]+)$/\1/p' "$log" | tail -n 1)
    if [ "$status" = 124 ] && { [ -n "$news" ] || [ -z "$first" ]; }; then
      started='' # it had less than the time of a piece
    elif [ "$status" != 0 ] && ! grep -q '^failed' <<<"$news"; then
      # No test began, or one died, never ended, or ended well in a process that did not: the sanitizer's errors fail no test.
      [ -n "$started" ] || { reason=$(tail -n 1 "$log"); return 1; }
      news=$(grep -Fvx "passed $started" <<<"$news" || true)$'\n'"failed $started"
    fi
    first=''
    grep . <<<"$news" >>"$done" || true
    if grep -q '^failed' <<<"$news"; then cp "$log" "$work/$piece.$(tail -n 1 "$done" | tr -c 'A-Za-z0-9\n' _).log"; fi
    if [ "$status" = 124 ]; then break; fi
  done
  left=$(grep -cFxv -f <(sed 's/^[a-z]* //' "$done") <<<"$all" || true)
  printf '{"passed": %d, "failed": [%s], "left": %d}\n' "$(grep -c '^passed' "$done")" \
    "$(sed -n 's/^failed \(.*\)/"\1"/p' "$done" | paste -sd ,)" "$left" >"$lines"
  reason=$(sed -n 's/^failed //p' "$done" | paste -sd ' ')
  if [ "$left" -gt 0 ]; then return 3; fi
  [ -z "$reason" ]
}

sanitized() { # sanitized <tool> <options>
  local sanitizer
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer) || { reason='no compute-sanitizer'; return 4; }
  # It sees allocations of the driver alone.
  tests tessera_law_tests 'Laws/Cuda.*' env TESSERA_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool "$1" "${@:2}" --error-exitcode 9
}

with_torch() {
  [ -n "$python" ] && "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
    { reason='no Python with PyTorch for this device'; return 4; }
}
peer() { # peer <script> <args>
  with_torch || return
  run "$python" "bench/peers/$1" --device cuda "${@:2}" || return
  grep '^{' "$log" >"$lines"
}
peer_ops() {
  with_torch || return
  "$bin/bench_ops" --list-cases >"$work/cases.jsonl"
  run bash -c '"$1" bench/peers/ops.py --device cuda <"$2"' _ "$python" "$work/cases.jsonl" || return
  grep '^{' "$log" >"$lines"
}

# --- the hour ------------------------------------------------------------------------------------------------------------------

quoted() { printf '"%s"\n' "$(tr -d '\000-\037' <<<"$1" | sed 's/\\/\\\\/g; s/"/\\"/g')"; }
write_result() { # write_result <status> <seconds> <note>
  local file=$results/$piece.json command
  {
    printf '{\n"piece": %s,\n"status": "%s",\n' "$(quoted "$piece")" "$1"
    printf '"device": %s,\n"driver": %s,\n' "$(quoted "$device")" "$(quoted "$driver")"
    printf '"date": "%s",\n"commit": "%s",\n"seconds": %d,\n' "$(date -u +%FT%RZ)" "$commit" "$2"
    [ -z "$3" ] || printf '"note": %s,\n' "$(quoted "$3")"
    printf '"commands": [\n'
    sort -u "$commands" | while IFS= read -r command; do quoted "${command:0:400}"; done | sed 's/^/ /; $!s/$/,/'
    printf '],\n"results": [\n'
    sed 's/^/ /; $!s/$/,/' "$lines"
    printf ']\n}\n'
  } >"$file.part"
  mv "$file.part" "$file"
}

do_piece() { # do_piece <piece> <function> <args>
  local start=$SECONDS before code=0 status note=''
  piece=$1 reason='' resumed=0
  before=$(status_of "$piece")
  if [ -z "$only$again" ]; then
    if [ "$before" = unfinished ]; then resumed=1; elif [ -n "$before" ]; then return 0; fi
  fi
  if [ -z "$only" ] && [ $((SECONDS + limit)) -gt $((minutes * 60)) ] && [ "$ran" -gt 0 ]; then
    say "$piece: no time is left for it; call again"
    unfinished=$((unfinished + 1))
    return 0
  fi
  deadline=$((SECONDS + limit)) lines=$work/$piece.lines log=$work/$piece.log commands=$work/$piece.commands
  : >"$lines"; : >"$log"; : >"$commands"
  say "$piece"
  ran=$((ran + 1))
  "${@:2}" || code=$?
  case $code in
    0) status=passed ;;
    3) status=unfinished; unfinished=$((unfinished + 1)) ;;
    4)
      say "  skipped: $reason"
      skipped=$((skipped + 1))
      return 0
      ;;
    *) status=failed; failed=$((failed + 1)) ;;
  esac
  if [ "$status" = failed ]; then
    note=${reason:-$(tail -n 1 "$log")}
    if [ "$code" = 124 ]; then note="no end within $limit s"; fi
  fi
  write_result "$status" $((SECONDS - start)) "$note"
  say "  $status in $((SECONDS - start)) s${note:+: $note}"
}

ran=0 failed=0 skipped=0 unfinished=0
for line in "${pieces[@]}"; do
  set -f # patterns of the table are words
  # shellcheck disable=SC2086
  set -- $line
  set +f
  if [ -z "$only" ] || grep -Fxq -- "$1" <<<"$only"; then do_piece "$@"; fi
done
say "$ran run: $failed failed, $skipped skipped, $unfinished to be taken up again; results in $results"
[ "$failed" = 0 ]
