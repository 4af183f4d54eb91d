# tcpx matrix on this machine: what it measures and prints, a rank that is made slow, ranks that die, ranks
# that a launcher starts, and stand-ins for ssh that reach a host, reach none, or have another tcpx.
. tests/tap.sh

tcpx=$BUILD/tcpx
slow_tcpx=$BUILD/tests/support/tcpx
few='--size 256K --iters 2 --seconds 0.2 --no-progress'
export UCCL_TCPX_GPU=host
unset TCPX_TEST_THROTTLE RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR

# matrix ARGUMENT...: with small reads.
matrix()
{
    # shellcheck disable=SC2086
    "$tcpx" matrix $few --timeout "$(limit 20)" "$@"
}

# --- all is well ---------------------------------------------------------------------------------

check_output "four processes" '^tcpx [0-9.]+: 4 ranks; GB/s at which the rank of a row reads ' \
    matrix --local 4 --json "$TAP_WORK/json" --html "$TAP_WORK/html"
also "each alone" '^one pair at a time: median [0-9.]+ GB/s'
also "all at once" '^all pairs at once: median [0-9.]+, together [0-9.]+ GB/s'
also "each row has all columns but its own" '^ +3 +[0-9.]+ +[0-9.]+ +[0-9.]+ *$'
also "what there is of it" '^rank 3 +[^ ]+, GPU 0, emulated GPU 0$'
also_not "nothing failed" '^FAILED'
also "there is a verdict" '^(balanced|slow): alone: '
with_program python3 check "the JSON has all pairs" python3 -c '
import json, sys
found = json.load(open(sys.argv[1]))
assert len(found["ranks"]) == 4 and found["bytes"] == 262144 and found["missing"] == 0, found
assert all(rank["failure"] is None for rank in found["ranks"]) and found["failures"] == []
for phase in "alone", "all_at_once":
    rates = found[phase]
    assert all((rates[i][k] is None) == (i == k) for i in range(4) for k in range(4)), rates
    assert all(rate > 0 for row in rates for rate in row if rate is not None), rates
    margins = found["margins"][phase]
    assert 15 <= margins["rank_percent"] <= 67 and 15 <= margins["link_percent"] <= 50, margins
' "$TAP_WORK/json"
check "the page has the same, and needs nothing else" sh -c "
    grep -q '\"all_at_once\"' '$TAP_WORK/html' && ! grep -Eq '(src|href)=|https?://|@RESULT@' '$TAP_WORK/html'"
with_program node check "the page draws it" node tests/support/matrix_page.js "$TAP_WORK/html" '' 'One pair at a time' \
    'All pairs at once' '>0 [^<]*</th>' 'rank 3 [^"]* reads from rank 2 [^"]*: [0-9.]* GB/s'

# --- one that is slow ----------------------------------------------------------------------------

# A hundredth of what it could be, and no other rank: at a twentieth already all noise is passed.
# slow_is_named STAGE RANK WAY
slow_is_named()
{
    # shellcheck disable=SC2086
    TCPX_TEST_THROTTLE=$1:4M@$2 "$slow_tcpx" matrix $few --local 4 --html "$TAP_WORK/html" >"$TAP_WORK/slow" 2>&1
    cat "$TAP_WORK/slow"
    grep -Eq "^slow: alone: rank $2 \([^)]*\) $3 slowly" "$TAP_WORK/slow" &&
        [ "$(grep -c '^slow: alone:' "$TAP_WORK/slow")" -eq 1 ]
}
check "a rank that sends slowly is named" sometimes slow_is_named send 2 sends
check "a rank that receives slowly is named" sometimes slow_is_named recv 1 receives

with_program node check "so does its page" node tests/support/matrix_page.js "$TAP_WORK/html" '' \
    '<h1 class="bad">Slow: rank 1 ' '<th class="slow">▲ 1 '
with_program node check "a name of a host is a text" node tests/support/matrix_page.js "$TAP_WORK/html" '<img src=x>' \
    'rank 1 .&lt;img src=x&gt;'

