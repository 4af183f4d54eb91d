# tcpx connection as two people run it: the times of the handshake, once and many times, and what
# they are told when the other one is not there, is something else, or goes away.
. tests/tap.sh
. tests/pair.sh

tcpx=$BUILD/tcpx
PAIR_COMMAND="$tcpx connection"
port=$((10000 + $$ % 4900)) # below those that the kernel gives to clients
export NCCL_SOCKET_IFNAME=lo UCCL_TCPX_GPU=host

# said_by server|client REGEX: a line of that one's.
said_by()
{
    grep -Eq -e "$2" "$TAP_WORK/$1"
}

# both_failed: by themselves, each with one line.
both_failed()
{
    [ $server_status -eq 1 ] && [ $client_status -eq 1 ] &&
        [ "$(grep -c '^tcpx: ' "$TAP_WORK/server")" -eq 1 ] &&
        [ "$(grep -c '^tcpx: ' "$TAP_WORK/client")" -eq 1 ]
}

# --- one -----------------------------------------------------------------------------------------

check "one connection" pair --
check "the server says so" said_by server '^1 connection accepted: PASSED$'
check "the client, too" said_by client '^1 connection made: PASSED$'
check "the client's peer and device" said_by client '^to 127\.0\.0\.1:[0-9]+, device 0 \(lo\)$'
# Step by step in this order, each with a time that is one.
steps_of()
{
    awk '/^step/ || ($2 > 0 && NF == 2) { printf "%s ", $1 }' "$TAP_WORK/$1"
}
check_output "the server's steps" '^step bootstrap listen handle accept close total $' steps_of server
check_output "the client's steps" '^step bootstrap handle connect close total $' steps_of client

pair_golden_connection
SERVER_ENV=UCCL_TCPX_DEBUG=1 CLIENT_ENV=UCCL_TCPX_DEBUG=1
check "with UCCL_TCPX_DEBUG=1" pair --
check "the server's lines" pair_said server
check "the client's lines" pair_said client
SERVER_ENV=
CLIENT_ENV=

# --- many ----------------------------------------------------------------------------------------

# ordered FILE ROWS: so many rows of min, median and p99, in that order, above nothing.
ordered()
{
    cat "$1"
    awk -v rows="$2" '
        NF == 4 && /^[a-z]+ +[0-9]/ { rows--; if (!(0 < $2 && $2 <= $3 && $3 <= $4)) exit 1 }
        END { exit rows != 0 }' "$1"
}

check "200 connections" pair -- --count 200
check "the server counts them" said_by server '^200 connections accepted: PASSED$'
check "the client, too" said_by client '^200 connections made: PASSED$'
check "the bootstrap was once" said_by client '^bootstrap, once for all: [0-9.]+ us$'
check "the server's times" ordered "$TAP_WORK/server" 5
check "the client's times" ordered "$TAP_WORK/client" 4
check "a server that expects as many" pair --count 3 -- --count 3
tap_run pair --count 3 -- --count 5
check "one that expects another number" both_failed
check "says both" said_by server 'connections: 3 expected by the server, 5 by 127\.0\.0\.1'
check "to both" said_by client 'refused: connections: 3 expected by the server, 5 by 127\.0\.0\.1'

SERVER_ENV="UCCL_TCPX_HOST_GPUS=2" CLIENT_ENV=$SERVER_ENV
check "another GPU" pair 1 -- 1
SERVER_ENV=UCCL_TCPX_PLUGIN_PATH=$BUILD/libnccl-net-tcpx.so CLIENT_ENV=$SERVER_ENV
check "over our own plugin" pair -- --count 20
CLIENT_ENV=
tap_run pair --
check "another plugin on one side" both_failed
check "says which" said_by client 'transport: builtin here, TCPX at '
if [ -e "$BUILD/tests/fakecuda/libcuda.so.1" ]; then
    SERVER_ENV="UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH=$BUILD/tests/fakecuda
        UCCL_TCPX_PLUGIN_PATH=$BUILD/tests/quirky_plugin/libquirky_v7.so"
    CLIENT_ENV=$SERVER_ENV
    check "over a plugin like Google's" pair -- --count 5
else
    tap_skip "over a plugin like Google's" "the stand-in for CUDA is not built"
fi
SERVER_ENV=
CLIENT_ENV=

