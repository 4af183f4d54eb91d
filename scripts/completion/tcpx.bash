# Completion of tcpx's command line for bash: `make install` puts it where bash-completion looks.
# shellcheck shell=bash

# The options of each command, as its --help has them; those that have a value end with =.
_tcpx_options()
{
    case $1 in
    connection) echo "--count= --once --port= --secret= --timeout=" ;;
    devices) echo "--json" ;;
    doctor) echo "--gpu= --json --quick" ;;
    env) echo "--json --man --markdown" ;;
    matrix)
        echo "--gpu= --host --hostfile= --hosts= --html= --iters= --json= --local= --meet= --no-progress" \
            "--port= --program= --secret= --seconds= --size= --ssh= --timeout="
        ;;
    perf)
        echo "--accesses= --both --channels= --check= --chunk-bytes= --chunks --csv --host --html= --iters= --json" \
            "--loopback --no-progress --once --pieces= --ping-pong --port= --read --secret= --size=" \
            "--sockets= --spoil= --sweep= --threads= --time= --timeout= --unpack= --warm-up= --write"
        ;;
    report) echo "-o=" ;;
    transfer) echo "--once --port= --secret= --timeout=" ;;
    esac
}

# What may stand where there is no option: server or client, and behind client a host.
_tcpx_words()
{
    local word

    for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
        case $word in
        server | client | --loopback) return ;;
        esac
    done
    echo "server client"
}

_tcpx()
{
    local commands="connection devices doctor env help matrix perf report transfer version"
    local current=${COMP_WORDS[COMP_CWORD]}
    local before=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]}
    local options

    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands --help --version" -- "$current")
        return
    fi
    options=$(_tcpx_options "$command")
    case $before in
    --unpack)
        mapfile -t COMPREPLY < <(compgen -W "auto d2d host kernel" -- "$current")
        return
        ;;
    --check)
        mapfile -t COMPREPLY < <(compgen -W "every first none" -- "$current")
        return
        ;;
    --secret | --html | --hostfile | --program | -o)
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames 2>/dev/null
        return
        ;;
    client)
        mapfile -t COMPREPLY < <(compgen -A hostname -- "$current")
        return
        ;;
    esac
    # Any other value is for the user to think of.
    case " $options " in
    *" $before= "*) return ;;
    esac
    case $command in
    connection | perf | transfer) options="$options $(_tcpx_words)" ;;
    help) options=$commands ;;
    report)
        mapfile -t COMPREPLY < <(compgen -W "-o --help" -f -- "$current")
        compopt -o filenames 2>/dev/null
        return
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "${options//=/} --help" -- "$current")
}

complete -F _tcpx tcpx
