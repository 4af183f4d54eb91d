# The original tests by their names, from the folder that make was run in: tests/test_tcpx_transfer
# and the others, run_tcpx_test.sh, and the run of nccl-tests that they are compared with.
. tests/tap.sh
. tests/pair.sh

port=$((18500 + $$ % 1400)) # below those that the kernel gives to clients
program=$(cd "$BUILD" && pwd)/tcpx
export UCCL_TCPX_GPU=host

# A folder like this one with this run's program in it, since only the plain build has the names.
tree=$TAP_WORK/tree
mkdir -p "$tree/include" "$tree/tests/faults" "$tree/tests/sim" "$tree/bench" "$tree/python" "$tree/scripts"
cp Makefile run_tcpx_test.sh run_nccl_test_tcpx.sh "$tree"
cp include/tcpx.h "$tree/include"
cp tests/tests.mk "$tree/tests"
cp tests/faults/faults.mk "$tree/tests/faults"
cp tests/sim/sim.mk "$tree/tests/sim"
cp bench/bench.mk "$tree/bench"
cp python/python.mk "$tree/python"
cp -r scripts/release.mk scripts/node_ips "$tree/scripts"
ln -s "${program%/tcpx}" "$tree/build"

# in_tree COMMAND...: there.
in_tree()
{
    (cd "$tree" && "$@")
}

# make_there TARGET...: with a program that is as it should be.
make_there()
{
    in_tree env -u BUILD -u SANITIZE make --no-print-directory CC="${CC:-cc}" -o build/tcpx "$@"
}

check_fails_output "without a build" "tests/test_connection is not there: 'make'" \
    in_tree ./run_tcpx_test.sh connection server
check "make elsewhere" make_there BUILD=elsewhere -o elsewhere/tcpx test_connection
check_fails "makes no names" test -e "$tree/tests/test_connection"
check "make with a sanitizer" make_there SANITIZE=address -o build/address/tcpx test_connection
check_fails "makes none, either" test -e "$tree/tests/test_connection"
check "make by the old names" make_there test_tcpx_transfer test_connection test_tcpx_perf
for name in test_tcpx_transfer test_connection test_tcpx_perf; do
    check "tests/$name" test -x "$tree/tests/$name"
    check_output "is the program" "^usage: tcpx ${name##*_}" in_tree "tests/$name" --help
    check "and not for git" grep -qx "/tests/$name" .gitignore
done

# Its unit tests, where this machine has built them: without cmocka there are none.
for name in test_rx_cmsg_parser test_rx_descriptor; do
    if [ -x "$BUILD/tests/unit/$name" ]; then
        check "make $name" make_there -o "build/tests/unit/$name" "$name"
        check "tests/$name" test -x "$tree/tests/$name"
        check "and not for git" grep -qx "/tests/$name" .gitignore
    else
        tap_skip "make $name" "there is no cmocka"
    fi
done

# --- two ends ------------------------------------------------------------------------------------

# pair SERVER_COMMAND -- CLIENT_COMMAND, as pair_run: both in the tree.
pair()
{
    PAIR_SERVER=in_tree
    PAIR_CLIENT=in_tree
    pair_run "$@"
}

export NCCL_SOCKET_IFNAME=lo UCCL_TCPX_UNPACK_IMPL=d2d
for test in transfer connection; do
    name=test_tcpx_$test
    [ $test = transfer ] || name=test_$test
    pair_golden_$test
    check "$name" pair "./tests/$name" server -- "./tests/$name" client 127.0.0.1
    check "the server's lines" pair_said server
    check "the client's lines" pair_said client
    check "run_tcpx_test.sh $test" pair ./run_tcpx_test.sh $test server -- \
        ./run_tcpx_test.sh $test 127.0.0.1
    check "the server's lines, too" pair_said server
    check "the client's lines, too" pair_said client
done
check "run_tcpx_test.sh perf" pair ./run_tcpx_test.sh perf server -- \
    ./run_tcpx_test.sh perf 127.0.0.1 --size 1M --iters 3
check "test_tcpx_perf" pair ./tests/test_tcpx_perf server 0 -- \
    ./tests/test_tcpx_perf client 127.0.0.1 0 --size 1M --iters 3
check "options go to the program" pair ./run_tcpx_test.sh connection server -- \
    ./run_tcpx_test.sh connection 127.0.0.1 --count 7
check "as they are" grep -q '^7 connections made: PASSED$' "$TAP_WORK/client"
check "from another folder" sh -c "cd / && '$tree/run_tcpx_test.sh' transfer --help"

# --- the environment of run_tcpx_test.sh ---------------------------------------------------------