# --- ranks that fail -----------------------------------------------------------------------------

# What stands for ssh: it gets a host and a command, and this machine is every host.
stand_in()
{
    printf '%s\n' '#!/bin/sh' "$2" >"$TAP_WORK/$1"
    chmod +x "$TAP_WORK/$1"
}

# hosts STAND_IN HOSTS ARGUMENT...
hosts()
{
    hosts_ssh=$TAP_WORK/$1 hosts_list=$2
    shift 2
    NCCL_SOCKET_IFNAME=lo matrix --hosts "$hosts_list" --ssh "$hosts_ssh" --meet 127.0.0.1 --port 6300 "$@"
}

# shellcheck disable=SC2016
stand_in here 'eval "exec $2"'
check_output "hosts by a stand-in for ssh" '^rank 2 +c, GPU 0' hosts here a,b,c
also_not "nothing failed on them" '^FAILED'
# A host that cannot be reached is named, in the words of ssh, and the others are measured.
# shellcheck disable=SC2016
stand_in one_away 'case $1 in b) echo "ssh: connect to host b port 22: No route to host" >&2; exit 255 ;; esac
    eval "exec $2"'
check_status "a host that cannot be reached" 1 hosts one_away a,b,c
also "it is named" '^FAILED: rank 1 \(b\): ssh: connect to host b port 22: No route to host$'
also "the others are measured" '^ +2 +[0-9.]+ +- *$'
stand_in none_there 'echo "ssh: Could not resolve hostname $1" >&2; exit 255'
check_fails_output "no host at all" '0 of 2 ranks took part.*rank 0 \(a\): ssh: Could not resolve hostname a' \
    hosts none_there a,b
printf '%s\n' '# two of them' 'a slots=1' '' '  user@b # twice' 'user@b' >"$TAP_WORK/list"
check_fails_output "hosts from a file" '0 of 3 ranks took part' matrix --hostfile "$TAP_WORK/list" \
    --ssh "$TAP_WORK/none_there" --port 6300
check_fails_output "no ssh" 'cannot run .*/no-ssh: No such file' hosts no-ssh a,b
# shellcheck disable=SC2016
stand_in elsewhere 'case $1 in b) eval "exec ${2%%/tcpx*}/no-tcpx'\''" ;; esac; eval "exec $2"'
check_fails_output "no tcpx there" '^FAILED: rank 1 \(b\): .*(no-tcpx|not found|No such file)' hosts elsewhere a,b,c
version=$("$tcpx" version | sed 's/^tcpx //')
LC_ALL=C sed "s/$(echo "$version" | sed 's/\./[.]/g')/${version%?}x/g" "$tcpx" >"$TAP_WORK/other"
chmod +x "$TAP_WORK/other"
cat >"$TAP_WORK/newer" <<END
#!/bin/sh
case \$1 in b) set -- b "\$(echo "\$2" | sed "s|'[^']*/tcpx' 'matrix'|'$TAP_WORK/other' 'matrix'|")" ;; esac
eval "exec \$2"
END
chmod +x "$TAP_WORK/newer"
check_fails_output "another version there" \
    "^FAILED: rank 1 \\(b\\): tcpx ${version%?}x runs there, and $version here: install the same on all hosts" hosts newer a,b,c
# A rank that ends in the middle, by itself: its process is killed when it has been measured for a while.
# shellcheck disable=SC2016
stand_in dying 'case $1 in b) (sleep 1.5; kill -KILL $$) & ;; esac; eval "exec $2"'
check_fails_output "a rank that is killed" '^FAILED: rank 1 \(b\): ' hosts dying a,b,c --seconds 2
also "the others are measured to the end" '^ +2 +[0-9.]+ +(-|[0-9.]+) *$'
# A rank that stops does not answer, and is given up.
# shellcheck disable=SC2016
stand_in stopping 'case $1 in b) (sleep 1.5; kill -STOP $$) & ;; esac; eval "exec $2"'
check_fails_output "a rank that stops" '^FAILED: rank 1 \(b\): ' \
    env NCCL_SOCKET_IFNAME=lo UCCL_TCPX_TIMEOUT_MS=1000 "$tcpx" matrix --size 64K --iters 2 --seconds 2 \
    --hosts a,b,c --ssh "$TAP_WORK/stopping" --meet 127.0.0.1 --port 6300 --timeout 2
