#!/bin/sh
# tcpx perf and iperf3 over paths with a round trip, a rate and loss: between two network namespaces, over the
# relay of the tests (tests/net/relay.c). Both move as many bytes over as many new connections, host memory, by
# turns, so TCP's slow start counts for both, and tcpx verifies its bytes. Run it as root from the top of the tree,
# after `make`:
#
#   bench/paths.sh [--rounds N] [--control NAME] [ROW...]
#
# A row is ROUND_TRIP_MS:GBITS:LOSS_PERCENT:CONNECTIONS[:CHUNK], such as 10:1:0:4; 0 connections are as many as tcpx
# takes by default, and with CHUNK, such as 16K, tcpx moves the bytes as transfers of that size. Without rows it
# measures all of docs/performance.md. NAME is the congestion control of both, such as reno. A row in which iperf3 is
# far below the rate without loss shows the machine, not the path.
cd "$(dirname "$0")/.." || exit 1
. tests/tap.sh
. tests/net/netns.sh
. bench/shared.sh

tcpx=$(cd "${BUILD:-build}" && pwd)/tcpx || exit 1
export UCCL_TCPX_GPU=host NCCL_SOCKET_IFNAME=path
rounds=3
control=
port=6400
address=10.92.0.2

while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=${2-} ;;
    --control) control=${2-} ;;
    --*) die "'$1': expected --rounds N, --control NAME or a row" ;;
    *) break ;;
    esac
    [ $# -ge 2 ] || die "$1: expected a value"
    shift 2
done
check_rounds "$rounds"

all_rows()
{
    for loss in 0 0.1; do
        for round_trip in 0.1 1 10; do
            for gbits in 1 5 10 25; do
                echo "$round_trip:$gbits:$loss:0 $round_trip:$gbits:$loss:4"
            done
        done
    done
    echo 10:1:0:1:16K 10:1:0:4:16K 10:1:0:4:64K
}

# --- one measurement -------------------------------------------------------------------------------------------

# iperf3_bits FILE: per second, as iperf3's receiver saw them.
iperf3_bits()
{
    awk '/"sum_received"/ { here = 1 }
         here && /"bits_per_second"/ { gsub(/[^0-9.e+]/, "", $2); print $2; exit }' "$1"
}

# iperf3_run: Gbit/s, in $TAP_WORK/iperf3.
iperf3_run()
{
    netns_spawn b iperf3 -s -1 -p "$port" >/dev/null 2>&1 </dev/null
    iperf3_server=$NETNS_PID
    within 10 iperf3_listens || return 1
    netns_run a timeout 200 iperf3 -c $address -p "$port" -P "$connections" -n "$bytes" -J \
        >"$TAP_WORK/iperf3.json" 2>&1 || return 1
    wait "$iperf3_server"
    iperf3_bits "$TAP_WORK/iperf3.json" | awk '{ printf "%.3f\n", $1 / 1e9 }' >>"$TAP_WORK/iperf3"
}

iperf3_listens()
{
    netns_run b grep -q "$(printf ':%04X 0*:0000 0A' "$port")" /proc/net/tcp /proc/net/tcp6
}

# tcpx_run: Gbit/s, in $TAP_WORK/tcpx, and the number of connections it took.
tcpx_run()
{
    netns_spawn b "$tcpx" perf server --once --host --port "$port" --timeout 200 >"$TAP_WORK/server" 2>&1 </dev/null
    tcpx_server=$NETNS_PID
    netns_run a "$tcpx" perf client $address --host --port "$port" --timeout 200 --size "$bytes" --iters 1 \
        --warm-up 0 --csv "$@" >"$TAP_WORK/client" 2>&1 || return 1
    wait "$tcpx_server" || return 1
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "gigabytes_per_second") column = i }
             NR == 2 { printf "%.3f\n", $column * 8 }' "$TAP_WORK/client" >>"$TAP_WORK/tcpx"
}

