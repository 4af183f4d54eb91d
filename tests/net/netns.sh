# Hosts and links for shell tests, to be sourced after tests/tap.sh: . tests/net/netns.sh
# A host is a network namespace; a link is a veth pair, or a relay (tests/net/relay.c) that loses,
# delays, reorders and can be cut. All of it, and every process in it, is gone when the script ends.
#
#   netns_start NAME...                             hosts; skips the script where that is impossible
#   netns_veth A B ADDR_A ADDR_B [RATE]             a link, its device on both in NETNS_DEVICE
#   netns_relay LINK A B ADDR_A ADDR_B [OPTION...]  a bad one, LINK is its device on both
#   relay_say LINK COMMAND...                       cut, restore, loss 0.05, stats, ...
#   relay_stat LINK a|b NAME                        a number of the relay's, also after its end
#   relay_has_delivered LINK BYTES                  that come from a
#   relay_stop LINK                                 its devices go with it; the relay's status
#   netns_router NAME                               passes on what is not for itself
#   netns_spread NAME OWN OTHER VIA...              reaches OTHER over all of these, as OWN
#   netns_bytes NAME DEVICE rx|tx                   what the device has carried
#   netns_listens NAME PORT                         whether a process listens there for TCP
#   netns_link_up A B DEVICE                        waits until it is, after netns_run A ip link set
#   netns_run NAME COMMAND...                       on that host
#   netns_spawn NAME COMMAND...                     the same in the background, as $NETNS_PID
#   exchange_start, exchange_run, ...               two ends of a comm, tests/net/exchange.c: see there
#   hosts_start, hosts_finish, ...                  two ends of a command of tcpx: see there
#   netns_end                                       instead of tap_end: checks that nothing is left
#
# An address is IPv4 or IPv6 or several with commas, as many on A as on B. Without a prefix length
# it is a point-to-point address of the other's. RATE is in bits per second with k, m or g, per
# direction. Functions that fail say why on stderr. A relay ends with the shell that started it:
# no netns_relay in ( ) or $( ). A script with a trap on EXIT of its own calls netns_cleanup there.

. tests/net/compile.sh
. tests/net/link_up.sh

NETNS_PREFIX=tcpx-$$-
NETNS_NAMES=
NETNS_RELAYS=
NETNS_VETHS=0
NETNS_DEVICE=
NETNS_PID=
EXCHANGE=$TAP_WORK/exchange
EXCHANGE_RUNS=0
trap 'netns_cleanup; rm -rf "$TAP_WORK"' EXIT

# --- hosts ---------------------------------------------------------------------------------------

netns_start()
{
    netns_possible
    netns_sweep
    for netns_name in "$@"; do
        netns_new "$netns_name" || tap_skip_all "cannot set up a network namespace"
    done
    netns_run "$1" sh -c 'ip tuntap add dev probe mode tun && ip link del probe' ||
        tap_skip_all "cannot make a TUN device in a network namespace"
}

netns_possible()
{
    [ "$(id -u)" -eq 0 ] || tap_skip_all "network namespaces need root"
    command -v ip >/dev/null || tap_skip_all "ip is not installed (Debian: iproute2)"
    [ -c /dev/net/tun ] || tap_skip_all "there is no /dev/net/tun"
}

