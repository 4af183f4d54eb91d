#!/bin/sh
# Reads and writes beside sends, by tcpx perf, on this machine: each row runs two measurements by turns and shows the
# median of their medians, with the least and the most, and the same of the ratio within a round. tcpx verifies every
# byte. Run it from the top of the tree, after `make`:
#
#   bench/onesided.sh [--rounds N] [--memory host|gpu|both] [--path]
#
# Without a GPU an emulated one is measured, which does not show how fast a real one would be. --path adds rows over
# a path with a round trip of 10 ms, between two network namespaces; it needs root. A ratio of rates is better if it
# is larger, a ratio of times if it is smaller.
cd "$(dirname "$0")/.." || exit 1
. tests/tap.sh
. tests/net/netns.sh
. bench/shared.sh

tcpx=$(cd "${BUILD:-build}" && pwd)/tcpx || exit 1
rounds=5
memories=host
path=
port=6900
address=10.93.0.2

while [ $# -gt 0 ]; do
    case $1 in
    --path)
        path=1
        shift
        continue
        ;;
    --rounds) rounds=${2-} ;;
    --memory) memories=${2-} ;;
    *) die "'$1': expected --rounds N, --memory host, gpu or both, or --path" ;;
    esac
    [ $# -ge 2 ] || die "$1: expected a value"
    shift 2
done
check_rounds "$rounds"
case $memories in
host | gpu) ;;
both) memories="host gpu" ;;
*) die "--memory $memories: expected host, gpu or both" ;;
esac

# --- one measurement -------------------------------------------------------------------------------------------

# loopback ARGUMENTS: both ends in the memory of the row.
loopback()
{
    case $memory in
    host) "$tcpx" perf --loopback --host --csv "$@" ;;
    gpu) "$tcpx" perf --loopback --csv "$@" ;;
    esac
}

# over_path ARGUMENTS: both ends in host memory, each in its namespace.
over_path()
{
    port=$((port + 1))
    netns_spawn b "$tcpx" perf server --once --host --port $port --timeout 200 >"$TAP_WORK/server" 2>&1 </dev/null
    path_server=$NETNS_PID
    netns_run a "$tcpx" perf client $address --host --port $port --timeout 200 --csv "$@" && wait "$path_server"
}

# measure FILE ARGUMENTS: adds the median, in us, to the file.
measure()
{
    measure_to=$1
    shift
    # Words on purpose.
    # shellcheck disable=SC2068
    $way $@ >"$TAP_WORK/said" 2>&1 || die "$*: $(cat "$TAP_WORK/said")"
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "median_us") column = i }
             NR == 2 { print $column }' "$TAP_WORK/said" >>"$measure_to"
}

# --- rows ------------------------------------------------------------------------------------------------------

# middle FORMAT: of the numbers that it reads, "MEDIAN (LEAST to MOST)".
middle()
{
    sort -n | awk -v f="$1" '{ v[NR] = $1 }
        END { printf f " (" f " to " f ")", v[int((NR + 1) / 2)], v[1], v[NR] }'
}

# row UNIT WHAT ARGUMENTS BESIDE ARGUMENTS. The unit is us, "us there and back", where what lies beside was measured
# one way, or how many MB an iteration has: then rates are shown, in GB/s.
row()
{
    rm -f "$TAP_WORK/what" "$TAP_WORK/beside"
    row_round=0
    while [ $row_round -lt "$rounds" ]; do
        [ $((row_round % 2)) -eq 0 ] || measure "$TAP_WORK/beside" "$5"
        measure "$TAP_WORK/what" "$3"
        [ $((row_round % 2)) -ne 0 ] || measure "$TAP_WORK/beside" "$5"
        row_round=$((row_round + 1))
    done
    paste "$TAP_WORK/what" "$TAP_WORK/beside" | awk -v unit="$1" '
        unit ~ /^us/ { $2 *= unit == "us" ? 1 : 2; print $1, $2, $1 / $2; next }
        { print unit * 1e3 / $1, unit * 1e3 / $2, $2 / $1 }' >"$TAP_WORK/both"
    case $1 in
    us*) row_format=%.1f row_unit=us ;;
    *) row_format=%.2f row_unit=GB/s ;;
    esac
    printf '| %s | %s | %s | %s | %s | %s |\n' "$2" "$(cut -d' ' -f1 "$TAP_WORK/both" | middle $row_format)" "$4" \
        "$(cut -d' ' -f2 "$TAP_WORK/both" | middle $row_format)" "$row_unit" \
        "$(cut -d' ' -f3 "$TAP_WORK/both" | middle %.2f)"
}

# head_of TITLE: the head of a table.
head_of()
{
    printf '\n%s\n\n| what | | beside | | | ratio |\n| --- | --- | --- | --- | --- | --- |\n' "$1"
}

# rows_of_memory: in $memory.
rows_of_memory()
{
    way=loopback
    few="--size 4K --iters 2000"
    row "us there and back" "read of 4 KiB" "$few --read" "send, there and back" "$few --ping-pong"
    row us "write of 4 KiB with a note, one way" "$few --write --ping-pong" "send, one way" "$few --ping-pong"
    for size in 1:1.048576:200 64:67.108864:20 256:268.435456:5; do
        IFS=: read -r size megabytes iterations <<SIZE
$size
SIZE
        one="--size ${size}M --iters $iterations"
        for access in read write; do
            row "$megabytes" "$access of $size MiB" "$one --$access" "send" "$one"
        done
    done
    for access in read write; do
        one="--$access --size 64M --iters 20"
        row 67.108864 "$access of 64 MiB in 1,024 parts" "$one --pieces 1024" "in one" "$one"
    done
    for access in read write; do
        one="--$access --size 45000000 --iters 20"
        row 45 "1,000 ${access}s of 45 KB at once" "$one --accesses 1000" "one of their sum" "$one"
    done
}

# rows_of_path: 10 ms there and back, 10 Gbit/s. The connections are warm.
rows_of_path()
{
    way=over_path
    export NCCL_SOCKET_IFNAME=path
    netns_start a b
    netns_relay path a b 10.93.0.1 $address --rate 10g --queue 65536k --limit 3600 --offload --delay 5 || die "no path"
    for size in 4K 1M 16M; do
        one="--size $size --iters 10 --warm-up 5"
        for access in read write; do
            row us "$access of ${size%?} ${size#"${size%?}"}iB" "$one --$access" "send, with its start signal" "$one"
        done
    done
    relay_stop path
}

[ -x "$tcpx" ] || die "$tcpx is not there: run make first"
for memory in $memories; do
    case $memory in
    host) head_of "Host memory" ;;
    gpu) head_of "$("$tcpx" devices | grep -m1 '^GPU 0')" ;;
    esac
    rows_of_memory
done
[ -z "$path" ] || {
    head_of "Host memory, 10 ms there and back"
    rows_of_path
}
