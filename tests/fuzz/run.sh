# Runs one libFuzzer program for a bounded time, from its checked-in inputs, and says in TAP whether
# it found something. What it found stays in the folder findings beside the program.
# usage: run.sh PROGRAM CORPUS SECONDS
. tests/tap.sh

program=$1
findings=$(dirname "$program")/findings
mkdir -p "$findings" "$TAP_WORK/new"
check "$(basename "$program") finds nothing in $3 s" \
    "$program" -max_total_time="$3" -timeout=25 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="$findings/" "$TAP_WORK/new" "$2"
echo "# $(grep -E 'number_of_executed_units' "$TAP_OUTPUT")"
tap_end