# default_connections: how many tcpx takes by itself over this path.
default_connections()
{
    bytes=1M
    tcpx_run || return 1
    port=$((port + 1))
    sed -n 's/.*",[a-z ]*memory[^,]*,[^,]*,[0-9]*,\([0-9]*\),.*/\1/p' "$TAP_WORK/client"
}

# --- rows ------------------------------------------------------------------------------------------------------

# median_of FILE: "MEDIAN (LEAST to MOST)".
median_of()
{
    sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] " (" v[1] " to " v[NR] ")" }'
}

# one_round NUMBER: both, the first of them by turns.
one_round()
{
    if [ $(($1 % 2)) -eq 0 ]; then
        iperf3_run && tcpx_run --sockets "$connections" --chunk-bytes "${chunk:-0}"
    else
        tcpx_run --sockets "$connections" --chunk-bytes "${chunk:-0}" && port=$((port + 1)) && iperf3_run
    fi
    one_status=$?
    port=$((port + 1))
    return $one_status
}

# row_path: the link of the row. Its queue holds what two round trips carry, and at least 1 MiB.
row_path()
{
    row_queue=$(awk -v ms="$round_trip" -v gbits="$gbits" \
        'BEGIN { q = ms * gbits * 250; print int(q < 1024 ? 1024 : q > 65536 ? 65536 : q) "k" }')
    set -- --rate "${gbits}g" --queue "$row_queue" --limit 3600 --offload \
        --delay "$(awk -v ms="$round_trip" 'BEGIN { print ms / 2 }')" \
        --loss "a:$(awk -v percent="$loss" 'BEGIN { print percent / 100 }')"
    netns_relay path a b 10.92.0.1 $address "$@" || return 1
    # As punctual as a wire, where there are fewer CPUs than processes.
    chrt -f -p 10 "$(netns_relay_id path)" 2>/dev/null
    for host in a b; do
        [ -z "$control" ] ||
            netns_run $host sh -c "echo $control >/proc/sys/net/ipv4/tcp_congestion_control" || return 1
    done
}

# row_measure: with $round_trip, $gbits, $loss and $connections.
row_measure()
{
    row_path || return 1
    [ "$connections" -gt 0 ] || connections=$(default_connections)
    bytes=$(awk -v gbits="$gbits" 'BEGIN { b = gbits * 250; print int(b > 1024 ? 1024 : b) "M" }')
    rm -f "$TAP_WORK/iperf3" "$TAP_WORK/tcpx"
    row_round=0
    while [ $row_round -lt "$rounds" ]; do
        one_round $row_round || return 1
        row_round=$((row_round + 1))
    done
    printf '| %s | %s | %s | %s | %s | %s | %s |\n' "$round_trip" "$gbits" "$loss" \
        "$connections${chunk:+, chunks of $chunk}" \
        "$(median_of "$TAP_WORK/iperf3")" "$(median_of "$TAP_WORK/tcpx")" \
        "$(echo "$(median_of "$TAP_WORK/iperf3") $(median_of "$TAP_WORK/tcpx")" | awk '{ printf "%.2f", $5 / $1 }')"
    relay_stop path
}

command -v iperf3 >/dev/null || tap_skip_all "iperf3 is not installed (Debian: iperf3)"
[ -x "$tcpx" ] || die "$tcpx is not there: run make first"
# Words on purpose.
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(all_rows)
netns_start a b
echo '| round trip, ms | Gbit/s | loss, % | connections | iperf3, Gbit/s | tcpx, Gbit/s | ratio |'
echo '| --- | --- | --- | --- | --- | --- | --- |'
for row in "$@"; do
    IFS=: read -r round_trip gbits loss connections chunk <<ROW
$row
ROW
    case $connections in
    '' | *[!0-9]*) die "'$row': expected ROUND_TRIP_MS:GBITS:LOSS_PERCENT:CONNECTIONS[:CHUNK], such as 10:1:0:4" ;;
    esac
    row_measure || die "row $row: $(cat "$TAP_WORK/path.errors" "$TAP_WORK/iperf3.json" "$TAP_WORK/server" "$TAP_WORK/client" 2>&1 | tail -20)"
done
