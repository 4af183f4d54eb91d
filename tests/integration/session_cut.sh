# Sessions over a link that is cut: two hosts (tests/net/netns.sh) move messages both ways, or wait
# for one, when the device of one of them is set down. Both ends of every session report it in
# bounded time, name the peer, and close at once; when the link is back, new sessions work.
. tests/tap.sh
. tests/net/netns.sh

build=${BUILD:-build}
end=$TAP_WORK/session_end
timeout_ms=2000
export UCCL_TCPX_TIMEOUT_MS=$timeout_ms UCCL_TCPX_GPU=host UCCL_TCPX_PLUGIN_MODE=host

netns_start a b

# --- two ends ------------------------------------------------------------------------------------

# start NAME PORT PLUGIN HOW COUNT: what they say goes to $TAP_WORK/NAME.a and .b, their ids to
# $TAP_WORK/NAME.pids.
start()
{
    start_name=$TAP_WORK/$1
    shift
    NCCL_SOCKET_IFNAME=$NETNS_DEVICE netns_spawn b "$end" listen 10.81.0.2 "$@" \
        >"$start_name.b" 2>&1 </dev/null
    start_pids=$NETNS_PID
    NCCL_SOCKET_IFNAME=$NETNS_DEVICE netns_spawn a "$end" connect 10.81.0.2 "$@" \
        >"$start_name.a" 2>&1 </dev/null
    echo "$start_pids $NETNS_PID" >"$start_name.pids"
}

moving()
{
    for moving_name in "$@"; do
        grep -q '^moving' "$TAP_WORK/$moving_name.a" || return 1
        grep -q '^moving' "$TAP_WORK/$moving_name.b" || return 1
    done
}

said()
{
    for said_name in "$@"; do
        echo "$said_name:"
        cat "$TAP_WORK/$said_name.a" "$TAP_WORK/$said_name.b"
    done
}

all_moving()
{
    within 20 moving "$@" || {
        said "$@"
        return 1
    }
}

# finished NAME: both ends have moved and verified everything.
finished()
{
    read -r finished_b finished_a <"$TAP_WORK/$1.pids"
    finished_status=0
    wait "$finished_a" || finished_status=$?
    wait "$finished_b" || finished_status=$?
    said "$1"
    [ "$finished_status" -eq 0 ]
}

run()
{
    start "$@"
    finished "$1"
}

# lost NAME a|b PEER: since the cut; within three times the timeout, with the peer's address, and a
# close that takes a second at most; on a machine that is idle.
lost()
{
    read -r lost_b lost_a <"$TAP_WORK/$1.pids"
    [ "$2" = a ] || lost_a=$lost_b
    netns_lost "$lost_a" "$TAP_WORK/$1.$2" 0 $((3 * timeout_ms + 1000)) \
        "^session_end: TCPX_REMOTE_ERROR: .*$3" || return 1
    lost_close=$(sed -n 's/^closed after \([0-9]*\) ms$/\1/p' "$TAP_WORK/$1.$2")
    printf '# %s at %s: %d ms after the cut, closed after %s ms\n' "$1" "$2" "$netns_spent" \
        "$lost_close" >>"$TAP_WORK/times"
    [ "${lost_close:-99999}" -le "$(limit 1000)" ]
}

link_again()
{
    netns_run "$1" ip link set "$NETNS_DEVICE" up && netns_link_up a b "$NETNS_DEVICE"
}

# --- cut -----------------------------------------------------------------------------------------

check "the program compiles" compile_program session_end "$build/libtcpx.a"
[ -x "$end" ] || tap_end
check "a link" netns_veth a b 10.81.0.1 10.81.0.2 400m
plugin=$(cd "$build" && pwd)/libnccl-net-tcpx.so

port=7000
for cut in a b; do
    names="whole-$cut pieces-$cut idle-$cut plugin-$cut plugin-idle-$cut"
    start "whole-$cut" $((port + 1)) builtin whole 0
    start "pieces-$cut" $((port + 2)) builtin pieces 0
    start "idle-$cut" $((port + 3)) builtin idle 0
    start "plugin-$cut" $((port + 4)) "$plugin" whole 0
    start "plugin-idle-$cut" $((port + 5)) "$plugin" idle 0
    # Words on purpose.
    # shellcheck disable=SC2086
    check "five sessions before the cut at $cut" all_moving $names
    cut_at=$(now_ms)
    check "the link is cut at $cut" netns_run $cut ip link set "$NETNS_DEVICE" down
    for name in $names; do
        check "$name: the end that connected reports it" lost "$name" a 10.81.0.2
        check "$name: the one that listened, too" lost "$name" b 10.81.0.1
    done
    check "the link is there again" link_again $cut
    check "a new session" run "again-$cut" $((port + 6)) builtin whole 5
    check "and one over the plugin" run "again-plugin-$cut" $((port + 7)) "$plugin" whole 5
    port=$((port + 10))
done
cat "$TAP_WORK/times"

netns_end
