# The examples, as somebody would try them who has just installed the library: they compile without
# a warning, shared and static, move their data over every path there is, and say in words what is
# wrong.
# shellcheck disable=SC2086 # words on purpose
. tests/tap.sh

# They are for the library as it is shipped; what is in it, the units look at.
[ -z "${SANITIZE-}" ] || tap_skip_all "the examples run without a sanitizer"
root=$TAP_WORK/root
strict="-Wall -Wextra -Werror"
plugin=$BUILD/libnccl-net-tcpx.so

export NCCL_SOCKET_IFNAME=lo UCCL_TCPX_GPU=host UCCL_TCPX_PLUGIN_PATH=builtin \
    UCCL_TCPX_TIMEOUT_MS=30000

check "make install" \
    make --no-print-directory install BUILD="$BUILD" CC="$CC" DESTDIR="$root" PREFIX=/usr
export LD_LIBRARY_PATH="$root/usr/lib"

# --- compiling -----------------------------------------------------------------------------------

flags="-I$root/usr/include -L$root/usr/lib -ltcpx"
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH="$root/usr/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root"
    flags=$(pkg-config --cflags --libs tcpx)
fi
for name in session_send session_receive prefill decode calls_transfer; do
    check "$name compiles" \
        $CC $strict -std=c11 -o "$TAP_WORK/$name" "examples/$name.c" $flags
    check "$name compiles and links statically with the library" \
        $CC $strict -std=c11 -I"$root/usr/include" -o "$TAP_WORK/$name-static" \
        "examples/$name.c" "$root/usr/lib/libtcpx.a" -ldl -pthread
done
for name in session_send session_receive prefill decode; do
    with_program c++ check "$name is C++, too" \
        c++ -x c++ $strict -std=c++17 -I"$root/usr/include" -fsyntax-only "examples/$name.c"
done
for name in session_send session_receive prefill decode; do
    check "$name is short enough to be read" test "$(wc -l <"examples/$name.c")" -lt 100
done
sed -n '/^```C$/,/^```$/p' README.md | sed '/^```/d' >"$TAP_WORK/readme.c"
check "the README shows how to send" grep -q tcpx_send "$TAP_WORK/readme.c"
check "and that compiles" \
    $CC $strict -std=c11 -I"$root/usr/include" -c -o "$TAP_WORK/readme.o" "$TAP_WORK/readme.c"

# --- running -------------------------------------------------------------------------------------

ticket= # what prefill and decode have as their first argument, the others not

# receiver PROGRAM [NAME=VALUE...]: begins it, and finds out the port that it took.
receiver()
{
    program=$1
    shift
    : >"$TAP_WORK/received" # what an earlier one said is not this one's port
    env "$@" "$program" $ticket 0 >"$TAP_WORK/received" 2>&1 </dev/null &
    receiver=$!
    port=
    within 20 has_port
}

# Or has ended, and never will.
has_port()
{
    port=$(sed -n 's/^listening on port //p' "$TAP_WORK/received")
    [ -n "$port" ] || ! kill -0 "$receiver" 2>/dev/null
}

# sender PROGRAM [NAME=VALUE...]: runs it; then both have ended, with the status in SENT and RECEIVED.
sender()
{
    program=$1
    shift
    SENT=0
    env "$@" "$program" $ticket 127.0.0.1 "${port:-1}" >"$TAP_WORK/sent" 2>&1 </dev/null || SENT=$?
    RECEIVED=0
    wait "$receiver" || RECEIVED=$?
}

# expect NAME SENT RECEIVED [WHERE REGEX]...: both ended so, and these lines are in sent or received.
expect()
{
    name=$1
    shift
    check "$name" as_expected "$@"
}

