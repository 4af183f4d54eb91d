# tcpx perf as people run it: on one machine and as two processes, what it shows, and what they are
# told when something is wrong. And the demo that the README promises.
. tests/tap.sh
. tests/pair.sh

tcpx=$BUILD/tcpx
port=$((15000 + $$ % 2900)) # below those that the kernel gives to clients
# What a sanitizer slows down, it sees in less.
few="--iters 3"
export NCCL_SOCKET_IFNAME=lo UCCL_TCPX_GPU=host

# --- one machine ---------------------------------------------------------------------------------

loopback()
{
    # shellcheck disable=SC2086
    "$tcpx" perf --loopback $few "$@"
}

check_output "an iteration has 4 MiB, and there are ten" '^ +4 MiB +10 +[0-9.]+ ' "$tcpx" perf --loopback
check_output "every byte of them is verified" '^verified: every byte of 10 iterations, 40 MiB' \
    "$tcpx" perf --loopback
check_output "it says which path they took" 'built-in transport over lo' loopback
check_output "memory of an emulated GPU" 'memory +GPU 0, emulated' loopback --size 1M
check_output "or of the host" 'memory +host memory' loopback --host --size 10000019
check_output "one byte" '^ +1 B +3 ' loopback --size 1
check_output "an odd number of them" '^verified: every byte of 3 ' loopback --size 10000019
check_output "over several sockets" '^verified' loopback --size 40M --sockets 5
check_output "over several channels" '2 channels' loopback --size 4M --channels 2
check_output "in chunks" 'chunks of 300 KiB' loopback --size 4M --chunk-bytes 300K
check_output "as a list of pieces" 'lists of 1000 pieces' loopback --size 4000019 --pieces 1000
check_output "of more pieces than bytes" '^ +10 B +3 ' loopback --size 10 --pieces 1000
check_output "both ways" '^both ways' loopback --both --size 1M
check_output "there and back" '^ping-pong' loopback --ping-pong --size 1K
# --- one-sided access ----------------------------------------------------------------------------

check_output "the client reads the server's memory" '^reads, one way, .* from ' loopback --read --size 1M
check_output "or writes it" '^writes, one way, .* to ' loopback --write --size 1M
for access in --read --write; do
    check_output "$access in host memory, an odd number of bytes" '^verified: every byte of 3 ' \
        loopback $access --host --size 10000019
    check_output "$access of one byte, by more accesses and parts than that" '^ +1 B +3 ' \
        loopback $access --size 1 --accesses 10 --pieces 10
    check_output "$access, many at once in many parts" 'lists of 7 pieces, 30 [a-z]+ at once' \
        loopback $access --size 4000019 --accesses 30 --pieces 7
    check_output "$access by both at the same time" '^verified: every byte of 3 iterations, 6 MiB' \
        loopback $access --both --size 1M --accesses 3
    check_output "$access over several channels" '3 channels' loopback $access --channels 3 --accesses 9
    check_output "$access in a sweep" '^ +256 B +3 ' loopback $access --sweep 4:1K --host --accesses 3
done
check_output "a write with a note is answered by one" '^writes, ping-pong' loopback --write --ping-pong --size 4K --host
check_output "and so are many" '^verified' loopback --write --ping-pong --size 100K --accesses 50
check_output "chunks of the environment are those of sends" 'no chunks' \
    env UCCL_TCPX_CHUNK_BYTES=1000 "$tcpx" perf --loopback --read --iters 2
check_output "each access is a line, if asked" '^\[PERF\]\[CLIENT\] read access_idx=2 parts=2 offset=2000$' \
    loopback --read --size 3000 --accesses 3 --pieces 2 --chunks

check_output "the environment says how much" '^ +64 KiB +2 ' \
    env UCCL_TCPX_PERF_SIZE=64K UCCL_TCPX_PERF_ITERS=2 "$tcpx" perf --loopback
check_output "with the longest timeout" '^verified' \
    env UCCL_TCPX_TIMEOUT_MS=3600000 "$tcpx" perf --loopback --size 1M
for impl in d2d host kernel; do
    check_output "unpacked by $impl" '^verified' env UCCL_TCPX_SOFT_DEVMEM=3 \
        "$BUILD/tests/support/tcpx" perf --loopback --iters 2 --size 3M --unpack $impl
