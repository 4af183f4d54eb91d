# What the documents name exists: files, functions, links, variables, and the error texts that people
# look up. Each check is also shown a document that is wrong.
# shellcheck disable=SC2016,SC2086 # backticks of Markdown; lists of words
. tests/tap.sh

# Variables, and constants of that shape, that belong to others or to the tests.
foreign="
UCCL_TCPX_SOFT_DEVMEM
CUDA_DEVICE_MAX_CONNECTIONS CUDA_VISIBLE_DEVICES
NCCL_BUFFSIZE NCCL_DEBUG NCCL_DYNAMIC_CHUNK_SIZE NCCL_GRAPH_REGISTER
NCCL_LOCAL_REGISTER NCCL_NET NCCL_NET_GDR_LEVEL NCCL_NET_PLUGIN NCCL_NET_PLUGIN_REF_COUNT
NCCL_NSOCKS_PERTHREAD NCCL_PAT_ENABLE NCCL_PROTO NCCL_PTR_CUDA NCCL_PTR_HOST NCCL_SOCKET_NTHREADS
NCCL_GPUDIRECTTCPX_CTRL_DEV NCCL_GPUDIRECTTCPX_RECV_SYNC
NCCL_GPUDIRECTTCPX_TX_BINDINGS NCCL_GPUDIRECTTCPX_RX_BINDINGS
NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX
NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT
"

documents="README.md $(echo docs/*.md)"
function='`[a-z_0-9]+\(\)`'

# Everything that could hold a function, as one file: a search in it is quick.
find src include tools tests examples bench python \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.py' -o -name '*.pyi' \) -exec cat {} + \
    >"$TAP_WORK/source"

# The texts between quotes of the program, one on a line, with the pieces of each put together. File
# by file, so that a lone quote in one does not turn the others inside out.
find src tools -name '*.[ch]' | while read -r file; do
    sed "s/'.\{0,1\}\"'//g" "$file" | tr '\n' ' ' |
        sed -E 's/" *PRI[A-Za-z0-9]+ *"//g; s/" +"//g' | grep -oE '"([^"\]|\\.)*"'
done >"$TAP_WORK/texts"

# --- each prints what is wrong ---------------------------------------------------------------------

# Paths in backticks. Those without an ending are folders, or programs made of the file of that name.
missing_paths()
{
    cat "$@" | grep -oE '`(src|include|tools|examples|scripts|docs|man|bench|tests/[a-z_]+)/[^` ]*`' |
        tr -d '`' | sort -u | while read -r path; do
        case $path in
        *'*'* | *'{'* | tests/test_*) continue ;; # several; made by make
        esac
        [ -e "$path" ] || [ -e "$path.c" ] || [ -e "$path.sh" ] || echo "no such file: $path"
    done
}

missing_functions()
{
    cat "$@" | grep -oE "$function" | tr -d '`()' | sort -u | while read -r name; do
        grep -qE "(^|[^a-z_0-9])$name\(" "$TAP_WORK/source" || echo "no such function: $name"
    done
}

# `one()`, `two()` in `file`: both begin a line of that file, as definitions do.
misplaced_functions()
{
    cat "$@" | tr '\n' ' ' | grep -oE "($function(, | and ))*$function in \`[^\`]+\`" | while read -r phrase; do
        file=$(echo "$phrase" | sed -E 's/.* in `([^`]+)`$/\1/')
        for name in $(echo "$phrase" | grep -oE "$function" | tr -d '`()'); do
            grep -qE "^[a-z].*[ *]$name\(" "$file" || echo "$name is not in $file"
        done
    done
}

