#!/usr/bin/env bash
# fuzz_report.sh: writes the table of docs/fuzzing.md: hours and inputs so far (fuzz.sh keeps count in the cache), and the
# lines and branches that each fuzzer's corpus reaches, measured by llvm-cov in a build without sanitizers.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"
cd "$REPO_ROOT"

dir=build-fuzz-coverage
log=$dir/report.log
hours=$(cache_dir)/fuzz/hours.tsv
mkdir -p "$dir"
touch "$hours"
shopt -s nullglob
targets=()
for source in tests/fuzz/*_fuzz.cpp; do targets+=("$(basename "$source" .cpp)"); done
run_step "$log" "configuring $dir" cmake --preset fuzz -B "$dir" -DBAM_SANITIZE= \
  -DCMAKE_CXX_FLAGS='-fprofile-instr-generate -fcoverage-mapping'
run_step "$log" "building $dir" cmake --build "$dir" -j "$(compile_jobs)" --target "${targets[@]}"

# The sources that a fuzzer is there for, as a pattern of paths.
subject_of() {
  case $1 in
    chat_template_fuzz) echo 'server/jinja/' ;;
    config_fuzz) echo 'models/model_config' ;;
    http_framing_fuzz) echo 'server/http/request_framing' ;;
    json_schema_fuzz | regex_fuzz) echo 'server/grammar/' ;;
    request_fuzz) echo '(server/api/(openai_parse|openai_messages|json_body)|base/json)' ;;
    safetensors_fuzz) echo 'models/safetensors' ;;
    grammar_fuzz) echo 'server/grammar/(cfg|gbnf_parser|lark_parser|grammar_scanner|recursion)' ;;
    kv_object_fuzz) echo 'server/store/kv_object' ;;
    normalization_map_fuzz) echo 'models/normalization_map' ;;
    snapshot_fuzz) echo 'engine/kv_file' ;;
    sse_fuzz) echo '(server/api/(openai_reply|choice_decoder|stop_strings)|app/client/sse_parser)' ;;
    step_wire_fuzz) echo 'engine/(step_wire|stage_tables)' ;;
    tokenizer_model_fuzz) echo 'models/(tokenizer|sentencepiece_model|bpe_splitter)\.' ;;
    tokenizer_config_fuzz) echo 'models/(tokenizer_config|sentencepiece_model|bpe_splitter)' ;;
    *) echo 'models/|server/' ;;
  esac
}

row_of() {
  local target=$1 pattern inputs seconds corpus numbers
  pattern=$(subject_of "$target")
  corpus=$(cache_dir)/fuzz/$target
  mkdir -p "$corpus"
  LLVM_PROFILE_FILE=$dir/$target.profraw "$dir/$target" -runs=0 "$corpus" "tests/fuzz/corpus/$target" >>"$log" 2>&1
  llvm-profdata merge -sparse "$dir/$target.profraw" -o "$dir/$target.profdata"
  numbers=$(llvm-cov export -summary-only -instr-profile "$dir/$target.profdata" "$dir/$target" 2>>"$log" |
    python3 -c '
import json, re, sys
pattern, root = sys.argv[1], sys.argv[2] + "/"
lines = branches = covered_lines = covered_branches = 0
for file in json.load(sys.stdin)["data"][0]["files"]:
    name = file["filename"].split(root)[-1]
    if not re.match(pattern, name) or not name.endswith(".cpp"):
        continue
    summary = file["summary"]
    lines += summary["lines"]["count"]
    covered_lines += summary["lines"]["covered"]
    branches += summary["branches"]["count"]
    covered_branches += summary["branches"]["covered"]
print(f"{100 * covered_lines / max(1, lines):.0f} % of {lines} | {100 * covered_branches / max(1, branches):.0f} % of {branches}")
' "$pattern" "$REPO_ROOT")
  read -r seconds inputs < <(awk -v target="$target" '$1 == target { s += $2; n += $3 } END { printf "%d %d\n", s, n }' "$hours")
  awk -v target="$target" -v subject="$pattern" -v seconds="$seconds" -v inputs="$inputs" -v numbers="$numbers" 'BEGIN {
    gsub(/\|/, "\\|", subject)
    printf "| `%s` | `%s` | %.2f | %.2f million | %s |\n", target, subject, seconds / 3600, inputs / 1e6, numbers }'
}

rows=''
for target in "${targets[@]}"; do rows+=$(row_of "$target")$'\n'; done
total=$(awk '{ s += $2 } END { printf "%.1f", s / 3600 }' "$hours")
export rows total
python3 - <<'PY'
import os
import pathlib
import re

page = pathlib.Path("docs/fuzzing.md")
table = ("| fuzzer | sources | CPU hours | inputs | lines reached | branches reached |\n|---|---|---|---|---|---|\n" + os.environ["rows"]
         + f"\n{os.environ['total']} CPU hours in all.\n")
text = page.read_text(encoding="utf-8")
text, found = re.subn(r"(<!-- table: scripts/fuzz_report.sh -->\n).*?(<!-- end -->)", lambda m: m[1] + table + m[2], text, flags=re.S)
assert found == 1, "docs/fuzzing.md has no place for the table"
page.write_text(text, encoding="utf-8")
PY
say "docs/fuzzing.md: $total CPU hours in all"