done
check_fails_output "a NIC that is made up is a matter of the tests" 'UCCL_TCPX_SOFT_DEVMEM=3: this build has no software devmem' \
    env UCCL_TCPX_SOFT_DEVMEM=3 "$tcpx" perf --loopback --size 1M
check_output "bytes that arrive in place are unpacked by nobody" '^  unpack +none' loopback --size 1M --unpack kernel
if [ -e "$BUILD/tests/fakecuda/libcuda.so.1" ]; then
    check_output "over a plugin that hands out fragments they are" '^  unpack +host$' \
        env UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$BUILD/tests/fakecuda" UCCL_TCPX_PLUGIN_MODE=unpack \
        UCCL_TCPX_PLUGIN_PATH="$BUILD/libnccl-net-tcpx.so" "$tcpx" perf --loopback --iters 2 --size 1M --unpack host
fi
check_output "over a plugin" 'plugin TCPX' env UCCL_TCPX_PLUGIN_PATH="$BUILD/libnccl-net-tcpx.so" \
    "$tcpx" perf --loopback --iters 2 --size 3M

# A sweep has every size, and more iterations of small ones.
"$tcpx" perf --loopback --host --sweep 4:1M --iters 20 --csv >"$TAP_WORK/sweep.csv" 2>&1
sizes=$(sed -n 's/^\([0-9]*\),.*/\1/p' "$TAP_WORK/sweep.csv" | tr '\n' ' ')
check "a sweep has all sizes in steps of four" \
    test "$sizes" = '4 16 64 256 1024 4096 16384 65536 262144 1048576 '
check_output "the last of a sweep is as it was said" '^ +5000 B ' "$tcpx" perf --loopback --sweep 4000:5000 --host
check_output "a sweep has many iterations of small sizes" '^ +1000 B +1000 ' \
    "$tcpx" perf --loopback --sweep 500:1000 --host

# --- every byte is looked at ---------------------------------------------------------------------

for way in "" --both --ping-pong --host "--chunk-bytes 1000" "--pieces 77" "--read" "--read --both --pieces 77" \
    "--write --accesses 5" "--write --both" "--write --ping-pong"; do
    # shellcheck disable=SC2086
    check_fails_output "one byte that is wrong fails the run${way:+, $way}" \
        'wrong data: the (server|client) received 1 of 65536 bytes wrong in iteration 2' loopback --size 64K --spoil 2 $way
done
check_output "in an iteration that there is not, it fails nothing" '^verified' loopback --spoil 4

# --- other forms ---------------------------------------------------------------------------------

cat >"$TAP_WORK/look.py" <<'END'
import csv, json, sys
result = json.load(open(sys.argv[1]))
rows = list(csv.DictReader(open(sys.argv[2])))
assert [row["bytes"] for row in result["rows"]] == [1000, 4000, 10000], result
assert [int(row["bytes"]) for row in rows] == [1000, 4000, 10000], rows
for row in result["rows"]:
    assert row["iterations"] == 3 and row["gigabytes_per_second"] > 0, row
    assert 0 < row["min_us"] <= row["median_us"] <= row["max_us"], row
    assert row["p99_us"] is None and row["p99_9_us"] is None, row
END
loopback --host --sweep 1000:10000 --json >"$TAP_WORK/json" 2>&1
loopback --host --sweep 1000:10000 --csv >"$TAP_WORK/csv" 2>&1
with_program python3 check "JSON and CSV are what other programs read" \
    python3 "$TAP_WORK/look.py" "$TAP_WORK/json" "$TAP_WORK/csv"
cat >"$TAP_WORK/terminal.py" <<'END'
import os, pty, re, sys
said = []
def read(fd):
    data = os.read(fd, 4096)
    said.append(data)
    return data
status = pty.spawn(sys.argv[1:], read)
text = b"".join(said)
assert status == 0, status
assert re.search(rb"4 MiB \[=+ *\] +[0-9]+ %", text), text
END
with_program python3 check "on a terminal there is a bar" python3 "$TAP_WORK/terminal.py" \
    "$tcpx" perf --loopback --size 4M --iters 100
