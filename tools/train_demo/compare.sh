#!/usr/bin/env bash
# Evaluates the siblings, each served by `bam serve`: pass keys and RULER's needles by length, perplexity by position.
#
#   tools/train_demo/compare.sh FOLDER TEXT RESULTS PICTURES [CURVES]
#
# FOLDER holds checkpoint folders (checkpoints/siblings); TEXT, which nobody was trained on, is scored and hides needles
# (WORKDIR/valid.txt of the training). Results are kept in RESULTS and a second call continues them; PICTURES gets the SVG files.
# Lengths grow until a model has answered nothing at two of them in a row. rope-ssmax is also served with its theta multiplied.
# CURVES are the siblings' learning curves. BAM names the program, LONG the lengths (in tokens, 5 depths) that are tried with
# those still alive at the last of LENGTHS, MEASURES what is measured (pass_keys perplexity needles).
set -euo pipefail

if [[ $# -lt 4 || $# -gt 5 ]]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
folder=$1 text=$2 results=$3 pictures=$4 curves=${5:-}
bam=${BAM:-build/bam}
tools=$(dirname "$0")
read -ra lengths <<<"${LENGTHS:-500 1024 2048 4096 8192 16384 32768}"
read -ra long <<<"${LONG-131072 512000}"
read -ra needle_lengths <<<"${NEEDLE_LENGTHS:-500 1024 2048 4096}"
read -ra measures <<<"${MEASURES:-pass_keys perplexity needles}"
mkdir -p "$results"

server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true' EXIT

# Starts a server for the checkpoint $1 and sets url.
serve() {
  local log=$results/serve.$$.log
  "$bam" serve --model "$1" --port 0 --kv-memory 2GiB 2>"$log" &
  server=$!
  url=
  while [[ -z $url ]]; do
    if ! kill -0 "$server" 2>/dev/null; then
      cat "$log" >&2
      exit 1
    fi
    sleep 0.2
    url=$(sed -n 's#.*ready after .*\(http://[^ ]*\).*#\1#p' "$log")
  done
}

# ask OUT LABEL REPEATS DEPTHS LENGTHS… -- FLAGS…: stops after two lengths in a row without a right answer, and then returns 1.
# The caller sets misses to 0, and the count goes on over its calls.
ask() {
  local out=$1 label=$2 repeats=$3 depths=$4 asked=() length hits
  shift 4
  while [[ $1 != -- ]]; do
    asked+=("$1")
    shift
  done
  shift
  for length in "${asked[@]}"; do
    "$bam" passkey --url "$url" --lengths "$length" --depths "$depths" --repeats "$repeats" --out "$out" --label "$label" "$@" ||
      exit 1  # a caller that asks "still alive?" switches set -e off
    hits=$(grep "\"length\":$length," "$out" | grep -vc '"score":0.0' || true)
    misses=$((hits > 0 ? 0 : misses + 1))
    [[ $misses -lt 2 ]] || return 1
  done
}

pass_keys() {
  local out=$results/$1.jsonl misses=0
  # Short prompts are cheap and decide whether the task is known: five keys per depth. Long ones, asked one after the other in
  # the order of depth, share their beginnings.
  ask "$out" "$1" 5 20 "${lengths[@]:0:3}" -- --concurrency 4 && ask "$out" "$1" 1 20 "${lengths[@]:3}" -- || return 0
  [[ ${#long[@]} -eq 0 ]] || ask "$out" "$1" 1 5 "${long[@]}" -- || true
}

perplexity() {
  [[ -s $results/$1.json ]] ||
    "$bam" eval perplexity "$text" --url "$url" --length 4k --sequences 8 --out "$results/$1.json" --label "$1"
}

needles() {
  local task haystack misses
  for task in niah_single_1 niah_single_2 niah_single_3 niah_multikey_1; do
    haystack=(--filler-file "$text")
    [[ $task != niah_single_1 ]] || haystack=()
    misses=0
    # 48 tokens hold a UUID.
    ask "$results/$1.$task.jsonl" "$1" 1 20 "${needle_lengths[@]}" -- --task "$task" --max-tokens 48 --concurrency 4 "${haystack[@]}" || true
  done
}

# The folders to serve: the siblings, and RoPE with its theta multiplied after training.
checkpoints=("$folder"/*/)
if [[ -d $folder/rope-ssmax ]]; then
  for factor in 50 100; do
    scaled=$results/rope-ssmax-theta-x$factor
    mkdir -p "$scaled"
    cp -r "$folder/rope-ssmax/." "$scaled"
    awk -v factor="$factor" '/"rope_theta"/ { printf "  \"rope_theta\": %.1f,\n", 500000 * factor; next } { print }' \
      "$folder/rope-ssmax/config.json" >"$scaled/config.json"
    checkpoints+=("$scaled")
  done
fi

for measure in "${measures[@]}"; do
  for checkpoint in "${checkpoints[@]}"; do
    serve "$checkpoint"
    "$measure" "$(basename "$checkpoint")"
    kill "$server"
    wait "$server" || true
    server=
  done
done

runs=() scores=()
for checkpoint in "$folder"/*/; do
  run=$results/$(basename "$checkpoint")
  [[ ! -s $run.jsonl ]] || runs+=("$run.jsonl")
  [[ ! -s $run.json ]] || scores+=("$run.json")
done
[[ ${#runs[@]} -eq 0 ]] || "$bam" passkey report "${runs[@]}" --svg "$pictures" --report "$results/passkey.html"
[[ ${#scores[@]} -eq 0 ]] ||
  "$bam" eval report "${scores[@]}" --svg "$pictures" --report "$results/perplexity.html" --markdown "$results/perplexity.md"
python3 "$tools/study_tables.py" "$results" ${curves:+"$curves"} >"$results/tables.md"
