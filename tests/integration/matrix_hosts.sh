# tcpx matrix between three hosts (tests/net/netns.sh), reached by a stand-in for ssh: what the links can do is
# measured, the slow one of them is named, and a host that is cut off does not keep the others from being measured.
. tests/tap.sh
. tests/net/netns.sh

tcpx=$(cd "$BUILD" && pwd)/tcpx
export UCCL_TCPX_GPU=host

netns_start a b c
for pair in a:b:1:2:400m a:c:1:3:400m b:c:2:3:20m; do
    IFS=: read -r one other from to rate <<END
$pair
END
    check "a link from $one to $other" netns_veth "$one" "$other" "10.83.0.$from" "10.83.0.$to" "$rate"
done

# The last number of an address is that of the host.
cat >"$TAP_WORK/ssh" <<END
#!/bin/sh
case \$1 in 10.83.0.1) host=a ;; 10.83.0.2) host=b ;; 10.83.0.3) host=c ;;
*) echo "ssh: connect to host \$1 port 22: Connection timed out" >&2; exit 255 ;; esac
eval "exec ip netns exec '$NETNS_PREFIX'\$host \$2"
END
chmod +x "$TAP_WORK/ssh"

# matrix HOSTS ARGUMENT...
matrix()
{
    matrix_hosts=$1
    shift
    netns_run a "$tcpx" matrix --hosts "$matrix_hosts" --ssh "$TAP_WORK/ssh" --meet 10.83.0.1 --port 6310 \
        --size 1M --iters 2 --timeout "$(limit 10)" "$@"
}

check_output "three hosts" '^rank 2 +10\.83\.0\.3, ' matrix 10.83.0.1,10.83.0.2,10.83.0.3 --json "$TAP_WORK/json"
also_not "all of them were measured" '^FAILED'
also "the slow link is named, one way" '^slow: alone: the link from rank 2 \(10\.83\.0\.3\) to rank 1 \(10\.83\.0\.2\) is slow'
also "and the other" '^slow: alone: the link from rank 1 \(10\.83\.0\.2\) to rank 2 \(10\.83\.0\.3\) is slow'
also_not "and no host" '^slow: alone: (rank|host)'
# 400 and 20 Mbit/s are 0.05 and 0.0025 GB/s. A link has a burst at first, so a few reads can be faster by a part.
with_program python3 check "no rate is far above the link's" python3 -c '
import json, sys
rates = json.load(open(sys.argv[1]))["alone"]
assert all(0 < rates[0][k] < 0.075 and 0 < rates[k][0] < 0.075 for k in (1, 2)), rates
assert all(0 < rate < 0.005 for rate in (rates[1][2], rates[2][1])), rates
' "$TAP_WORK/json"
check_fails_output "a host that does not answer ssh" \
    '^FAILED: rank 1 \(10\.83\.0\.9\): ssh: connect to host 10\.83\.0\.9 port 22: Connection timed out' \
    matrix 10.83.0.1,10.83.0.9,10.83.0.3
check "a link is cut" netns_run b sh -c 'for device in /sys/class/net/*; do
    case ${device##*/} in lo) ;; *) ip link set "${device##*/}" down ;; esac; done'
check_fails_output "a host that cannot reach the coordinator" '^FAILED: rank 1 \(10\.83\.0\.2\): .*10\.83\.0\.1' \
    matrix 10.83.0.1,10.83.0.2,10.83.0.3 --timeout 2
also "the others are measured" '^ +2 +[0-9.]+ +- *$'

netns_end