no_bar()
{
    loopback --size 4M 2>"$TAP_WORK/bar" && ! grep . "$TAP_WORK/bar"
}
check "in a pipe there is none" no_bar

# --- how long, and what is verified --------------------------------------------------------------

check_output "for a second" '^ +1 KiB +[0-9]{3,} ' "$tcpx" perf --loopback --host --size 1K --time 1
check_output "only the first iteration" '^verified: every byte of 1 iteration, 1 MiB in all; no other was' \
    loopback --size 1M --check first
also "and the report's head says so" '^  check +first'
check_output "no byte" '^NOT VERIFIED: no byte was compared' loopback --size 1M --check none
also_not "and nothing else is said" '^verified'
for access in --read "--write --ping-pong" --both; do
    # shellcheck disable=SC2086
    check_output "no byte, $access" '^NOT VERIFIED' loopback --size 100K --check none $access
done
check_fails_output "what is wrong is not seen then" "only --check every sees it.*'none'" \
    loopback --check none --spoil 1

# --- rows as they are measured -------------------------------------------------------------------

# appear_early COMMAND...: in a pipe.
appear_early()
{
    "$@" 2>"$TAP_WORK/early.errors" | cat >"$TAP_WORK/early"
}
appears()
{
    appear_early "$tcpx" perf --loopback --host --sweep 256K:1M --time 3 --csv &
    early=$!
    within 3 grep -q '^262144,' "$TAP_WORK/early"
    early_status=$?
    grep -q '^1048576,' "$TAP_WORK/early" && early_status=2
    wait $early
    return $early_status
}
check "a row is there before the next one is measured" appears
check "and then the others are" grep -q '^1048576,.*,2,2$' "$TAP_WORK/early"

page=$TAP_WORK/page.html
check "a page is written" loopback --host --sweep 1K:64K --html "$page"
with_program node check_output "with plots in it" '<svg viewBox="0 0 1000 346".*Bandwidth against size' \
    node tests/support/perf_page.js "$page"
check_fails_output "a full disk" 'cannot write /dev/full: No space left' loopback --html /dev/full
check "which is still there" test -c /dev/full
check_fails_output "a folder that is not there" 'cannot write .*/no/page: No such file' \
    loopback --html "$TAP_WORK/no/page"
full_output()
{
    loopback >/dev/full
}
check_fails_output "no room for the table" 'cannot write to standard output: No space' full_output

# --- two processes -------------------------------------------------------------------------------

# pair CLIENT_ARGUMENTS: as pair_run, and each line says who said it.
pair()
{
    PAIR_SERVER="$tcpx perf server"
    PAIR_CLIENT="$tcpx perf client 127.0.0.1"
    pair_run -- "$@" >/dev/null
    pair_status=$?
    sed 's/^/client: /' "$TAP_WORK/client"
    sed 's/^/server: /' "$TAP_WORK/server"
    return $pair_status
}

rows_of()
{
    grep -E '^ +[0-9.]+ [KMG]?i?B ' "$1"
}

same_rows()
{
    rows_of "$TAP_WORK/server" >"$TAP_WORK/rows" && rows_of "$TAP_WORK/client" | cmp - "$TAP_WORK/rows"
}

check_output "two processes" '^server: verified' pair --sweep 1K:1M --iters 5
check "both show the same" same_rows
check_output "the server does as the client says" '^server: verified' pair --both --channels 3 --chunk-bytes 10000
check_output "the server is read as the client says" '^server:   options .*, 7 reads at once' \
    pair --read --accesses 7
check "both show the same of that" same_rows
check_output "both say each chunk, if asked" \
    '^client: \[PERF\]\[CLIENT\] send begun chunk_idx=3 tag=10102 size=1000 offset=3000$' \
    pair --size 4000 --chunk-bytes 1000 --iters 2 --warm-up 0 --chunks
also "and when it is sent" '^client: \[PERF\]\[CLIENT\] send done chunk_idx=3 tag=10102 size=1000 offset=3000$'
also "and how long an iteration took" '^client: \[PERF\]\[CLIENT\] Iter 1 time=[0-9.]+ms size=4000$'
check_output "and received" \
    '^\[PERF\]\[SERVER\] recv done chunk_idx=3 tag=102 size=1000 offset=3000 in place$' \
    loopback --size 4000 --chunk-bytes 1000 --iters 1 --warm-up 0 --chunks
