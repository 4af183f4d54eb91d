# The devices themselves, as the cases and the library rely on them: rules and their limit, the hash,
# queues that are taken, counters that survive, and what the kernel refuses.

# rule QUEUE PORT
rule()
{
    nictool rule-add dm0 "$1" tcp4 "$SENDER" - "$RECEIVER" "$2"
}

# fill N: as many rules.
fill()
{
    fill_port=6000
    while [ $fill_port -lt $((6000 + $1)) ]; do
        rule 1 $fill_port >/dev/null || return 1
        fill_port=$((fill_port + 1))
    done
}

# count N COMMAND...: that many lines.
count()
{
    count_wanted=$1
    shift
    "$@" >"$TAP_WORK/lines" || return 1
    [ "$(wc -l <"$TAP_WORK/lines")" -eq "$count_wanted" ] || { cat "$TAP_WORK/lines"; return 1; }
}

# --- rules
check_output "the first rule is at 0" '^0$' rule 3 7000
check_output "it is shown" "^0 queue 3 tcp4 $SENDER - $RECEIVER 7000$" nictool rules dm0
check_output "one with all of a flow" '^1$' \
    nictool rule-add dm0 2 tcp6 "$SENDER6" 40000 "$RECEIVER6" 7000
check_output "is shown, too" "^1 queue 2 tcp6 $SENDER6 40000 $RECEIVER6 7000$" nictool rules dm0
check "the first one goes" nictool rule-del dm0 0
check_output "its place is used again" '^0$' rule 3 7001
check_fails_output "a rule that is not there" 'No such file' nictool rule-del dm0 9
check_fails_output "a queue that is not there" 'Invalid argument' rule 4 7002
check "all rules go" nictool rule-del dm0 all
check "none is left" count 0 nictool rules dm0
check "256 rules" fill 256
check "are shown" count 256 nictool rules dm0
check_fails_output "one more" 'No space left' rule 1 7003
nictool rule-del dm0 all
set_parameter most_rules 3
check "three of three rules" fill 3
check_fails_output "and one more" 'No space left' rule 1 7004
nictool rule-del dm0 all
check "no rules on this device" nictool ntuple dm0 off
check_fails_output "then none is taken" 'not supported' rule 1 7005
check "rules again" nictool ntuple dm0 on

# --- the hash
check_output "the hash uses all queues" '^(0 1 2 3 ){15}0 1 2 3$' nictool rss dm0
check "two of them" nictool rss dm0 equal 2
check_output "only" '^(0 1 ){31}0 1$' nictool rss dm0

# --- queues
check "a queue is taken" hold 1
check_output "it is shown" '^queue 1$' nictool bound dm0
check_output "its pages are a dma-buf's" 'dmabuf live$' nictool pages dm0
check_fails_output "nobody else gets it" 'already' nictool hold dm0 1
can_send && check_fails_output "headers stay split" 'rings of dm0' nictool split dm0 off
check "it is free again" let_go
check_fails_output "a queue that is not there cannot be taken" 'bind-rx' nictool hold dm0 77
if can_send; then
    nictool hds dm0 100
    check_fails_output "nor one with a threshold" 'hds-thresh is not zero' nictool hold dm0 1
    nictool hds dm0 0
    nictool split dm0 off
    check_fails_output "nor one without split headers" 'tcp-data-split is disabled' \
        nictool hold dm0 1
fi
check "split headers again" nictool split dm0 on

# --- counters
before=$(counter dm0 rx0_packets)
check "packets" ping -c 1 "$SENDER"
check "are counted" [ "$(counter dm0 rx0_packets)" -gt "$before" ]
before=$(counter dm0 rx0_packets)
check "the queue is exchanged" hold 0
check "its counters are not" [ "$(counter dm0 rx0_packets)" -ge "$before" ]
check "and back" let_go
check_fails_output "a counter that is not there" "no counter 'rx9_packets'" counter dm0 rx9_packets
