# Test results in TAP for shell tests, to be sourced: . tests/tap.sh
# A script checks things in order and ends with tap_end; one that ends without it has no plan, and
# the runner counts that as a failure. $TAP_WORK is a folder of its own, removed on exit.
# The names of its checks begin with $TAP_PREFIX, if that is set.
# A script that cannot run at all on this machine says why and ends with status 77 (tap_skip_all).
# Its checks build on each other: with TCPX_TEST_CASE, which chooses one of a program, it runs none.

if [ -n "${TCPX_TEST_CASE-}" ]; then
    echo 1..0
    exit
fi

TAP_COUNT=0
TAP_FAILED=0
TAP_WORK=$(mktemp -d) || exit 1
TAP_OUTPUT=$TAP_WORK/.output
trap 'rm -rf "$TAP_WORK"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# tap_ok NAME
tap_ok()
{
    TAP_COUNT=$((TAP_COUNT + 1))
    printf 'ok %d - %s%s\n' "$TAP_COUNT" "${TAP_PREFIX-}" "$1"
}

# tap_fail NAME [DETAIL]: a detail of several lines is shown whole.
tap_fail()
{
    TAP_FAILED=$((TAP_FAILED + 1))
    printf 'not '
    tap_ok "$1"
    [ -z "${2-}" ] || printf '%s\n' "$2" | sed 's/^/# /'
}

# tap_skip NAME REASON
tap_skip()
{
    tap_ok "$1 # SKIP $2"
}

# tap_skip_all REASON: nothing of this script can run here.
tap_skip_all()
{
    printf '%s\n' "$1"
    exit 77
}

# tap_run COMMAND...: its status in TAP_STATUS, its output in the file $TAP_OUTPUT.
tap_run()
{
    TAP_STATUS=0
    "$@" >"$TAP_OUTPUT" 2>&1 </dev/null || TAP_STATUS=$?
}

# tap_judge GOOD NAME WANTED COMMAND...: of what was run; GOOD is 0 when all was well.
tap_judge()
{
    tap_good=$1 tap_name=$2 tap_wanted=$3
    shift 3
    if [ "$tap_good" -eq 0 ]; then
        tap_ok "$tap_name"
    else
        tap_fail "$tap_name" "status $TAP_STATUS, expected $tap_wanted${1+, of: $*}
$(cat "$TAP_OUTPUT")"
    fi
}

# Of what was run: it failed by itself, not by a signal or a time limit; a line of its output matches.
tap_failed()
{
    [ "$TAP_STATUS" -gt 0 ] && [ "$TAP_STATUS" -lt 124 ]
}

tap_said()
{
    grep -Eq -e "$1" "$TAP_OUTPUT"
}

# check NAME COMMAND...: the command succeeds.
check()
{
    check_name=$1
    shift
    tap_run "$@"
    tap_judge "$TAP_STATUS" "$check_name" success "$@"
}

# check_fails NAME COMMAND...: the command fails by itself.
check_fails()
{
    check_name=$1
    shift
    tap_run "$@"
    tap_failed
    tap_judge $? "$check_name" "a failure" "$@"
}

# check_output NAME REGEX COMMAND...: the command succeeds and a line of its output matches.
check_output()
{
    check_name=$1 check_regex=$2
    shift 2
    tap_run "$@"
    [ "$TAP_STATUS" -eq 0 ] && tap_said "$check_regex"
    tap_judge $? "$check_name" "success and /$check_regex/" "$@"
}

# check_fails_output NAME REGEX COMMAND...: the command fails by itself and a line matches.
check_fails_output()
{
    check_name=$1 check_regex=$2
    shift 2
    tap_run "$@"
    tap_failed && tap_said "$check_regex"
    tap_judge $? "$check_name" "a failure and /$check_regex/" "$@"
}

# check_status NAME STATUS COMMAND...: the command ends with that status.
check_status()
{
    check_name=$1 check_wanted=$2
    shift 2
    tap_run "$@"
    [ "$TAP_STATUS" -eq "$check_wanted" ]
    tap_judge $? "$check_name" "$check_wanted" "$@"
}

# with_program PROGRAM CHECK NAME ...: one of these checks, where the program that it needs is installed.
with_program()
{
    if command -v "$1" >/dev/null; then
        shift
        "$@"
    else
        tap_skip "$3" "$1 is not installed"
    fi
}

# also NAME REGEX: what was run last has said such a line, too; also_not: none.
also()
{
    tap_said "$2"
    tap_judge $? "$1" "/$2/"
}

also_not()
{
    ! tap_said "$2"
    tap_judge $? "$1" "no /$2/"
}

# quiet COMMAND...: it has nothing to say.
quiet()
{
    tap_complaints=$("$@" 2>&1)
    printf '%s\n' "$tap_complaints"
    [ -z "$tap_complaints" ]
}

# library_objects: those of the library of this run, internal functions and all. Of sources that are
# there: the folder of objects also has those of deleted ones.
library_objects()
{
    find src -name '*.c' | sed "s|.*|${BUILD:-build}/obj/&|; s|c\$|o|"
}

# slowness: how much longer than on an idle machine everything takes, in percent; 100 to 1000. As
# tests/limit.h, which has more to say about it.
slowness()
{
    if [ -r "${TCPX_TEST_METER-}" ]; then
        read -r tap_percent <"$TCPX_TEST_METER"
    else
        tap_percent=$(awk -v cpus="$(nproc)" '{ print int(100 * $4 / cpus) }' /proc/loadavg)
    fi
    awk -v percent="$tap_percent" -v least="${TCPX_TEST_SLOWNESS:-1}" 'BEGIN {
        if (percent < 100 * least) percent = 100 * least
        print int(percent < 100 ? 100 : percent > 1000 ? 1000 : percent) }'
}

# limit NUMBER: of seconds or milliseconds, longer on a machine that is busy. What is compared with a
# time that has passed is computed afterwards.
limit()
{
    echo $(($1 * $(slowness) / 100))
}

# within SECONDS COMMAND...: becomes true, in a time that grows as above.
within()
{
    tap_until=$(($(now_ms) + $(limit "${1}000")))
    shift
    until "$@"; do
        [ "$(now_ms)" -lt "$tap_until" ] || return 1
        sleep 0.02
    done
}

# sometimes COMMAND...: at least once in a few attempts; for a measurement that others on the machine
# can spoil.
sometimes()
{
    for tap_attempt in 1 2 3 4 5; do
        echo "attempt $tap_attempt:"
        "$@" && return 0
    done
    return 1
}

# now_ms: since some time before this script, in steps of ten.
now_ms()
{
    read -r tap_uptime _ </proc/uptime
    echo "${tap_uptime%.*}${tap_uptime#*.}0"
}

# tap_end: the last call of a script.
tap_end()
{
    printf '1..%d\n' "$TAP_COUNT"
    [ "$TAP_FAILED" -eq 0 ]
    exit
}