also "the others go on" '^ +2 +[0-9.]+ +(-|[0-9.]+) *$'

# --- a launcher ----------------------------------------------------------------------------------

# launched RANKS: each with its variables; rank 0 prints.
launched()
{
    launched_pids=
    for launched_rank in $(seq $(($1 - 1))); do
        RANK=$launched_rank WORLD_SIZE=$1 LOCAL_RANK=$launched_rank MASTER_ADDR=127.0.0.1 matrix --port 6301 --host &
        launched_pids="$launched_pids $!"
    done
    RANK=0 WORLD_SIZE=$1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 matrix --port 6301 --host || return 1
    for launched_pid in $launched_pids; do
        wait "$launched_pid" || return 1
    done
}
check_output "three ranks of torchrun" '^tcpx [0-9.]+: 3 ranks' launched 3
also_not "none of them failed" '^FAILED'
also "of host memory" '^rank 2 +[^ ]+, host memory$'
check_fails_output "a rank that does not come" 'rank 1 \(unknown host\): it did not join within 1 s: is port 6301 ' \
    env RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "$tcpx" matrix --port 6301 --timeout 1
check_fails_output "mpirun without a place to meet" '--meet HOST or MASTER_ADDR' \
    env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "$tcpx" matrix
check_fails_output "a coordinator that does not come" 'no peer at 127\.0\.0\.1 port 6301' \
    env SLURM_PROCID=1 SLURM_NTASKS=2 "$tcpx" matrix --meet 127.0.0.1 --port 6301 --timeout 1

# --- wrong arguments -----------------------------------------------------------------------------

check_status "nothing that says who" 2 "$tcpx" matrix
for arguments in '--local 1' '--local 129' '--local 2 --hosts a,b' '--local 2 --size 0' '--local 2 --iters 0' \
    '--local x' '--local 2 --seconds 0' '--join nowhere' 'word'; do
    # shellcheck disable=SC2086
    check_status "matrix $arguments is refused" 2 "$tcpx" matrix $arguments
done
check_fails_output "one host is none" '2 hosts or more' "$tcpx" matrix --hosts a
check_fails_output "an option is no host" "'-oProxyCommand=x' is no name of a host" \
    "$tcpx" matrix --hosts a,-oProxyCommand=x
check_fails_output "a list that is not there" 'cannot read /nonexistent' "$tcpx" matrix --hostfile /nonexistent
check_fails_output "a page that cannot be written, before anything is measured" 'cannot write /nonexistent/page' \
    matrix --local 2 --json "$TAP_WORK/none" --html /nonexistent/page
check "and no JSON is left then" sh -c "! [ -e '$TAP_WORK/none' ]"
echo "of an earlier run" >"$TAP_WORK/earlier"
check_fails "an earlier result" matrix --local 2 --json "$TAP_WORK/earlier" --html /nonexistent/page
check "is kept until there is a new one" grep -q 'of an earlier run' "$TAP_WORK/earlier"
check_fails_output "a full disk" 'cannot write /dev/full' matrix --local 2 --json /dev/full
# More than a pipe holds: with software devmem each part of a message is a line.
check_output "ranks that say much" '^(balanced|slow): all at once: ' env UCCL_TCPX_SOFT_DEVMEM=17 UCCL_TCPX_DEBUG=1 \
    "$slow_tcpx" matrix --local 2 --size 1M --iters 100 --seconds 0.2 --no-progress --timeout "$(limit 3)"
also_not "none of them is lost" '^FAILED'

check_fails "nothing is left running" pgrep -s 0 -f "matrix --(join|hosts|local)"
tap_end