if [ -e "$BUILD/tests/fakecuda/libcuda.so.1" ]; then
    check_output "over a plugin that leaves its receives to be unpacked" \
        '\[PERF\]\[SERVER\] recv done chunk_idx=1 tag=100 size=4096 offset=4096 unpacked, consumed$' \
        env UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$BUILD/tests/fakecuda" UCCL_TCPX_PLUGIN_MODE=unpack \
        UCCL_TCPX_PLUGIN_PATH="$BUILD/libnccl-net-tcpx.so" UCCL_TCPX_DEBUG=1 \
        "$tcpx" perf --loopback --size 8K --chunk-bytes 4K --iters 1 --warm-up 0
fi

# --- what is wrong -------------------------------------------------------------------------------

check_fails_output "a size that is none" "--size: not a size, such as 512K or 1G: 'x'" loopback --size x
check_fails_output "a sweep that is none" "--sweep: not two sizes, such as 4:1G: '1G:4'" loopback --sweep 1G:4
check_fails_output "no sockets" "UCCL_TCPX_SOCKETS.*'--sockets'" loopback --sockets 0
check_fails_output "a way to unpack that is none" "UCCL_TCPX_UNPACK_IMPL" loopback --unpack x
check_fails_output "neither server nor client" "server, client HOST or --loopback is expected, not ''" "$tcpx" perf
check_fails_output "a client of nobody" "the server's name is missing" "$tcpx" perf client
check_fails_output "reads and writes" "--read does not go with '--write'" loopback --write --read
check_fails_output "accesses that are none" "without --read or --write there is no '--accesses'" loopback --accesses 2
check_fails_output "reads in ping-pong" "--read does not go with '--ping-pong'" \
    loopback --read --ping-pong
check_fails_output "chunks of writes" "divide reads and writes, not '--chunk-bytes'" loopback --write --chunk-bytes 1K
check_fails_output "too many parts" "at most 1000000 pieces of all accesses together" \
    loopback --write --accesses 1001 --pieces 1000
check_fails_output "reads over a plugin" 'over the plugin TCPX there is no access to windows; the built-in transport has it' \
    env UCCL_TCPX_PLUGIN_PATH="$BUILD/libnccl-net-tcpx.so" "$tcpx" perf --loopback --read
check_fails_output "two forms" "--json does not go with '--csv'" loopback --json --csv
check_fails_output "two ways" "--both does not go with '--ping-pong'" loopback --ping-pong --both
check_fails_output "two sizes" "--size does not go with '--sweep'" loopback --size 1 --sweep 1:4
check_fails_output "time and a number" "--iters does not go with '--time'" loopback --time 1
check_fails_output "one machine and a server" "--loopback has both ends: it does not go with 'server'" \
    "$tcpx" perf server --loopback
check_fails_output "a plan of the server's" "server does not go with '--size'" "$tcpx" perf server --size 1M
check_fails_output "a client of one client" "client does not go with '--once'" "$tcpx" perf client localhost --once
check_fails_output "a check that is none" "--check: not every, first or none: 'x'" loopback --check x
check_fails_output "too many words" "unexpected argument '2'" "$tcpx" perf server 1 2
check_fails_output "an option that is none" "unknown argument '--nonsense'" loopback --nonsense
check_fails_output "a GPU that is none" "not the number of a GPU: 'x'" loopback x
check_fails_output "a GPU that is not there" 'GPU 7' loopback 7
check_fails_output "more memory than there is" 'buffers? of 3 TiB needs? [0-9.]+ [TG]iB of host memory, [0-9.]+ [KMGT]iB are available' \
    loopback --host --size 3T
check_fails_output "more memory than the GPU has" '1 buffer of 3 TiB needs 3 TiB of GPU memory, 16 GiB are available' \
    loopback --size 3T
no_descriptors()
{
    (ulimit -n 5 && exec "$tcpx" perf --loopback --host --size 1M --iters 1 --timeout 3)
}
check_fails_output "the server's reason, where it is not the client's" \
    '; the server: connections could not be accepted for 1000 ms: Too many open files$' no_descriptors