# The port counts from the variable, as that of the other tests does.
UCCL_TCPX_HOST_GPUS=4 UCCL_TCPX_BOOTSTRAP_PORT_BASE=$port "$tcpx" connection server 3 --once --timeout 20 \
    >"$TAP_WORK/server" 2>&1 &
server=$!
check "the port of GPU 3" "$tcpx" connection client 127.0.0.1 --port $((port + 3)) --timeout 20
check "where its server was" wait $server
port=$((port + 4))

# --- nobody there --------------------------------------------------------------------------------

# took COMMAND...: its status and the milliseconds that it took, in $status and $spent; what it says is
# also in $TAP_WORK/said.
took()
{
    began=$(now_ms)
    status=0
    "$@" >"$TAP_WORK/said" 2>&1 || status=$?
    spent=$(($(now_ms) - began))
    echo "status $status after $spent ms:"
    cat "$TAP_WORK/said"
}

# fails_within SECONDS REGEX TIMEOUT ARGUMENT...: an end at $port, with status 1 and one line that matches.
fails_within()
{
    seconds=$1 regex=$2 timeout=$3
    shift 3
    took "$tcpx" connection "$@" --port $port --timeout "$timeout"
    [ $status -eq 1 ] && [ $spent -le "$(limit "${seconds}000")" ] &&
        [ "$(grep -vc '^tcpx connection server: ' "$TAP_WORK/said")" -eq 1 ] &&
        grep -Eq -e "^tcpx: .*$regex" "$TAP_WORK/said"
}

check "nobody listens" fails_within 6 "no peer at 127\.0\.0\.1 port $port in time.*refused" 1 \
    client 127.0.0.1
check "nobody comes" fails_within 6 "no peer came to port $port in time" 1 server --once
check "a host that cannot be reached" fails_within 6 '192\.0\.2\.1' 1 client 192.0.2.1
check "a host that is none" fails_within 20 'nowhere\.invalid' 1 client nowhere.invalid
check "a GPU that is not there" fails_within 6 'GPU 7' 1 server 7 --once

"$tcpx" connection server --once --port $port --timeout 20 >"$TAP_WORK/server" 2>&1 &
server=$!
# A port that is only just taken may be too late for the second one to see; a client is not needed.
pair_port_is_taken
check "a port that is taken" fails_within 3 "cannot listen on .*$port.*in use; --port N chooses another port" 20 server
check "the one that has it still works" "$tcpx" connection client 127.0.0.1 --port $port --timeout 20
check "on its side, too" wait $server
port=$((port + 1))

# --- somebody else there -------------------------------------------------------------------------

CLIENT="$tcpx transfer"
tap_run pair --
check "a client of tcpx transfer" both_failed
check "the server says so" said_by server 'runs tcpx transfer, but this is tcpx connection'
check "the client is told" said_by client 'runs tcpx transfer, but this is tcpx connection'
CLIENT=
SERVER="$tcpx transfer"
tap_run pair --
check "a server of tcpx transfer" both_failed
check "the client says so" said_by client 'runs tcpx transfer, but this is tcpx connection'
check "the server, too" said_by server 'runs tcpx connection, but this is tcpx transfer'
SERVER=

# stranger NAME TEXT SECONDS REGEX: what a client says of a server that sends TEXT to whoever comes first,
# and nothing else.
stranger()
{
    python3 - "$port" "$2" <<'END' &
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
listener.settimeout(100)
connection = listener.accept()[0]
connection.settimeout(100)
connection.sendall(sys.argv[2].encode().decode("unicode_escape").encode("latin-1"))
try:
    while connection.recv(4096):
        pass
except OSError:
    pass
END
    stranger=$!
    check "$1" fails_within 10 "$4" "$3" client 127.0.0.1
    wait $stranger
    port=$((port + 1))
}

if command -v python3 >/dev/null; then
    stranger "a server of another kind" 'HTTP/1.1 400 Bad Request
Content-Length: 0
Server: not a tcpx at all, but something longer than a greeting, which is 64 bytes or so

' 5 'speaks another protocol'
    stranger "a server of another version" "tcpxboot\\x03\\0\\0\\0\\x03$(printf '%.0s\\0' $(seq 35))" 5 \
        'speaks versions 3 to 3 of the session protocol'
    stranger "a server that is silent" '' 2 'not greeted'
    "$tcpx" connection server --once --port $port --timeout 20 >"$TAP_WORK/server" 2>&1 &
    server=$!
    check "a client of another kind is dropped" python3 - $port <<'END'