# environment COMMAND...: a run of it that ends at once, since nobody is there.
environment()
{
    in_tree "$@" ./run_tcpx_test.sh connection 127.0.0.1 --port 1 --timeout 1
}

check_status "the status is the program's" 1 environment env
also "a variable that is set stays" '^NCCL_SOCKET_IFNAME=lo \(was set\)$'
also "one that is not is set" '^NCCL_P2P_NET_CHUNKSIZE=524288$'
check_fails_output "also this one" '^NCCL_P2P_NET_CHUNKSIZE=1M \(was set\)$' \
    environment env NCCL_P2P_NET_CHUNKSIZE=1M
check_fails_output "the program reads it" '^tcpx: NCCL_P2P_NET_CHUNKSIZE=x ' \
    environment env NCCL_P2P_NET_CHUNKSIZE=x
check_status "status 2 for the program's arguments" 2 in_tree ./run_tcpx_test.sh connection 127.0.0.1 --port x

# where_there FILE VARIABLE: it is set where this machine has what it is for, and only there.
where_there()
{
    also="also"
    [ -e "$1" ] || also=also_not
    $also "${1#/sys/class/net/} where it is there" "^$2="
}

tap_run environment env -u NCCL_SOCKET_IFNAME
where_there /sys/class/net/eth0 NCCL_SOCKET_IFNAME
where_there /run/tcpx NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX

# A machine with Google's plugin: its service's folder and its interfaces, and CPUs as a program in
# the place of getconf counts them.
mkdir -p "$TAP_WORK/bin" "$TAP_WORK/net"
printf '#!/bin/sh\necho 208\n' >"$TAP_WORK/bin/getconf"
chmod +x "$TAP_WORK/bin/getconf"
for name in eth0 eth1 eth2 eth3 eth4; do
    : >"$TAP_WORK/net/$name"
done
a3="mount -t tmpfs tmpfs /run && mkdir /run/tcpx && mount --bind '$TAP_WORK/net' /sys/class/net"
if unshare -m sh -c "$a3" 2>/dev/null; then
    tap_run env -u NCCL_SOCKET_IFNAME PATH="$TAP_WORK/bin:$PATH" unshare -m sh -c "$a3 &&
        '$tree/run_tcpx_test.sh' connection 127.0.0.1 --port 1 --timeout 1"
    for setting in UNIX_CLIENT_PREFIX=/run/tcpx CTRL_DEV=eth0 PROGRAM_FLOW_STEERING_WAIT_MICROS=500000 \
        'TX_BINDINGS=eth1:8-21,112-125;.*;eth4:60-73,164-177' 'RX_BINDINGS=eth1:22-35,126-139;.*;eth4:74-87,178-191'; do
        also "where Google's plugin is: ${setting%%=*}" "^NCCL_GPUDIRECTTCPX_$setting\$"
    done
    also "sockets for it" '^NCCL_NSOCKS_PERTHREAD=4$'
    also "and threads" '^NCCL_SOCKET_NTHREADS=1$'
    tap_run env -u NCCL_SOCKET_IFNAME unshare -m sh -c "$a3 &&
        '$tree/run_tcpx_test.sh' connection 127.0.0.1 --port 1 --timeout 1"
    also_not "no CPUs of another machine" '_BINDINGS='
else
    tap_skip "where Google's plugin is" "mount namespaces need root and unshare"
fi

# The interfaces of other machines, in a network namespace where that is possible.
others='mount -t sysfs sysfs /sys && ip link set lo up && ip link add eth1 type veth peer name eth3'
if unshare -n -m sh -c "$others" 2>/dev/null; then
    tap_run env -u NCCL_SOCKET_IFNAME unshare -n -m sh -c "$others &&
        '$tree/run_tcpx_test.sh' connection 127.0.0.1 --port 1 --timeout 1"
    also "the data interfaces that are there" '^NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=eth1,eth3$'
    also_not "and none that is not" '^NCCL_SOCKET_IFNAME='
else
    tap_skip "the data interfaces that are there" "network namespaces need root, unshare and ip"
fi

for words in "" "fly" "fly server" "transfer" "transfer --port"; do
    # shellcheck disable=SC2086
    check_status "run_tcpx_test.sh $words: status 2" 2 in_tree ./run_tcpx_test.sh $words
    also "in words" '^run_tcpx_test.sh: .*--help'
done
check_output "run_tcpx_test.sh --help" '^usage: run_tcpx_test.sh ' in_tree ./run_tcpx_test.sh --help

# --- nccl-tests ----------------------------------------------------------------------------------

# Whatever the environment has of it.
nccl()
{
    in_tree env -i PATH="$PATH" "$@"
}