check_output "a variable that is set to nothing is not set" '^ +1000 B +1000 ' \
    env UCCL_TCPX_PERF_ITERS= "$tcpx" perf --loopback --sweep 500:1000 --host
check_fails_output "nobody is there" '127.0.0.1.*refused; is .tcpx perf server. running there, at this port' \
    "$tcpx" perf client 127.0.0.1 --port $port --timeout 1

port_in_use()
{
    "$tcpx" perf server --once --port $port --timeout "$(limit 5)" >/dev/null 2>&1 &
    first=$!
    pair_port_is_taken
    "$tcpx" perf server --once --port $port --timeout 5
    status=$?
    kill $first
    wait $first
    port=$((port + 1))
    return $status
}
check_fails_output "a port in use" 'in use; --port N chooses another port' port_in_use

other_test()
{
    PAIR_SERVER="$tcpx perf server"
    PAIR_CLIENT="$tcpx transfer client 127.0.0.1"
    ! pair_run -- && [ $client_status -eq 1 ] && [ $server_status -eq 1 ]
}
check_output "a peer that is another test" 'the other end must be tcpx perf' other_test

# --- a peer that goes away in the middle ---------------------------------------------------------

# In the background a shell lets its children ignore SIGINT, and then tcpx does.
interruptible="env --default-signal=INT"

# begin SECONDS: a run that would take for ever, in its middle.
begin()
{
    SECONDS_EACH=$1
    PAIR_SERVER="$interruptible $tcpx perf server"
    PAIR_CLIENT="$interruptible $tcpx perf client 127.0.0.1"
    pair_start --chunks -- --size 8M --chunk-bytes 1M --iters 1000000
    within 10 in_the_middle
}

in_the_middle()
{
    [ "$(grep -c PERF "$TAP_WORK/server")" -gt 100 ]
}

# is_gone PROCESS SECONDS: it ends within them.
is_gone()
{
    within "$2" ended "$1"
}

ended()
{
    ! kill -0 "$1" 2>/dev/null
}

# ends PROCESS SECONDS: its status; 99 if it goes on.
ends()
{
    is_gone "$1" "$2" || return 99
    wait "$1"
}

# gone SIGNAL WHO: the other's status is 1, soon, with a line; its own is that of the signal.
gone()
{
    begin 20
    eval "victim=\$$2"
    [ "$2" = server ] && other=client || other=server
    eval "left=\$$other"
    kill -"$1" "$victim"
    ends "$left" 10
    left_status=$?
    ends "$victim" 5
    victim_status=$?
    kill -9 "$victim" "$left" 2>/dev/null
    grep -v '^\[PERF\]' "$TAP_WORK/server" "$TAP_WORK/client"
    [ $left_status -eq 1 ] && [ $victim_status -gt 128 ] && grep -q '^tcpx: ' "$TAP_WORK/$other"
}
check_output "the client is interrupted" 'client:tcpx: interrupted' gone INT client
check_output "the server is interrupted" 'server:tcpx: interrupted' gone INT server
check "the client is killed" gone KILL client
check "the server is killed" gone KILL server

# What there is of a run that was cut short is shown and written, at both ends.
cut_short()
{
    PAIR_SERVER="$interruptible $tcpx perf server --html $TAP_WORK/server.html"
    PAIR_CLIENT="$interruptible $tcpx perf client 127.0.0.1 --html $TAP_WORK/client.html"
    rm -f "$TAP_WORK/client"
    pair_start -- --sweep 4K:64M --time 2
    within 15 grep -q '^ *4 KiB' "$TAP_WORK/client" && kill -"$1" "$client"
    ends "$client" 10
    cut_status=$?
    ends "$server" 10
    left_status=$?
    cat "$TAP_WORK/server" "$TAP_WORK/client"
    [ $cut_status -gt 128 ] && [ $left_status -eq 1 ]
}
for signal in INT TERM; do
    check_output "cut short by SIG$signal" 'INCOMPLETE: [12] of 8 sizes were measured: (interrupted|terminated)' \
        cut_short $signal
    also "the other end says why" 'INCOMPLETE: [12] of 8 sizes were measured: .*127.0.0.1'
    for end in client server; do
        check_output "the page of the $end, too" '"complete": false' cat "$TAP_WORK/$end.html"
        also "has the rows" '"bytes": 4096'
    done