as_expected()
{
    echo "status $SENT and $RECEIVED, sender and receiver:"
    cat "$TAP_WORK/sent" "$TAP_WORK/received"
    { [ "$1" = any ] || [ "$SENT" = "$1" ]; } && [ "$RECEIVED" = "$2" ] || return 1
    shift 2
    while [ $# -gt 0 ]; do
        grep -Eq -e "$2" "$TAP_WORK/$1" || { echo "no /$2/ was $1"; return 1; }
        shift 2
    done
}

# moves NAME PATH SUFFIX [NAME=VALUE...]: everything arrives, by this path.
moves()
{
    name=$1 path=$2 suffix=$3
    shift 3
    receiver "$TAP_WORK/session_receive$suffix" "$@"
    sender "$TAP_WORK/session_send$suffix" "$@"
    expect "$name" 0 0 sent "^path: 127\.0\.0\.1:.*: $path" \
        sent '^sent 67108864 bytes in [0-9.]+ s, [0-9.]+ GB/s$' sent '^sent 1000 pieces' \
        received "^path: 127\.0\.0\.1:.*: $path" \
        received '^received 67108864 bytes in [0-9.]+ s, [0-9.]+ GB/s, verified$' \
        received '^received 1000 pieces of 4096 bytes, verified$'
}

# On the stand-in for CUDA, in these modes of the plugin; words on purpose.
on_fake="UCCL_TCPX_PLUGIN_PATH=$plugin UCCL_TCPX_GPU=cuda
    LD_LIBRARY_PATH=$BUILD/tests/fakecuda:$LD_LIBRARY_PATH"
as_cuda="$on_fake UCCL_TCPX_PLUGIN_MODE=cuda"
as_unpack="$on_fake UCCL_TCPX_PLUGIN_MODE=unpack"
moves "over the built-in transport" 'built-in transport over lo' ''
moves "with the static library" 'built-in transport over lo' -static
moves "over a plugin that takes host memory" 'plugin TCPX, .*staged in host memory here$' '' \
    UCCL_TCPX_PLUGIN_PATH="$plugin" UCCL_TCPX_PLUGIN_MODE=host
moves "over a plugin that takes GPU memory" 'plugin TCPX, .*GPU memory directly$' '' $as_cuda
moves "over a plugin that leaves the unpacking to us" 'plugin TCPX, .*GPU memory unpacked here$' '' \
    $as_unpack

# Emulated GPUs are this library's own: no plugin is asked to reach their memory.
for mode in cuda unpack; do
    moves "emulated GPUs over a plugin in mode $mode" 'plugin TCPX, .*staged in host memory here$' '' \
        UCCL_TCPX_PLUGIN_PATH="$plugin" UCCL_TCPX_PLUGIN_MODE=$mode
done

# --- one-sided access ---------------------------------------------------------------------------

# reads NAME SUFFIX [NAME=VALUE...]: decode gets its blocks, and prefill the note.
reads()
{
    name=$1 suffix=$2
    shift 2
    receiver "$TAP_WORK/prefill$suffix" "$@"
    sender "$TAP_WORK/decode$suffix" "$@"
    expect "$name" 0 0 sent '^path: 127\.0\.0\.1:.*: built-in transport over lo' \
        sent '^request 42: read 24 blocks of 65536 bytes, verified$' \
        received '^request 42: decode has its 24 blocks$'
}

ticket=$TAP_WORK/ticket
reads "decode reads blocks of prefill" ''
check_output "nobody else may read the ticket" '^600$' stat -c %a "$ticket"
reads "decode reads, with the static library" -static
reads "decode reads, over 3 channels" '' UCCL_TCPX_NUM_CHANNELS=3
reads "decode reads, without I/O threads" '' UCCL_TCPX_THREADS=0
reads "decode reads, on the stand-in for CUDA" '' UCCL_TCPX_GPU=cuda \
    LD_LIBRARY_PATH="$BUILD/tests/fakecuda:$LD_LIBRARY_PATH"

receiver "$TAP_WORK/prefill" UCCL_TCPX_PLUGIN_PATH="$plugin"
sender "$TAP_WORK/decode" UCCL_TCPX_PLUGIN_PATH="$plugin"
expect "over a plugin both are told that there is no access" 1 1 \
    sent '^decode: the key: .*over the plugin TCPX there is no access to windows' \
    received '^prefill: waiting for the note: .*a session over a plugin has no notes$'
ticket=

# --- the calls of a plugin ----------------------------------------------------------------------

# One below those that the kernel gives out, so that a client cannot meet itself there.
free_port()
{
    while :; do
        candidate=$((10000 + $(od -An -N2 -tu2 /dev/urandom) % 20000))
        if ! grep -qi ":$(printf '%04X' "$candidate") " /proc/net/tcp; then
            echo "$candidate"
            return
        fi
    done
}

# calls NAME SUFFIX FRAGMENTS [NAME=VALUE...]
calls()
{
    name=$1 program=$TAP_WORK/calls_transfer$2 fragments=$3
    shift 3
    port=$(free_port)
    env "$@" "$program" server "$port" >"$TAP_WORK/received" 2>&1 </dev/null &
    receiver=$!
    SENT=0
    env "$@" "$program" client 127.0.0.1 "$port" >"$TAP_WORK/sent" 2>&1 </dev/null || SENT=$?
    # A server that failed before it had a client would leave nobody to wait for, not the reverse.
    [ "$SENT" -eq 0 ] || kill "$receiver" 2>/dev/null
    RECEIVED=0
    wait "$receiver" || RECEIVED=$?
    expect "$name" 0 0 sent '^Sent 23 bytes with tag 42$' received "^$fragments fragment" \
        received '^Received data \(23 bytes\): Hello from TCPX client!$'
}

calls "the calls, over the built-in transport" '' 1
calls "the calls, with the static library" -static 1
for way in d2d host kernel; do
    calls "the calls, each way to unpack: $way" '' 1 UCCL_TCPX_UNPACK_IMPL=$way
done
calls "the calls, over a plugin that leaves the unpacking to us" '' 1 $as_unpack
calls "the calls, over a plugin that takes GPU memory" '' 0 $as_cuda
check_fails_output "the calls, without arguments" '^usage: ' "$TAP_WORK/calls_transfer"

# --- what goes wrong ----------------------------------------------------------------------------

# variant NAME SCRIPT [EXAMPLE]: that one, else the receiver, changed by sed.
variant()
{
    changed=${3:-session_receive}
    sed "$2" "examples/$changed.c" >"$TAP_WORK/$1.c"
    check "$changed is another one: $1" sh -c "! cmp -s examples/$changed.c '$TAP_WORK/$1.c' &&
        $CC -std=c11 -o '$TAP_WORK/$1' '$TAP_WORK/$1.c' $flags"
}

variant expects_other_bytes 's/from \* 31/from * 37/'
receiver "$TAP_WORK/expects_other_bytes"
sender "$TAP_WORK/session_send"
expect "bytes that are not as expected are noticed" any 1 \
    received '^session_receive: byte 1 is 31, expected 37$'

variant expects_less 's/BYTES *(64 << 20)/BYTES (32 << 20)/'
receiver "$TAP_WORK/expects_less"
sender "$TAP_WORK/session_send"
expect "a receive that is too short fails, over the built-in transport" 1 1 \
    sent '^session_send: sending: .*67108864' received '^session_receive: receiving: .*67108864'
receiver "$TAP_WORK/expects_less" UCCL_TCPX_PLUGIN_PATH="$plugin"
sender "$TAP_WORK/session_send" UCCL_TCPX_PLUGIN_PATH="$plugin"
expect "and over a plugin" 1 1 \
    sent '^session_send: sending: tag 1: a send of 67108864 bytes, but .* expects 33554432$' \
    received '^session_receive: receiving: tag 1: a receive of 33554432 bytes, .* sends 67108864$'

receiver "$TAP_WORK/session_receive" UCCL_TCPX_PLUGIN_PATH="$plugin"
sender "$TAP_WORK/session_send"
expect "two sides with different transports are told so" 1 1 \
    sent 'transport: (builtin here, TCPX at|TCPX here, builtin at)' \
    received 'transport: (builtin here, TCPX at|TCPX here, builtin at)'

ticket=$TAP_WORK/ticket
variant has_another_key 's|^    must(tcpx_remote_open|    ticket.key[30] ^= 1;\n&|' decode
receiver "$TAP_WORK/prefill"
sender "$TAP_WORK/has_another_key"
expect "a wrong key is refused" 1 1 \
    sent '^decode: reading: .* refused a read of 1572864 bytes: no such window, or a wrong key' \
    received '^prefill: waiting for the note: '

variant reads_a_block_too_many 's/ticket.blocks\[i\] \* BLOCK/(ticket.blocks[i] + 64) * BLOCK/' decode
receiver "$TAP_WORK/prefill"
sender "$TAP_WORK/reads_a_block_too_many"
expect "a part that is not in the window is refused" 1 1 \
    sent "^decode: reading: part 0: 65536 bytes at [0-9]+ are not in the peer's window of 4194304" \
    received '^prefill: waiting for the note: '

variant expects_other_blocks 's/BLOCK_BYTES \* 7/BLOCK_BYTES * 5/' decode
receiver "$TAP_WORK/prefill"
sender "$TAP_WORK/expects_other_blocks"
expect "blocks that are not as expected are noticed" 1 0 sent '^decode: byte [0-9]+ is [0-9]+, expected'

variant allows_nothing 's/windows = 1/windows = 0/' prefill
receiver "$TAP_WORK/allows_nothing"
sender "$TAP_WORK/decode"
expect "a peer that does not allow access says so" 1 1 \
    sent '^decode: the key: .* does not allow access to its windows' \
    received '^prefill: waiting for the note: '
ticket=
check_fails_output "decode, without arguments" '^usage: ' "$TAP_WORK/decode"
check_fails_output "prefill, without arguments" '^usage: ' "$TAP_WORK/prefill"

check_fails_output "a sender without a receiver" '^session_send: connecting: no peer at 127' \
    env UCCL_TCPX_TIMEOUT_MS=1000 "$TAP_WORK/session_send" 127.0.0.1 "$(free_port)"
check_fails_output "a receiver without a sender" 'waiting for the sender: no peer came to port' \
    env UCCL_TCPX_TIMEOUT_MS=1000 "$TAP_WORK/session_receive" 0
check_fails_output "a sender without arguments" '^usage: ' "$TAP_WORK/session_send"

tap_end