# What a heading's link is called: lower case, without punctuation, blanks as hyphens; and other anchors.
anchors()
{
    sed -n 's/.*<a id="\([^"]*\)">.*/\1/p' "$1"
    sed -n 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# `make one two VARIABLE=...`: targets.
missing_targets()
{
    cat "$@" | grep -oE '`make( [a-z-]+)+(`| [A-Z])' | tr -d '`' | tr ' ' '\n' | grep -vE '^(make|[A-Z])?$' | sort -u | while read -r target; do
        grep -qE "^(\.PHONY:.* )?$target(:| |\$)" Makefile ./*/*.mk ./*/*/*.mk || echo "no such target: $target"
    done
}

broken_links()
{
    for document in "$@"; do
        folder=$(dirname "$document")
        grep -oE '\]\([^)# ]*(#[^) ]*)?\)' "$document" | sed -E 's/^\]\((.*)\)$/\1/' | sort -u |
            while read -r link; do
                target=${link%%#*}
                anchor=
                case $link in
                http://* | https://* | mailto:*) continue ;;
                *'#'*) anchor=${link#*#} ;;
                esac
                file=$document
                [ -z "$target" ] || file=$folder/$target
                if [ ! -e "$file" ]; then
                    echo "$document: $link leads nowhere"
                elif [ -n "$anchor" ] && ! anchors "$file" | grep -qxF -e "$anchor"; then
                    echo "$document: $link: no such heading"
                fi
            done
    done
}

"$BUILD/tcpx" env | grep -oE '^(UCCL|NCCL)_[A-Z0-9_]+' >"$TAP_WORK/own_variables"
{ cat "$TAP_WORK/own_variables" && printf '%s\n' $foreign; } >"$TAP_WORK/variables"

unknown_variables()
{
    cat "$@" | grep -owE '(UCCL_TCPX|NCCL|CUDA)_[A-Z0-9_]*[A-Z0-9]' | sort -u |
        grep -vxF -f "$TAP_WORK/variables" | sed 's/^/no such variable: /'
}

# Headings of the form #### `text`, where … stands for what varies. What the system adds behind a
# colon is not in the source.
error_headings()
{
    sed -n 's/^#### `\(.*\)`$/\1/p' "$1"
}

stale_errors()
{
    error_headings "$1" | while read -r text; do
        pattern=$(printf '%s\n' "$text" | sed -e 's/[][\.*^$+?(){}|/]/\\&/g' -e 's/: …$/(: .*)?/' -e 's/…/.+/g')
        grep -qE -e "$pattern" "$TAP_WORK/texts" || echo "nobody says: $text"
    done
}

# --- the checks ------------------------------------------------------------------------------------

check "files that are named exist" quiet missing_paths $documents
check "functions that are named exist" quiet missing_functions $documents
check "functions are in the files that are named" quiet misplaced_functions $documents
check "targets of make that are named exist" quiet missing_targets $documents CONTRIBUTING.md CHANGELOG.md
check "links lead somewhere" quiet broken_links $documents
check "tcpx env has variables" test -s "$TAP_WORK/own_variables"
check "variables that are named exist" quiet unknown_variables $documents
check "error texts are said by somebody" quiet stale_errors docs/troubleshooting.md
check "there are error texts" test "$(error_headings docs/troubleshooting.md | wc -l)" -ge 50
# The first column of a table there.
sed -n '/^## What can go wrong/,/^What the kernel says/p' docs/devmem.md |
    sed -n 's/^| `\([^`]*\)` |.*/#### `\1`/p' >"$TAP_WORK/devmem_texts.md"
check "texts about devmem TCP are said by somebody" quiet stale_errors "$TAP_WORK/devmem_texts.md"
check "there are such texts" test "$(error_headings "$TAP_WORK/devmem_texts.md" | wc -l)" -ge 20

# --- what the transfer test prints -----------------------------------------------------------------

# Addresses differ from run to run, and some numbers from machine to machine. What a server says of its clients
# has their addresses.
masked()
{
    sed -E '/^tcpx transfer server: /d; s/0x[0-9a-f]+/0x.../g; s/mtu [0-9]+/mtu .../; s/tcpx [0-9.]+,/tcpx ...,/' "$1"
}

# shown HEADING: the block behind that line of the page.
shown()
{
    awk -v heading="$1" '$0 == heading { on = 1 } on && /^```/ { if (inside) exit; inside = 1; next }
        inside' docs/tcpx_transfer.md
}

port=$((18000 + $$ % 400)) # below those that the kernel gives to clients
export NCCL_SOCKET_IFNAME=lo UCCL_TCPX_GPU=host UCCL_TCPX_PLUGIN_PATH=builtin
export UCCL_TCPX_DEBUG=1 UCCL_TCPX_UNPACK_IMPL=d2d
"$BUILD/tcpx" transfer server --once --port $port --timeout 20 >"$TAP_WORK/server" 2>&1 &
"$BUILD/tcpx" transfer client 127.0.0.1 --port $port --timeout 20 >"$TAP_WORK/client" 2>&1
wait $!
for side in server client; do
    shown "The $side:" >"$TAP_WORK/shown"
    masked "$TAP_WORK/shown" >"$TAP_WORK/expected"
    masked "$TAP_WORK/$side" >"$TAP_WORK/printed"
    check "the output of the $side is the one shown" diff "$TAP_WORK/expected" "$TAP_WORK/printed"
done

# The checks themselves notice.
bad=$TAP_WORK/bad.md
cat >"$bad" <<'END'
See `src/net/nowhere.c`, `tcpx_fly()`, `net_listen()` in `src/net/comm/send.c`, [a page](nowhere.md),
[a part](#nothing-here) and UCCL_TCPX_NONSENSE.
#### `the … has flown away`
And then `make coffee`.
END
check_output "a file that is not there" '^no such file: src/net/nowhere\.c$' missing_paths "$bad"
check_output "a function that is not there" '^no such function: tcpx_fly$' missing_functions "$bad"
check_output "a function elsewhere" '^net_listen is not in src/net/comm/send\.c$' misplaced_functions "$bad"
check_output "a target that is not there" '^no such target: coffee$' missing_targets "$bad"
check_output "a link to no file" 'nowhere\.md leads nowhere$' broken_links "$bad"
check_output "a link to no heading" '#nothing-here: no such heading$' broken_links "$bad"
check_output "an unknown variable" '^no such variable: UCCL_TCPX_NONSENSE$' unknown_variables "$bad"
check_output "an error that nobody says" '^nobody says: the … has flown away$' stale_errors "$bad"

tap_end