done

# A server serves one client after the other, also after one that was killed or never said what it wants.
several_clients()
{
    $interruptible "$tcpx" perf server --host --port $port --timeout "$(limit 10)" >"$TAP_WORK/server" 2>&1 &
    server=$!
    within 5 grep -q "listening on all addresses, port $port; waiting" "$TAP_WORK/server" || return 1
    "$tcpx" perf client 127.0.0.1 --port $port --host --iters 1000000 >/dev/null 2>&1 &
    client=$!
    within 5 grep -q 'server: client 127' "$TAP_WORK/server"
    kill -9 $client
    for each in 1 2; do
        "$tcpx" perf client 127.0.0.1 --port $port --host --size 1K || return 1
    done
    kill -INT $server
    ends $server 5
    [ $? -eq 130 ] && grep -c ': done$' "$TAP_WORK/server" && cat "$TAP_WORK/server"
}
check_output "a server serves several clients" '^2$' several_clients
also "and says how each ended" '^tcpx perf server: client .*: failed$'
port=$((port + 1))

# A client that leaves when it has met the server, and before there is a session.
leaves_early()
{
    "$tcpx" perf server --once --port $port --timeout 30 >"$TAP_WORK/server" 2>&1 &
    server=$!
    sleep 0.3
    UCCL_TCPX_PLUGIN_PATH=/nonexistent "$tcpx" perf client 127.0.0.1 --port $port --timeout 30 \
        >"$TAP_WORK/client" 2>&1
    port=$((port + 1))
    ends $server 10
    server_status=$?
    kill -9 $server 2>/dev/null
    cat "$TAP_WORK/server"
    [ $server_status -eq 1 ]
}
check_output "a server notices that its client has left before the session" 'refused: .*/nonexistent' \
    leaves_early

stopped()
{
    begin 2
    kill -STOP $server
    ends $client 15
    client_status=$?
    kill -CONT $server
    ends $server 15
    kill -9 $server $client 2>/dev/null
    cat "$TAP_WORK/client"
    [ $client_status -eq 1 ]
}
check_output "a server that stops: which chunk is missing, or what else was awaited" \
    'tcpx: (timeout: the send at offset=[0-9]+ chunk_idx=[0-9]+ tag=[0-9]+ did not end within [0-9]+ s|.*awaited|.*verdict|.*start signal)' \
    stopped

has_child()
{
    grep -q . "/proc/$1/task/$1/children"
}

loopback_interrupted()
{
    $interruptible "$tcpx" perf --loopback --size 8M --iters 1000000 >"$TAP_WORK/said" 2>&1 &
    both=$!
    within 5 has_child $both
    sleep 0.5
    read -r child </proc/$both/task/$both/children
    kill -INT $both
    ends $both 10
    status=$?
    cat "$TAP_WORK/said"
    [ $status -eq 130 ] && [ -n "$child" ] && is_gone $child 5
}
check_output "both ends on one machine are interrupted" 'tcpx: interrupted' loopback_interrupted

# 1 GiB of emulated GPU memory takes a minute under a sanitizer.
[ -n "${SANITIZE-}" ] || check_output "make demo" '^verified: every byte of 4 iterations, 1 GiB in all' \
    make --no-print-directory demo

# Standard output that nobody reads must not keep the program from ending.
with_program python3 check "a signal ends one whose output is stuck" python3 -c '
import fcntl, os, signal, subprocess, sys, time
reading, writing = os.pipe()
fcntl.fcntl(writing, 1031, 4096)  # F_SETPIPE_SZ
perf = subprocess.Popen([sys.argv[1], "perf", "--loopback", "--host", "--sweep", "1:1M", "--iters", "3",
                         "--json"], stdout=writing)
os.close(writing)
time.sleep(2)
perf.send_signal(signal.SIGTERM)
assert perf.wait(float(sys.argv[2])) == -signal.SIGTERM, perf.returncode
' "$tcpx" "$(limit 10)"

tap_end
