#!/usr/bin/env bash
# Compares the checkpoints in a folder: pass-key accuracy by length and perplexity by position, each served by `bam serve`.
#
#   tools/train_demo/compare.sh FOLDER TEXT RESULTS PICTURES
#
# FOLDER holds checkpoint folders (checkpoints/siblings), TEXT is scored (WORKDIR/valid.txt of the training). Results are kept
# in RESULTS and a second call continues them; PICTURES gets the SVG files. BAM names the program, LENGTHS and DEPTHS the prompts.
set -euo pipefail

if [[ $# -ne 4 ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
folder=$1 text=$2 results=$3 pictures=$4
bam=${BAM:-build/bam}
lengths=${LENGTHS:-512,1k,2k,4k,8k}
depths=${DEPTHS:-10}
mkdir -p "$results"

server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true' EXIT

# Starts a server for the checkpoint $1 and sets url.
serve() {
  local log=$results/serve.log
  "$bam" serve --model "$1" --port 0 --kv-memory 512MiB 2>"$log" &
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

runs=()
scores=()
for checkpoint in "$folder"/*/; do
  name=$(basename "$checkpoint")
  serve "$checkpoint"
  "$bam" passkey --url "$url" --lengths "$lengths" --depths "$depths" --out "$results/$name.jsonl" --label "$name"
  runs+=("$results/$name.jsonl")
  if [[ ! -s $results/$name.json ]]; then
    "$bam" eval perplexity "$text" --url "$url" --length 4k --sequences 8 --out "$results/$name.json" --label "$name"
  fi
  scores+=("$results/$name.json")
  kill "$server"
  wait "$server" || true
  server=
done
"$bam" passkey report "${runs[@]}" --svg "$pictures" --report "$results/passkey.html"
"$bam" eval report "${scores[@]}" --svg "$pictures" --report "$results/perplexity.html"
