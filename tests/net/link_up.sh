# Links that are used when they are up, to be sourced after tests/tap.sh: . tests/net/link_up.sh
# The kernel tells of a carrier some time after both ends of a link have been set up, on a busy
# machine much later; until then a device does not count as running, and its packets are dropped.

# await_link NAMESPACE DEVICE: waits until it is up.
await_link()
{
    within 10 link_is_up "$@" && return 0
    echo "this link does not come up: $*" >&2
    return 1
}

# With a carrier, a queue of its own, and no address that still waits to be allowed.
link_is_up()
{
    link_shown=$(ip -n "$1" -o link show dev "$2" 2>/dev/null)
    case $(ip -n "$1" -o addr show dev "$2" scope global 2>/dev/null) in
    *tentative*) return 1 ;;
    esac
    case $link_shown in
    *NO-CARRIER* | *'qdisc noop '* | *'state DOWN'*) return 1 ;;
    *LOWER_UP*) return 0 ;;
    esac
    return 1
}
