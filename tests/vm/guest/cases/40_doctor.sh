# What tcpx doctor and tcpx devices say of a NIC that can do all, and of what it lacks when one thing
# after the other is taken away: that one is the reason, and no other.

export NCCL_SOCKET_IFNAME=dm0 UCCL_TCPX_GPU=host
unset UCCL_TCPX_DEVMEM

# findings: of the network, one on a line: level, name, text, and advice behind "->".
findings()
{
    awk '
        /^[a-zA-Z]/ { inside = $0 == "network" }
        inside && /^  (ok|note|PROBLEM) / { printf "%s", line; line = "\n" $0; next }
        inside { line = line " " $0 }
        END { print line }' "$TAP_WORK/doctor" | tr -s ' '
}

# doctor [COMMAND...]: runs it, by a command such as su. Its findings are printed, and its status kept.
doctor()
{
    doctor_status=0
    "${@:-sh}" -c "timeout 60 tcpx doctor --quick" >"$TAP_WORK/doctor" 2>&1 || doctor_status=$?
    findings
    return $doctor_status
}

# lacks NAME WHAT REGEX COMMAND...: the finding WHAT is a note on /REGEX/, and no other one; "": none
# is. The verdict begins with $verdict and names it. With on it is a problem.
lacks()
{
    lacks_name=$1 lacks_what=$2 lacks_regex=$3
    shift 3
    UCCL_TCPX_DEVMEM=auto
    export UCCL_TCPX_DEVMEM
    check_output "$lacks_name: the verdict" "^ note dm0 devmem $verdict: .*$lacks_regex.* -> ." "$@"
    check "$lacks_name: nothing else is noted" only_note "$lacks_what" "$lacks_regex"
    UCCL_TCPX_DEVMEM=on
    check_fails_output "$lacks_name: with on" \
        "^ PROBLEM dm0 devmem $verdict: .*$lacks_regex.* -> ." "$@"
}

# only_note WHAT REGEX: of header split, privilege, steering and queues, in this order.
only_note()
{
    findings | grep -E '^ (ok|note|PROBLEM) dm0 (header split|privilege|steering|queues) ' >"$TAP_WORK/needs"
    cat "$TAP_WORK/needs"
    for only_need in 'header split' privilege steering queues; do
        read -r only_line || return 1
        if [ "$only_need" = "$1" ]; then
            echo "$only_line" | grep -Eq "^note dm0 $only_need .*$2.* -> ." || return 1
        else
            echo "$only_line" | grep -Eq "^ok dm0 $only_need " || return 1
        fi
    done <"$TAP_WORK/needs"
}

# devices [COMMAND...]: as doctor.
devices()
{
    "${@:-sh}" -c "tcpx devices" | grep '^    device memory '
}

if can_send; then
    all='receives into GPU memory and sends from it'
    verdict='sends from GPU memory, but does not receive into it'
    line='receive and send'
    less='send only'
else
    all='receives into GPU memory, but does not send from it: the kernel cannot send'
    verdict='not used'
    line='receive only: the kernel cannot send from device memory'
    less='no'
fi

# --- all of it is there -----------------------------------------------------------------------------

check_output "all is there" "^ (ok|note) dm0 devmem $all" doctor
check "every need is met" only_note '' ''
check_output "free queues are counted" '^ ok dm0 queues 3 of 4 receive queues are free' findings
check_output "devices says so" " $line\$" devices
check_output "for scripts, too" '"devmem_receive": true, "devmem_send": (true|false), "devmem_reason": "' \
    tcpx devices --json

nictool split dm0 off
check_output "header split is off, and that is no hindrance" \
    '^ ok dm0 header split tcp-data-split is off: tcpx switches it on' doctor
also "the verdict is the same" 'dm0 devmem .*receives into GPU memory'
nothing_changed()
{
    doctor >/dev/null && [ -z "$(nictool bound dm0)" ] && [ -z "$(nictool rules dm0)" ] &&
        findings | grep -q '^ ok dm0 header split tcp-data-split is off'
}
check "and nothing is changed by asking" nothing_changed
nictool split dm0 on
if can_send; then
    nictool hds dm0 128
    check_output "so is a threshold" \
        '^ ok dm0 header split tcp-data-split is on, with an hds-thresh of 128: tcpx makes' doctor
    nictool hds dm0 0
else
    tap_skip "so is a threshold" "this kernel has none"
fi

# --- one thing is missing ---------------------------------------------------------------------------

lacks "no privilege" privilege 'CAP_NET_ADMIN is missing' doctor su nobody
UCCL_TCPX_DEVMEM=auto
check_output "no privilege: devices" " $less: CAP_NET_ADMIN is missing\$" devices su nobody

nictool ntuple dm0 off
lacks "no steering" steering 'ntuple filters are off' doctor
check_output "no steering: devices" " $less: ntuple filters are off\$" devices
nictool ntuple dm0 on

nictool rss dm0 equal 1
hold 1 2 3
lacks "no queue" queues 'no receive queue is free' doctor
let_go
nictool rss dm0 equal 4

mv /dev/udmabuf /dev/udmabuf.away
verdict='not used' less=no
lacks "no dma-buf" '' '/dev/udmabuf' doctor
check_output "no dma-buf: devices" " $less: .*/dev/udmabuf" devices
mv /dev/udmabuf.away /dev/udmabuf

# --- it is not wanted -------------------------------------------------------------------------------

UCCL_TCPX_DEVMEM=off
check_output "it is switched off" '^ ok dm0 devmem not used: UCCL_TCPX_DEVMEM=off' doctor
check_output "and devices says so" ' no: UCCL_TCPX_DEVMEM=off$' devices
