#!/bin/sh
# The run that others are compared with: a program of nccl-tests over all nodes of a list, one rank
# for each GPU, with the settings of NCCL that go with TCPX. A variable that is set stays as it is.
#
# usage: run_nccl_test_tcpx.sh [--dry-run] [--plugin tcpx|google|none] [ARGUMENT...]

root=$(cd "$(dirname "$0")" && pwd) || exit 1
google=/usr/local/tcpx/lib64

usage()
{
    cat <<'END'
usage: run_nccl_test_tcpx.sh [--dry-run] [--plugin tcpx|google|none] [ARGUMENT...]

  --dry-run         prints the command and does not run it
  --plugin tcpx     over the libnccl-net-tcpx.so of this folder, which must be the same on all nodes
  --plugin google   over the one of the same name in /usr/local/tcpx/lib64
  --plugin none     over NCCL's own sockets
  ARGUMENT...       of the program of nccl-tests; -b 8 -e 1G -f 2 -g 1

Variables:
  HOSTFILE          the list of nodes; scripts/node_ips/tcpx.txt
  GPUS              how many GPUs a node has; as many as this machine, at least 1
  NCCL_TESTS        the program, or the folder that nccl-tests was built in; all_reduce_perf
  MPIRUN            Open MPI's mpirun, with further options if there are any
  PLUGIN_DIR        where the plugin lies on the nodes; build, or /usr/local/tcpx/lib64

These go to all ranks, with another value where they are set here: NCCL_ALGO=Ring, NCCL_PROTO=Simple,
NCCL_P2P_NET_CHUNKSIZE=524288, NCCL_BUFFSIZE=8388608, NCCL_SOCKET_IFNAME=eth0 (where this machine has
it), and what the plugin needs; for Google's on an A3 High machine (208 CPUs) also the CPUs of its
threads, NCCL_GPUDIRECTTCPX_TX_BINDINGS and NCCL_GPUDIRECTTCPX_RX_BINDINGS. What else begins with NCCL_ or UCCL_TCPX_ here goes with them.
END
}

wrong()
{
    echo "run_nccl_test_tcpx.sh: $1; 'run_nccl_test_tcpx.sh --help' shows what is possible" >&2
    exit 2
}

missing()
{
    echo "run_nccl_test_tcpx.sh: $1" >&2
    exit 1
}

# --- arguments -----------------------------------------------------------------------------------

dry=
plugin=tcpx
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h)
        usage
        exit 0
        ;;
    --dry-run) dry=yes ;;
    --plugin)
        [ $# -gt 1 ] || wrong "tcpx, google or none is missing behind '--plugin'"
        plugin=$2
        shift
        ;;
    *) break ;;
    esac
    shift
done
case $plugin in
tcpx | google | none) ;;
*) wrong "--plugin is tcpx, google or none, not '$plugin'" ;;
esac
[ $# -gt 0 ] || set -- -b 8 -e 1G -f 2 -g 1

# --- the nodes -----------------------------------------------------------------------------------

count_gpus()
{
    count=0
    for device in /dev/nvidia[0-9]*; do
        if [ -e "$device" ]; then
            count=$((count + 1))
        fi
    done
    echo $((count > 0 ? count : 1))
}

# The list as mpirun's -H has it, a:8,b:8. A line of two words is no address, so it is refused.
host_list()
{
    awk -v gpus="$GPUS" '
        { sub(/#.*/, "") }
        NF > 1 { bad = NR; exit }
        NF == 1 { list = list (list != "" ? "," : "") $1 ":" gpus }
        END { if (bad) print "line " bad; else print list; exit bad != 0 }' <"$HOSTFILE"
}

HOSTFILE=${HOSTFILE:-$root/scripts/node_ips/tcpx.txt}
GPUS=${GPUS:-$(count_gpus)}
case $GPUS in
*[!0-9]* | 0*) missing "GPUS=$GPUS is not a number of GPUs, 1 or more" ;;
esac
[ -r "$HOSTFILE" ] || missing "the list of nodes $HOSTFILE cannot be read (HOSTFILE says where it is)"
hosts=$(host_list) ||
    missing "$HOSTFILE, $hosts: one address or name is expected, and nothing else"
[ -n "$hosts" ] || missing "there is no node in $HOSTFILE: one address or name a line is expected"
nodes=$(echo "$hosts" | tr ',' '\n' | wc -l)

# --- the programs --------------------------------------------------------------------------------

MPIRUN=${MPIRUN:-mpirun}
program=${NCCL_TESTS:-all_reduce_perf}
if [ -d "$program" ]; then
    for folder in "$program/build" "$program"; do
        if [ -x "$folder/all_reduce_perf" ]; then
            program=$folder/all_reduce_perf
            break
        fi
    done
fi
if [ -z "$dry" ]; then
    command -v "${MPIRUN%% *}" >/dev/null ||
        missing "there is no ${MPIRUN%% *} (Debian: openmpi-bin; MPIRUN says where it is)"
    if [ -d "$program" ] || ! command -v "$program" >/dev/null; then
        missing "there is no program of nccl-tests at $program (NCCL_TESTS says where it is)"
    fi
fi

# --- the environment -----------------------------------------------------------------------------

passed=' ' # the latest first, since the command is put together from its end

# provide NAME VALUE: to all ranks, unless it is set.
provide()
{
    printenv "$1" >/dev/null || export "$1=$2"
    passed=" $1$passed"
}

case $plugin in
tcpx) folder=${PLUGIN_DIR:-$root/build} ;;
google) folder=${PLUGIN_DIR:-$google} ;;
none) folder= ;;
esac
if [ -z "$dry" ] && [ -n "$folder" ] && [ ! -e "$folder/libnccl-net-tcpx.so" ]; then
    missing "there is no plugin at $folder/libnccl-net-tcpx.so (PLUGIN_DIR says where it is)"