# What a script that was killed with SIGKILL left; its process id is in the name.
netns_sweep()
{
    for netns_path in /run/netns/tcpx-*-*; do
        netns_owner=${netns_path#/run/netns/tcpx-}
        netns_owner=${netns_owner%%-*}
        if [ -e "$netns_path" ] && [ ! -d "/proc/$netns_owner" ]; then
            ip netns del "${netns_path#/run/netns/}"
        fi
    done
}

# Link-local addresses would only add packets that no test sent, so devices get none.
netns_new()
{
    ip netns add "$NETNS_PREFIX$1" || return 1
    NETNS_NAMES="$NETNS_NAMES $NETNS_PREFIX$1"
    netns_run "$1" sh -c 'ip link set lo up || exit 1
        mode=/proc/sys/net/ipv6/conf/default/addr_gen_mode
        [ ! -e $mode ] || echo 1 >$mode'
}

netns_run()
{
    netns_name=$1
    shift
    ip netns exec "$NETNS_PREFIX$netns_name" "$@"
}

# ip becomes the command, so that the id is the command's own.
netns_spawn()
{
    netns_name=$1
    shift
    ip netns exec "$NETNS_PREFIX$netns_name" "$@" &
    NETNS_PID=$!
}

netns_router()
{
    netns_run "$1" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward || exit 1
        forwarding=/proc/sys/net/ipv6/conf/all/forwarding
        [ ! -e $forwarding ] || echo 1 >$forwarding'
}

# --- links ---------------------------------------------------------------------------------------

# netns_addresses NAME DEVICE OWN,... OTHERS,...
netns_addresses()
{
    netns_own=$3, netns_other=$4,
    while [ -n "$netns_own" ]; do
        netns_words=${netns_own%%,*}
        case $netns_words in
        */*) ;;
        *) netns_words="$netns_words peer ${netns_other%%,*}" ;;
        esac
        # Nobody else can have the address; waiting to find out would only cost time.
        case $netns_words in
        *:*) netns_words="$netns_words nodad" ;;
        esac
        # Words on purpose.
        # shellcheck disable=SC2086
        netns_run "$1" ip addr add $netns_words dev "$2" || return 1
        netns_own=${netns_own#*,}
        netns_other=${netns_other#*,}
    done
}

# netns_limit NAME DEVICE RATE: the bucket holds 4 ms of the rate, and at least one large segment.
netns_limit()
{
    netns_rate=$(echo "${3%bit}" | tr kmg KMG | numfmt --from=si) || return 1
    netns_run "$1" tc qdisc add dev "$2" root tbf rate "${netns_rate}bit" \
        burst $((netns_rate / 2000 + 65536)) latency 50ms
}

netns_veth()
{
    NETNS_DEVICE=veth$NETNS_VETHS
    NETNS_VETHS=$((NETNS_VETHS + 1))
    ip link add "$NETNS_DEVICE" netns "$NETNS_PREFIX$1" type veth \
        peer name "$NETNS_DEVICE" netns "$NETNS_PREFIX$2" || return 1
    for netns_side in "$1" "$2"; do
        netns_run "$netns_side" ip link set "$NETNS_DEVICE" up || return 1
        [ -z "${5-}" ] || netns_limit "$netns_side" "$NETNS_DEVICE" "$5" || return 1
    done
    netns_join "$1" "$2" "$NETNS_DEVICE" "$3" "$4"
}

# netns_join A B DEVICE ADDR_A ADDR_B: a link that is there.
netns_join()
{
    netns_addresses "$1" "$3" "$4" "$5" && netns_addresses "$2" "$3" "$5" "$4" &&
        netns_link_up "$1" "$2" "$3"
}

# netns_link_up A B DEVICE: waits until it is, at both ends.
netns_link_up()
{
    await_link "$NETNS_PREFIX$1" "$3" && await_link "$NETNS_PREFIX$2" "$3"
}

netns_relay()
{
    netns_link=$1 netns_a=$2 netns_b=$3 netns_address_a=$4 netns_address_b=$5
    shift 5
    compile_program relay || return 1
    rm -f "$TAP_WORK/$netns_link.control" "$TAP_WORK/$netns_link.reply"
    mkfifo "$TAP_WORK/$netns_link.control" "$TAP_WORK/$netns_link.reply" || return 1
    "$TAP_WORK/relay" --control "$TAP_WORK/$netns_link" "$@" \
        "$NETNS_PREFIX$netns_a:$netns_link" "$NETNS_PREFIX$netns_b:$netns_link" \
        >"$TAP_WORK/$netns_link.json" 2>"$TAP_WORK/$netns_link.errors" </dev/null &
    netns_relay_pid=$!
    NETNS_RELAYS="$NETNS_RELAYS $netns_link=$netns_relay_pid"
    if ! timeout "$(limit 10)" head -n 1 "$TAP_WORK/$netns_link.reply" >/dev/null; then
        echo "the relay $netns_link did not start: $(cat "$TAP_WORK/$netns_link.errors")" >&2
        return 1
    fi
    netns_join "$netns_a" "$netns_b" "$netns_link" "$netns_address_a" "$netns_address_b"
}

# With the reply's end open before it is asked for, since a relay may end at once.
relay_say()
{
    netns_link=$1
    shift
    netns_reply=$(timeout 60 sh -c \
        'exec 3<>"$1.reply" && echo "$2" >"$1.control" && read -r reply <&3 && echo "$reply"' \
        sh "$TAP_WORK/$netns_link" "$*") || return 1
    echo "$netns_reply"
    [ "${netns_reply#error: }" = "$netns_reply" ]
}

relay_stat()
{
    if [ -s "$TAP_WORK/$1.json" ]; then
        cat "$TAP_WORK/$1.json"
    else
        relay_say "$1" stats
    fi | sed -n "s/.*\"$2\": {[^}]*\"$3\": \([0-9]*\).*/\1/p"
}

relay_has_delivered()
{
    [ "$(relay_stat "$1" a delivered_bytes)" -ge "$2" ]
}

relay_stop()
{
    netns_relay_pid=$(netns_relay_id "$1")
    [ -n "$netns_relay_pid" ] || return 1
    NETNS_RELAYS=$(echo "$NETNS_RELAYS " | sed "s/ $1=[0-9]* / /")
    relay_say "$1" quit >/dev/null || kill "$netns_relay_pid" 2>/dev/null
    wait "$netns_relay_pid"
}

# netns_relay_id LINK: the process of its relay.
netns_relay_id()
{
    for netns_each in $NETNS_RELAYS; do
        if [ "${netns_each%=*}" = "$1" ]; then
            echo "${netns_each#*=}"
        fi
    done
}

# --- several links at once -----------------------------------------------------------------------

# A connection stays on one link, which its ports decide; its replies take the same one if the other
# host names its links in the same order. Called again, it replaces the links.
netns_spread()
{
    netns_host=$1 netns_own=$2 netns_other=$3
    shift 3
    netns_hops=
    for netns_each in "$@"; do
        netns_hops="$netns_hops nexthop via $netns_each"
    done
    netns_run "$netns_host" sh -c 'echo 1 >/proc/sys/net/ipv4/fib_multipath_hash_policy' || return 1
    netns_run "$netns_host" ip addr replace "$netns_own/32" dev lo || return 1
    # Words on purpose.
    # shellcheck disable=SC2086
    netns_run "$netns_host" ip route replace "$netns_other" src "$netns_own" $netns_hops
}

netns_bytes()
{
    netns_run "$1" cat "/sys/class/net/$2/statistics/$3_bytes"
}

# State 0A of the kernel's table is that of a listening socket.
netns_listens()
{
    netns_run "$1" sh -c 'cat /proc/net/tcp /proc/net/tcp6 2>/dev/null' |
        grep -Eq "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$2") [0-9A-F]+:0000 0A "
}

