# tcpx transfer as two people run it: the lines that users of the original test look for, every kind
# of memory, plugin and way to unpack, and what they are told when something is wrong.
. tests/tap.sh
. tests/pair.sh

tcpx=$BUILD/tcpx
PAIR_COMMAND="$tcpx transfer"
port=$((20000 + $$ % 12000)) # below those that the kernel gives to clients
export NCCL_SOCKET_IFNAME=lo UCCL_TCPX_GPU=host

pair_golden_transfer
SERVER_ENV="UCCL_TCPX_DEBUG=1 UCCL_TCPX_UNPACK_IMPL=d2d"
CLIENT_ENV=UCCL_TCPX_DEBUG=1
check "with UCCL_TCPX_DEBUG=1" pair --
check "the server's lines" pair_said server
check "the client's lines" pair_said client
check "which plugin was loaded" grep -q '^\[TCPX\] Loading plugin: builtin$' "$TAP_WORK/server"

# Under its old name it says these without being asked.
SERVER_ENV=UCCL_TCPX_UNPACK_IMPL=d2d CLIENT_ENV=
ln -s "$(cd "$(dirname "$tcpx")" && pwd)/tcpx" "$TAP_WORK/test_tcpx_transfer"
PAIR_COMMAND=$TAP_WORK/test_tcpx_transfer
check "under its old name" pair --
check "the same lines" pair_said server
PAIR_COMMAND="$tcpx transfer"

SERVER_ENV= CLIENT_ENV=
check "without" pair --
check_output "the server has one line" '^received 23 bytes of GPU memory: PASSED$' cat "$TAP_WORK/server"
check_output "the client, too" '^sent 23 bytes of GPU memory: PASSED$' cat "$TAP_WORK/client"
check_output "the server says where it listens" \
    "^tcpx transfer server: listening on all addresses, port $((port - 1)); waiting for a client$" cat "$TAP_WORK/server"
also "and who came" '^tcpx transfer server: client 127\.0\.0\.1:[0-9]+$'
check_output "and no more" '^2$' sh -c "cat '$TAP_WORK/server' '$TAP_WORK/client' | grep -vc '^tcpx transfer server: '"

for way in d2d host kernel auto; do
    SERVER_ENV="UCCL_TCPX_UNPACK_IMPL=$way UCCL_TCPX_PAYLOAD_BYTES=1000003"
    CLIENT_ENV=UCCL_TCPX_PAYLOAD_BYTES=1000003
    check_output "1000003 bytes by $way" '^received 1000003 bytes of GPU' pair --
done
SERVER_ENV=UCCL_TCPX_DEBUG=1 CLIENT_ENV=
check_output "auto says which way it took" '^\[DEBUG\] auto: 1 receive\(s\), 23 bytes, unpacked by d2d$' pair --
for bytes in 1 4096 4194304; do
    SERVER_ENV=UCCL_TCPX_PAYLOAD_BYTES=$bytes CLIENT_ENV=$SERVER_ENV
    check_output "$bytes bytes" "^received $bytes bytes of GPU" pair --
done
SERVER_ENV=UCCL_TCPX_HOST_RECV_DEBUG=1 CLIENT_ENV=
check_output "into host memory" '^received 23 bytes of host' pair --
SERVER_ENV=UCCL_TCPX_HOST_GPUS=2 CLIENT_ENV=UCCL_TCPX_HOST_GPUS=2
check_output "to another GPU" '^received 23 bytes of GPU' pair 1 -- 1
SERVER_ENV=UCCL_TCPX_PLUGIN_PATH=$BUILD/libnccl-net-tcpx.so CLIENT_ENV=$SERVER_ENV
check_output "over our own plugin" '^received 23 bytes of host' pair --
cuda="UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH=$BUILD/tests/fakecuda"
if [ -e "$BUILD/tests/fakecuda/libcuda.so.1" ]; then
    for mode in cuda unpack; do
        SERVER_ENV="$cuda UCCL_TCPX_PLUGIN_PATH=$BUILD/libnccl-net-tcpx.so UCCL_TCPX_PLUGIN_MODE=$mode"
        CLIENT_ENV=$SERVER_ENV
        check_output "over our own plugin, mode $mode" '^received 23 bytes of GPU' pair --
    done
    SERVER_ENV="$cuda UCCL_TCPX_PLUGIN_PATH=$BUILD/tests/quirky_plugin/libquirky_v7.so"
    CLIENT_ENV=$SERVER_ENV
    check_output "over a plugin like Google's" '^received 23 bytes of GPU' pair --
fi

# Both sides are told what is wrong.
SERVER_ENV=UCCL_TCPX_PAYLOAD_BYTES=24 CLIENT_ENV=
check_fails_output "other payloads" 'the payload: 23 bytes here, 24 at ' pair --
check_output "on both sides" 'the payload: 24 bytes here, 23 at ' cat "$TAP_WORK/server"
SERVER_ENV=UCCL_TCPX_PLUGIN_PATH=$BUILD/libnccl-net-tcpx.so
check_fails_output "other plugins" 'transport: builtin here, TCPX at ' pair --
SERVER_ENV=
SECONDS_EACH=1
check_fails_output "a GPU that is not there" 'GPU 7' pair 7 --
SECONDS_EACH=
check_fails_output "nobody there" 'refused|no answer|not there' \
    "$tcpx" transfer client 127.0.0.1 --port 1 --timeout 1
check_fails_output "nobody comes" 'no peer came' "$tcpx" transfer server --once --port $port --timeout 1

# Without --once it serves one client after the other, also after one that has failed.
"$tcpx" transfer server --port $port --timeout 20 >"$TAP_WORK/server" 2>&1 &
server=$!
check "a server that stays" "$tcpx" transfer client 127.0.0.1 --port $port --timeout 20
check_fails_output "a client that is refused" 'the payload: 24 bytes here, 23 at ' \
    env UCCL_TCPX_PAYLOAD_BYTES=24 "$tcpx" transfer client 127.0.0.1 --port $port --timeout 20
check "the next one" "$tcpx" transfer client 127.0.0.1 --port $port --timeout 20
# Its last words may come after the client's.
check "it has said so of each" within 5 sh -c \
    "[ \"\$(grep -Ec '^tcpx transfer server: client 127.0.0.1:[0-9]+: (done|failed)$' '$TAP_WORK/server')\" -eq 3 ]"
# A shell has its background jobs ignore SIGINT.
kill -TERM $server
check_status "until it is ended" 143 wait $server
port=$((port + 1))
check_fails_output "two GPUs that do not meet" 'This port is that of GPU 3: .*both the same --port' \
    env UCCL_TCPX_HOST_GPUS=4 UCCL_TCPX_BOOTSTRAP_PORT_BASE=$port "$tcpx" transfer client 127.0.0.1 3 --timeout 1
check_fails_output "unless the port was given" 'not busy with another client\?$' \
    env UCCL_TCPX_HOST_GPUS=4 "$tcpx" transfer client 127.0.0.1 3 --port $port --timeout 1
check_status "a client does not serve" 2 "$tcpx" transfer client 127.0.0.1 --once
check_fails_output "a host that is none" 'nowhere\.invalid' \
    "$tcpx" transfer client nowhere.invalid --port $port --timeout 1
for words in "" "fly" "client" "server 0 1" "client h 0 1" "server x" "server --port 0" \
    "server --port" "server --timeout 0" "server --secret" "server --fly"; do
    # shellcheck disable=SC2086
    check_status "arguments '$words' give status 2" 2 "$tcpx" transfer $words
done

tap_end