run=./run_nccl_test_tcpx.sh
printf '# ours\n\n192.0.2.11\n  192.0.2.12 # the second\n' >"$TAP_WORK/hosts"
hosts=HOSTFILE=$TAP_WORK/hosts
plain='-x NCCL_ALGO=Ring -x NCCL_PROTO=Simple -x NCCL_P2P_NET_CHUNKSIZE=524288 -x NCCL_BUFFSIZE=8388608 '
check_output "the command" "^mpirun -np 16 -H 192\.0\.2\.11:8,192\.0\.2\.12:8 .*$plain" \
    nccl "$hosts" GPUS=8 $run --dry-run
check_output "over our plugin" \
    "-x NCCL_NET_PLUGIN=tcpx -x NCCL_NET=TCPX -x LD_LIBRARY_PATH=$tree/build all_reduce_perf " \
    nccl "$hosts" $run --dry-run
check_output "over Google's" \
    '-x NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=/run/tcpx .*LD_LIBRARY_PATH=/usr/local/tcpx/lib64 ' \
    nccl "$hosts" $run --dry-run --plugin google
also "which needs this, too" '-x NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS=500000 '
check_output "the CPUs of its threads, on the machine they are for" \
    "-x 'NCCL_GPUDIRECTTCPX_TX_BINDINGS=eth1:8-21,112-125;[^ ]*' -x 'NCCL_GPUDIRECTTCPX_RX_BINDINGS=eth1:22-35,126-139;" \
    nccl "$hosts" PATH="$TAP_WORK/bin:$PATH" $run --dry-run --plugin google
check_output "over none" '-x NCCL_NET=Socket all_reduce_perf -b 8 -e 1G -f 2 -g 1$' \
    nccl "$hosts" $run --dry-run --plugin none
check_output "what is set goes before" '-x NCCL_ALGO=Tree .*-x NCCL_DEBUG=INFO .*-x UCCL_TCPX_SOCKETS=3 ' \
    nccl "$hosts" NCCL_ALGO=Tree NCCL_DEBUG=INFO UCCL_TCPX_SOCKETS=3 $run --dry-run
check_output "arguments of the program" "/x/sendrecv_perf -b 'a b'\$" \
    nccl "$hosts" NCCL_TESTS=/x/sendrecv_perf $run --dry-run -b 'a b'

# With a program that says how it was called in the place of mpirun.
printf '#!/bin/sh\necho "mpirun: $#: $*"\nexit 7\n' >"$TAP_WORK/mpirun"
printf '#!/bin/sh\n' >"$TAP_WORK/all_reduce_perf"
chmod +x "$TAP_WORK/mpirun" "$TAP_WORK/all_reduce_perf"
check_status "the status is mpirun's" 7 nccl "$hosts" MPIRUN="$TAP_WORK/mpirun --x" NCCL_TESTS="$TAP_WORK" $run
also "which was called" '^mpirun: [0-9]+: --x -np 2 .*/all_reduce_perf -b 8 -e 1G'

check_fails_output "no node" 'there is no node in .*scripts/node_ips/tcpx.txt' nccl $run --dry-run
check_fails_output "no list of nodes" 'list of nodes /none cannot be read' \
    nccl HOSTFILE=/none $run --dry-run
printf '192.0.2.11\n192.0.2.12 slots=8\n' >"$TAP_WORK/bad"
check_fails_output "a list that is none" "$TAP_WORK/bad, line 2: one address" \
    nccl HOSTFILE="$TAP_WORK/bad" $run --dry-run
check_fails_output "no mpirun" 'there is no nowhere/mpirun' nccl "$hosts" MPIRUN=nowhere/mpirun $run
check_fails_output "no nccl-tests" 'no program of nccl-tests at /none' \
    nccl "$hosts" MPIRUN="$TAP_WORK/mpirun" NCCL_TESTS=/none $run
check_fails_output "no plugin" 'there is no plugin at /none/libnccl-net-tcpx.so' \
    nccl "$hosts" MPIRUN="$TAP_WORK/mpirun" NCCL_TESTS="$TAP_WORK" PLUGIN_DIR=/none $run
check_fails_output "no number of GPUs" 'GPUS=x is not a number' nccl "$hosts" GPUS=x $run --dry-run
check_status "a plugin that is not there gives status 2" 2 nccl "$hosts" $run --plugin fly
check_output "run_nccl_test_tcpx.sh --help" '^usage: run_nccl_test_tcpx.sh ' nccl $run --help

# --- the end -------------------------------------------------------------------------------------

check "make clean" make_there clean
check_fails "removes the names" sh -c "ls '$tree'/tests/test_*"
check "and not what they stood for" test -x "$program"

tap_end
