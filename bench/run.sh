#!/usr/bin/env bash
# Benchmarks of this machine: kernels, prefill, decode, streams, long prompts. Results go to bench/results/.
#   bench/run.sh [--quick]
set -euo pipefail
cd "$(dirname "$0")/.."
quick=0
[[ "${1:-}" == "--quick" ]] && quick=1
results=bench/results
mkdir -p "$results"

shape120="$results/random-120m"
if [[ ! -f $shape120/model.safetensors ]]; then
  echo "==> a random checkpoint of the 120M shape"
  /usr/bin/python3 tools/make_random_checkpoint.py --size 120m --dtype bf16 --overwrite "$shape120"
fi

echo "==> kernels of the 120M shape beside the machine's limits"
build/bench_kernels --out "$results/kernels.json"

for dtype in f32 bf16 int8 int4; do
  echo "==> 120M shape, $dtype weights: prefill, decode, streams"
  build/bench_model --model "$shape120" --dtype "$dtype" --prefill 512,4096 --decode 0,4096 --streams 1,16,64 \
    --out "$results/model-120m-$dtype.json"
done

for dtype in bf16 int8; do
  echo "==> 120M shape, $dtype weights: with and without drafts"
  build/bench_drafts --model "$shape120" --dtype "$dtype" --streams 1,4,16 | tee "$results/drafts-120m-$dtype.txt"
done

echo "==> BAM + SSMax against NoPE, dense attention, same kernel"
nope="$results/random-nope"
[[ -f $nope/model.safetensors ]] || /usr/bin/python3 tools/make_random_checkpoint.py --size 120m --dtype bf16 \
  --position-encoding nope --no-ssmax --overwrite "$nope"
for model in "$shape120" "$nope"; do
  build/bench_model --model "$model" --dtype bf16 --attention dense --prefill 4096 --decode 0 --streams 1 \
    --out "$results/dense-$(basename "$model").json"
done

echo "==> demo model: long prompts, certified and dense, and through a server"
if [[ $quick == 1 ]]; then
  bench/long_prompts.py --runs 1 --lengths 8192,32768 --dense 8192 --serve 32768 --out "$results/long-prompts.json"
else
  bench/long_prompts.py --out "$results/long-prompts.json"
fi
echo "==> short streams beside a prompt of 100,000 tokens"
build/bench_engine_gaps checkpoints/demo 100000 50 8 | tee "$results/engine-gaps.txt"
for kv in f32 int8 int4; do
  echo "==> demo model: KV $kv"
  build/bench_model --model checkpoints/demo --kv-dtype "$kv" --prefill 32768 --decode 32768 --streams 1 \
    --out "$results/demo-kv-$kv.json"
done