fi

provide NCCL_ALGO Ring
provide NCCL_PROTO Simple
provide NCCL_P2P_NET_CHUNKSIZE 524288
provide NCCL_BUFFSIZE 8388608
if [ -e /sys/class/net/eth0 ]; then
    provide NCCL_SOCKET_IFNAME eth0
fi
# NCCL before 2.21 takes the name only, and finds the file by LD_LIBRARY_PATH; newer ones do, too.
if [ -n "$folder" ]; then
    LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
    provide NCCL_NET_PLUGIN tcpx
fi
case $plugin in
tcpx) provide NCCL_NET TCPX ;;
google)
    provide NCCL_GPUDIRECTTCPX_SOCKET_IFNAME eth1,eth2,eth3,eth4
    provide NCCL_GPUDIRECTTCPX_CTRL_DEV eth0
    provide NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX /run/tcpx
    provide NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT 1
    provide NCCL_NSOCKS_PERTHREAD 4
    provide NCCL_SOCKET_NTHREADS 1
    provide NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS 500000
    provide NCCL_DYNAMIC_CHUNK_SIZE 524288
    provide NCCL_CROSS_NIC 0
    provide NCCL_NET_GDR_LEVEL PIX
    provide NCCL_P2P_PXN_LEVEL 0
    # The CPUs of the threads that send and receive, near their NIC, on an A3 High machine.
    if [ "$(getconf _NPROCESSORS_CONF)" = 208 ]; then
        provide NCCL_GPUDIRECTTCPX_TX_BINDINGS \
            'eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177'
        provide NCCL_GPUDIRECTTCPX_RX_BINDINGS \
            'eth1:22-35,126-139;eth2:22-35,126-139;eth3:74-87,178-191;eth4:74-87,178-191'
    fi
    ;;
none) provide NCCL_NET Socket ;;
esac
for name in $(env | sed -n -E 's/^((NCCL|UCCL_TCPX)_[A-Za-z0-9_]*)=.*/\1/p' | sort); do
    case $passed in
    *" $name "*) ;;
    *) [ "$name" = NCCL_TESTS ] || passed=" $name$passed" ;;
    esac
done

# --- the command ---------------------------------------------------------------------------------

# show WORD...: on one line, so that it can be pasted into a shell.
show()
{
    line=
    for word in "$@"; do
        case $word in
        '' | *[!A-Za-z0-9_./:=,+@%-]*)
            word=\'$(printf '%s\n' "$word" | sed "s/'/'\\\\''/g")\'
            ;;
        esac
        line=${line:+$line }$word
    done
    printf '%s\n' "$line"
}

set -- "$program" "$@"
[ -z "$folder" ] || set -- -x "LD_LIBRARY_PATH=$LD_LIBRARY_PATH" "$@"
for name in $passed; do
    set -- -x "$name=$(printenv "$name")" "$@"
done
# Words on purpose: mpirun may have options of its own.
# shellcheck disable=SC2086
set -- $MPIRUN -np $((nodes * GPUS)) -H "$hosts" --bind-to none "$@"
show "$@"
[ -z "$dry" ] || exit 0
exec "$@"
