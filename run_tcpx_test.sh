#!/bin/sh
# Runs one end of a test by its old name, with the environment that the test had on the machines it
# was written for, as far as this machine is one of them. A variable that is set stays as it is.
# Builds nothing: `make` does.
#
# usage: run_tcpx_test.sh transfer|connection|perf server|SERVER [OPTION...]

root=$(cd "$(dirname "$0")" && pwd) || exit 1

usage()
{
    cat <<'END'
usage: run_tcpx_test.sh transfer|connection|perf server|SERVER [OPTION...]

  transfer     one message from GPU to GPU, checked
  connection   the handshake alone
  perf         how fast
  server       this machine waits for the other
  SERVER       the address of the machine that does; this one is the client
  OPTION...    goes to the program as it is: the number of a GPU, --port N, --timeout S, ...;
               'tcpx transfer --help' and the others have them all

Run it with 'server' on one machine, and with that machine's address on the other.

It sets what is not set, prints that, and leaves out what this machine has no use for:
  NCCL_SOCKET_IFNAME                          eth0, where it is there
  NCCL_GPUDIRECTTCPX_SOCKET_IFNAME            those of eth1, eth2, eth3 and eth4 that are there
  NCCL_P2P_NET_CHUNKSIZE                      524288
For Google's plugin, where /run/tcpx is there, the folder of the service that it needs:
  NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX       /run/tcpx
  NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT   1
  NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS  500000
  NCCL_NSOCKS_PERTHREAD                       4
  NCCL_SOCKET_NTHREADS                        1
  NCCL_GPUDIRECTTCPX_CTRL_DEV                 eth0, where it is there
and on an A3 High machine, which has eth1 to eth4 and 208 CPUs, the CPUs of the plugin's threads:
  NCCL_GPUDIRECTTCPX_TX_BINDINGS              eth1:8-21,112-125;eth2:... for sending
  NCCL_GPUDIRECTTCPX_RX_BINDINGS              eth1:22-35,126-139;eth2:... for receiving
END
}

wrong()
{
    echo "run_tcpx_test.sh: $1; 'run_tcpx_test.sh --help' shows what is possible" >&2
    exit 2
}

has_interface()
{
    [ -e "/sys/class/net/$1" ]
}

# provide NAME VALUE: unless it is set.
provide()
{
    if printenv "$1" >/dev/null; then
        echo "$1=$(printenv "$1") (was set)"
    else
        export "$1=$2"
        echo "$1=$2"
    fi
}

data_interfaces()
{
    list=
    for name in eth1 eth2 eth3 eth4; do
        if has_interface "$name"; then
            list=${list:+$list,}$name
        fi
    done
    echo "$list"
}

environment()
{
    if has_interface eth0; then
        provide NCCL_SOCKET_IFNAME eth0
    fi
    data=$(data_interfaces)
    if [ -n "$data" ]; then
        provide NCCL_GPUDIRECTTCPX_SOCKET_IFNAME "$data"
    fi
    provide NCCL_P2P_NET_CHUNKSIZE 524288
    if [ -d /run/tcpx ]; then
        provide NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX /run/tcpx
        provide NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT 1
        provide NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS 500000
        provide NCCL_NSOCKS_PERTHREAD 4
        provide NCCL_SOCKET_NTHREADS 1
        if has_interface eth0; then
            provide NCCL_GPUDIRECTTCPX_CTRL_DEV eth0
        fi
        # Sending and receiving threads have different CPUs, near their NIC.
        if [ "$data" = eth1,eth2,eth3,eth4 ] && [ "$(getconf _NPROCESSORS_CONF)" = 208 ]; then
            provide NCCL_GPUDIRECTTCPX_TX_BINDINGS \
                'eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177'
            provide NCCL_GPUDIRECTTCPX_RX_BINDINGS \
                'eth1:22-35,126-139;eth2:22-35,126-139;eth3:74-87,178-191;eth4:74-87,178-191'
        fi
    fi
}

for argument in "$@"; do
    case $argument in
    --help | -h)
        usage
        exit 0
        ;;
    esac
done

case ${1-} in
transfer) program=test_tcpx_transfer ;;
connection) program=test_connection ;;
perf) program=test_tcpx_perf ;;
'') wrong "transfer, connection or perf is missing" ;;
*) wrong "transfer, connection or perf is expected, not '$1'" ;;
esac
case ${2-} in
'') wrong "server or the server's address is missing behind '$1'" ;;
-*) wrong "server or the server's address is expected before '$2'" ;;
esac
end=$2
shift 2
if [ "$end" = server ]; then
    set -- server "$@"
else
    set -- client "$end" "$@"
fi

program=$root/tests/$program
if [ ! -x "$program" ]; then
    echo "run_tcpx_test.sh: $program is not there: 'make' in $root builds it" >&2
    exit 1
fi
environment
echo "$program $*"
exec "$program" "$@"
