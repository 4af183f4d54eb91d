# What has to be there for devmem TCP, taken away one by one: with on that is an error, with auto it
# goes without, and both name it.

# shellcheck disable=SC2086 # words on purpose
. /cases/ends.inc

small="--size 1M --iters 1"

# refused NAME REGEX [WITHOUT]: both ways of it.
refused()
{
    UCCL_TCPX_DEVMEM=on
    check_fails_output "$1" "$2" transfer $small
    UCCL_TCPX_DEVMEM=auto
    verifies "$1: ${3:-it goes without}" $small
}

# refused_in_words NAME REGEX
refused_in_words()
{
    refused "$@"
    also "$1: and says why" "without devmem TCP: .*$2"
}

verifies "all is there" $small

mv /dev/udmabuf /dev/udmabuf.away
refused_in_words "no dma-buf" 'needs /dev/udmabuf'
mv /dev/udmabuf.away /dev/udmabuf

nictool ntuple dm0 off
refused_in_words "no steering" 'dm0 does not steer connections'
nictool ntuple dm0 on

if can_send; then
    lack='no checksums' lack_regex='does not compute checksums itself'
    nictool checksums dm0 off
    in_peer nictool checksums dm1 off
else
    lack='a kernel that only receives' lack_regex='this kernel cannot send from device memory'
fi
refused "$lack" "$lack_regex" "it is sent from host memory"
nictool checksums dm0 on
in_peer nictool checksums dm1 on

# The library has headers split off by itself.
nictool split dm0 off
UCCL_TCPX_DEVMEM=$WANTED
verifies "header split is switched on" $small
if can_send; then
    nictool hds dm0 128
    verifies "from the first byte on" $small
else
    tap_skip "from the first byte on" "this kernel has no threshold"
fi

# An ordinary user on the receiving host; the other one wants nothing.
SERVER_SHELL='su nobody' CLIENT_ENV=UCCL_TCPX_DEVMEM=auto
refused_in_words "no privilege" "lacks CAP_NET_ADMIN"
if can_send; then
    also "sending takes none" 'dm0 sends to .* by devmem TCP'
else
    tap_skip "sending takes none" "this kernel only receives"
fi

SERVER_SHELL='' CLIENT_ENV=''
UCCL_TCPX_DEVMEM=off
verifies "it is switched off" $small
cat "$TAP_WORK/server" "$TAP_WORK/client" >"$TAP_WORK/said"
check_fails "and nothing is said of it" grep 'devmem TCP' "$TAP_WORK/said"
