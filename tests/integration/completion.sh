# What bash offers when somebody types tcpx and the tab key, and that it is what --help says: every
# command and option of the one is in the other.
. tests/tap.sh

command -v bash >/dev/null || tap_skip_all "bash is not installed"
tcpx=$BUILD/tcpx
file=scripts/completion/tcpx.bash

# offered WORD...: one word a line; the last word is the one that is being typed.
offered()
{
    bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tcpx
        [ "${#COMPREPLY[@]}" -eq 0 ] || printf "%s\n" "${COMPREPLY[@]}"' "$file" "$@"
}

# check_offer NAME WORDS... -- WORD...: exactly these, in any order.
check_offer()
{
    offer_name=$1
    shift
    : >"$TAP_WORK/wanted"
    while [ "$1" != -- ]; do
        echo "$1" >>"$TAP_WORK/wanted"
        shift
    done
    shift
    offered "$@" | sort >"$TAP_WORK/got"
    sort -o "$TAP_WORK/wanted" "$TAP_WORK/wanted"
    check "$offer_name" diff "$TAP_WORK/wanted" "$TAP_WORK/got"
}

check_output "bash asks it for tcpx" '-F _tcpx tcpx$' bash -c ". $file; complete -p tcpx"

# --- words ---------------------------------------------------------------------------------------

check_offer "a command" devices doctor -- tcpx d
check_offer "one by its beginning" connection -- tcpx conn
check_offer "no such command" -- tcpx fly
check_offer "a command for help" version -- tcpx help v
check_offer "server" server -- tcpx transfer s
check_offer "client" client -- tcpx connection c
check_offer "once" -- tcpx connection server c
check_offer "and not with --loopback" -- tcpx perf --loopback s
check_offer "an option" --json -- tcpx devices --j
check_offer "an option behind a word" --timeout -- tcpx transfer client h --t
check_offer "the ways to unpack" auto d2d host kernel -- tcpx perf --loopback --unpack ''
check_offer "one of them" kernel -- tcpx perf --unpack k
check_offer "nothing for a number" -- tcpx connection client h --count ''
check_offer "a file" README.md -- tcpx transfer server --secret READ
check_offer "another" README.md -- tcpx perf --html READ
check_offer "a list of hosts" README.md -- tcpx matrix --hostfile READ
check_offer "nothing for a command that is not there but help" --help -- tcpx fly ''

# --- the same as --help --------------------------------------------------------------------------

# Those of tcpx, and help itself, which it does not list.
{
    "$tcpx" help | sed -n 's/^  \([a-z]*\) .*/\1/p'
    echo help
} | sort >"$TAP_WORK/commands"
offered tcpx '' | grep -v '^-' | sort >"$TAP_WORK/offered"
check "the commands are those of tcpx help" diff "$TAP_WORK/commands" "$TAP_WORK/offered"

for command in $("$tcpx" help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    "$tcpx" "$command" --help | grep -oE -e '(^|[^a-z-])--[a-z][a-z-]*' | sed 's/^[^-]*//' | sort -u \
        >"$TAP_WORK/helped"
    offered tcpx "$command" -- | grep -vx -e --help | sort >"$TAP_WORK/offered"
    check "the options of tcpx $command" diff "$TAP_WORK/helped" "$TAP_WORK/offered"
done

tap_end