import socket, sys, time
for attempt in range(400):
    try:
        connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
        break
    except OSError:
        time.sleep(0.05)
connection.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nAccept: everything\r\n" * 4)
try:
    while connection.recv(4096):
        pass
except ConnectionError:
    pass
END
    check "and does not disturb the next" "$tcpx" connection client 127.0.0.1 --port $port --timeout 20
    check "nor the server" wait $server
    port=$((port + 1))
else
    tap_skip "peers of another kind" "python3 is not installed"
fi

printf 'one secret\n' >"$TAP_WORK/one"
printf 'another secret\n' >"$TAP_WORK/another"
chmod 600 "$TAP_WORK/one" "$TAP_WORK/another"
if pair --secret "$TAP_WORK/one" -- --secret "$TAP_WORK/one" >"$TAP_WORK/said"; then
    tap_ok "a shared secret"
    SECONDS_EACH=2
    tap_run pair --secret "$TAP_WORK/one" -- --secret "$TAP_WORK/another"
    check "another secret on one side" both_failed
    check "the server says so" said_by server 'has another shared secret than this side'
    check "the client, too" said_by client 'the two sides have different shared secrets'
    SECONDS_EACH=
elif grep -q 'needs libsodium' "$TAP_WORK/said"; then
    tap_skip "a shared secret" "libsodium is not installed"
else
    tap_fail "a shared secret" "$(cat "$TAP_WORK/said")"
fi

# --- somebody goes away --------------------------------------------------------------------------

many_accepted()
{
    [ "$(grep -c accepted "$TAP_WORK/server")" -gt 5 ]
}

# killed server|client: that one, in the middle of very many connections.
killed()
{
    PAIR_SERVER="env UCCL_TCPX_DEBUG=1 $tcpx connection server"
    PAIR_CLIENT="$tcpx connection client 127.0.0.1"
    pair_start -- --count 10000
    within 10 many_accepted || return 1
    victim=$server left=$client
    [ "$1" = server ] || victim=$client left=$server
    kill -KILL $victim
    took wait $left
    wait
    [ $status -eq 1 ] && [ $spent -le "$(limit 5000)" ]
}

check "the server is killed" killed server
check "the client says so" said_by client '^tcpx: .*(127\.0\.0\.1|lost|closed|reset|broke)'
check "the client is killed" killed client
check "the server says so" said_by server '^tcpx: .*(127\.0\.0\.1|lost|closed|reset|broke)'

# interrupted COMMAND...: after a second, which ends it at once; it would take 20.
interrupted()
{
    took timeout --preserve-status -s INT -k "$(limit 10)" 1 "$@"
    [ $status -ne 0 ] && [ $status -ne 137 ] && [ $spent -le "$(limit 4000)" ]
}

cp "$tcpx" "$TAP_WORK/tcpx" # so that its processes are known by their file
check "Ctrl-C while the server waits" interrupted \
    "$TAP_WORK/tcpx" connection server --port $port --timeout 20
check "Ctrl-C while the client waits" interrupted \
    "$TAP_WORK/tcpx" connection client 127.0.0.1 --port $port --timeout 20
check "the port is free then" pair --
check_fails "no process is left" sh -c "ls -l /proc/[0-9]*/exe 2>&1 | grep '$TAP_WORK/'"

# --- arguments -----------------------------------------------------------------------------------

# refused WORD...: with status 2 and one line that points to the help.
refused()
{
    took "$tcpx" connection "$@"
    [ $status -eq 2 ] && [ "$(wc -l <"$TAP_WORK/said")" -eq 1 ] &&
        grep -q "^tcpx connection: .*; 'tcpx connection --help' " "$TAP_WORK/said"
}

for words in "" "fly" "client" "server 0 1" "client h 0 1" "server x" "server --port 0" \
    "server --port 65536" "server --port" "server --timeout 0" "server --secret" "server --fly" \
    "client h --count 0" "client h --count 10001" "client h --count" "client h --count x" \
    "server --count -1"; do
    # shellcheck disable=SC2086
    check "arguments '$words'" refused $words
done

tap_end
