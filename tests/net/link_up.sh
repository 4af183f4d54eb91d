# Links that are used when they are up, to be sourced after tests/tap.sh: . tests/net/link_up.sh
# The kernel tells of a carrier some time after both ends of a link have been set up, on a busy
# machine much later; until then a device does not count as running, and its packets are dropped.

# await_link IP_OPTION... DEVICE: waits until it is up, e.g. await_link -n NAMESPACE eth0
await_link()
{
    within 10 link_is_up "$@" && return 0
    echo "this link does not come up: $*" >&2
    return 1
}

# With a carrier, a queue of its own, and no address that still waits to be allowed.
link_is_up()
{
    link_options=
    while [ $# -gt 1 ]; do
        link_options="$link_options $1"
        shift
    done
    # Words on purpose.
    # shellcheck disable=SC2086
    link_shown=$(ip $link_options -o link show dev "$1" 2>/dev/null)
    # shellcheck disable=SC2086
    link_addresses=$(ip $link_options -o addr show dev "$1" scope global 2>/dev/null)
    case $link_addresses in
    *tentative*) return 1 ;;
    esac
    case $link_shown in
    *NO-CARRIER* | *'qdisc noop '* | *'state DOWN'*) return 1 ;;
    *LOWER_UP*) return 0 ;;
    esac
    return 1
}