# --- two ends of a comm --------------------------------------------------------------------------

# exchange_start FROM TO ADDRESS COUNT [OPTION...]: in the background, as $SENDER and $RECEIVER;
# what they say goes to $SAID.sender and $SAID.receiver. Every run has other messages, unless the
# options have a seed.
exchange_start()
{
    netns_from=$1 netns_to=$2 netns_address=$3 netns_count=$4
    shift 4
    EXCHANGE_RUNS=$((EXCHANGE_RUNS + 1))
    SAID=$TAP_WORK/run$EXCHANGE_RUNS
    set -- "$netns_count" --seed $EXCHANGE_RUNS "$@"
    netns_spawn "$netns_to" "$EXCHANGE" recv "$netns_address" "$SAID.handle" "$@" \
        >"$SAID.receiver" 2>&1 </dev/null
    RECEIVER=$NETNS_PID
    netns_spawn "$netns_from" "$EXCHANGE" send "$SAID.handle" "$@" >"$SAID.sender" 2>&1 </dev/null
    SENDER=$NETNS_PID
}

# exchange_finish: both ends of the last start; when one has failed, nobody waits for the other.
exchange_finish()
{
    netns_sent=0 netns_received=0
    wait "$SENDER" || netns_sent=$?
    [ "$netns_sent" -eq 0 ] || kill "$RECEIVER" 2>/dev/null
    wait "$RECEIVER" || netns_received=$?
    cat "$SAID.sender" "$SAID.receiver"
    [ "$netns_sent" -eq 0 ] && [ "$netns_received" -eq 0 ]
}

exchange_run()
{
    exchange_start "$@"
    exchange_finish
}

# exchange_drop: both ends of the last start.
exchange_drop()
{
    kill "$SENDER" "$RECEIVER" 2>/dev/null
    wait "$SENDER" "$RECEIVER" 2>/dev/null
}

# netns_lost PID FILE LEAST MOST REGEX: it ended by itself with status 1, so many milliseconds after the link
# was cut at $cut_at, and a line of the file says why. They are in $netns_spent.
netns_lost()
{
    netns_status=0
    wait "$1" || netns_status=$?
    netns_spent=$(($(now_ms) - cut_at))
    echo "status $netns_status, $netns_spent ms after the cut:"
    cat "$2"
    [ "$netns_status" -eq 1 ] && [ "$netns_spent" -ge "$3" ] && [ "$netns_spent" -le "$(limit "$4")" ] &&
        grep -q "$5" "$2"
}

# exchange_lost PID FILE PEER: for a timeout of 3000 ms. A socket can have been silent for half of the
# timeout before the cut, so that this can take less than all of it.
exchange_lost()
{
    netns_lost "$1" "$2" 1000 20000 "^exchange: .*$3.* s after the last progress"
}

# --- two ends of a command -----------------------------------------------------------------------

# hosts_start COMMAND SERVER_DEVICE CLIENT_DEVICE ADDRESS ARGUMENT...: of $tcpx, the server on b, the
# client on a with these arguments, in the background as $SERVER and $CLIENT. They meet at $port, which
# goes up by one, and each step may take $SECONDS_EACH. What they say goes to $TAP_WORK/server and client.
hosts_start()
{
    hosts_command=$1 hosts_server=$2 hosts_client=$3 hosts_address=$4
    shift 4
    set -- --port "$port" --timeout "$(limit "$SECONDS_EACH")" "$@"
    UCCL_TCPX_DEBUG=${SERVER_DEBUG:-0} NCCL_SOCKET_IFNAME=$hosts_server netns_spawn b "$tcpx" "$hosts_command" \
        server --once "$1" "$2" "$3" "$4" >"$TAP_WORK/server" 2>&1 </dev/null
    SERVER=$NETNS_PID
    NCCL_SOCKET_IFNAME=$hosts_client netns_spawn a "$tcpx" "$hosts_command" client "$hosts_address" "$@" \
        >"$TAP_WORK/client" 2>&1 </dev/null
    CLIENT=$NETNS_PID
    port=$((port + 1))
}

# hosts_finish: of both; 0 if both succeeded.
hosts_finish()
{
    server_status=0 client_status=0
    wait "$CLIENT" || client_status=$?
    wait "$SERVER" || server_status=$?
    echo "server: status $server_status"
    cat "$TAP_WORK/server"
    echo "client: status $client_status"
    cat "$TAP_WORK/client"
    [ $server_status -eq 0 ] && [ $client_status -eq 0 ]
}

hosts_run()
{
    hosts_start "$@"
    hosts_finish
}

# hosts_both_failed SECONDS SINCE: by themselves, in time, and each in words.
hosts_both_failed()
{
    hosts_finish
    hosts_spent=$(($(now_ms) - $2))
    echo "$hosts_spent ms"
    [ $server_status -eq 1 ] && [ $client_status -eq 1 ] && [ $hosts_spent -le "$(limit "${1}000")" ] &&
        grep -q '^tcpx: ' "$TAP_WORK/server" && grep -q '^tcpx: ' "$TAP_WORK/client"
}

# --- the end -------------------------------------------------------------------------------------

# The relays that still run, and what runs on the hosts. A relay that ended long ago can have left
# its process id to someone else, so the program is looked at, too.
netns_processes()
{
    for netns_each in $NETNS_RELAYS; do
        if [ "$(readlink "/proc/${netns_each#*=}/exe")" = "$TAP_WORK/relay" ]; then
            echo "${netns_each#*=}"
        fi
    done
    for netns_each in $NETNS_NAMES; do
        ip netns pids "$netns_each"
    done
}

netns_cleanup()
{
    trap '' HUP INT TERM
    netns_tries=40
    netns_signal=TERM
    while [ "$netns_tries" -gt 0 ]; do
        netns_pids=$(netns_processes 2>/dev/null)
        [ -n "$netns_pids" ] || break
        netns_tries=$((netns_tries - 1))
        [ "$netns_tries" -gt 20 ] || netns_signal=KILL
        for netns_each in $netns_pids; do
            kill "-$netns_signal" "$netns_each" 2>/dev/null
        done
        sleep 0.05
    done
    for netns_each in $NETNS_NAMES; do
        ip netns del "$netns_each"
    done
    NETNS_NAMES=
    NETNS_RELAYS=
}

netns_end()
{
    netns_cleanup
    check_fails "no namespace is left" sh -c "ls /run/netns | grep '^$NETNS_PREFIX'"
    check_fails "no process is left" sh -c "ls -l /proc/[0-9]*/exe 2>&1 | grep '$TAP_WORK/'"
    tap_end
}
