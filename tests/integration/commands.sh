# The commands that the documents show work, exactly as they are printed: on a copy of this machine (see
# tests/scratch_root.sh), in a clone that has this run's objects, with 127.0.0.1 for the other host. Those
# that cannot be run are in tests/documents/not_run, with the reason; a new command is run.
# shellcheck disable=SC2086,SC2254 # lists of words; patterns
. tests/tap.sh
. tests/on_copy.sh

# In this order: the first install the program and the Python package, which others use.
documents="README.md CONTRIBUTING.md examples/README.md docs/python.md examples/python/README.md
$(find docs -name '*.md' ! -name python.md | sort)"
exceptions=$PWD/tests/documents/not_run
clone=/tmp/clone

commands_of()
{
    awk -f tests/documents/commands.awk "$@"
}

# reason TEXT: why it is not run.
reason()
{
    while IFS= read -r exception; do
        case $exception in
        '' | '#'*) continue ;;
        esac
        case $1 in
        ${exception%% | *})
            echo "${exception#* | }"
            return
            ;;
        esac
    done <"$exceptions"
}

# --- on the copy: one document -----------------------------------------------------------------------

# printed COMMAND: what it sets is there for those behind it. A server goes on beside them.
printed()
{
    command=$(echo "$1" | sed 's/SERVER_IP/127.0.0.1/; s/ SERVER$/ 127.0.0.1/')
    case $command in
    *' server')
        end_server
        sh -c "exec env $command" >"$TAP_WORK/server" 2>&1 </dev/null &
        server=$! serving=$1
        return
        ;;
    *' & '*) end_server ;; # it brings its own
    esac
    check "$1" eval "$command"
}

# ended PID: whether the shell has its status by now or not.
ended()
{
    case $(sed 's/.*) \(.\).*/\1/' "/proc/$1/stat" 2>/dev/null) in
    Z | '') ;;
    *) return 1 ;;
    esac
}

# The server, if there is one, has served, or goes on until it is ended.
end_server()
{
    [ -n "$server" ] || return 0
    within 1 ended "$server" || kill "$server"
    status=0
    wait "$server" || status=$?
    server=
    check "$serving" sh -c "cat '$TAP_WORK/server'; [ $status -eq 0 ] || [ $status -eq 143 ]"
}

if [ "${1-}" = --document ]; then
    TAP_PREFIX="$2: "
    commands_of "$2" >"$TAP_WORK/commands"
    cd "$clone" || exit
    server=
    while IFS= read -r command <&3; do
        why=$(reason "$command")
        [ -n "$why" ] || printed "$command"
    done 3<"$TAP_WORK/commands"
    end_server
    wait
    tap_end
fi

# --- on the copy: all of them ------------------------------------------------------------------------

make_clone()
{
    mkdir "$clone" /tmp/upper /tmp/work
    { git ls-files -z || find . \( -path ./build -o -path ./dist \) -prune -o -type f -print0; } 2>/dev/null |
        xargs -0 cp -p --parents -t "$clone"
    mkdir "$clone/build"
    mount -t overlay overlay -o "lowerdir=$BUILD,upperdir=/tmp/upper,workdir=/tmp/work" "$clone/build"
    # Those of a wheel are compiled with the same flags, in a folder of their own.
    mkdir -p "$clone/build/wheel/obj"
    cp -p "$BUILD/flags" "$clone/build/wheel/"
    cp -a "$BUILD/obj/src" "$BUILD/obj/tools" "$clone/build/wheel/obj/"
}

if [ "${1-}" = --inside ]; then
    BUILD=$(cd "$BUILD" && pwd)
    check "a clone, and an environment of Python with nothing in it" eval "make_clone && python3 -m venv /tmp/venv"
    (tap_end) || exit
    # What is set for make check is not set for who types a command.
    unset BUILD SANITIZE NVCC ONLY UCCL_TCPX_GPU NCCL_SOCKET_IFNAME
    export PATH="/tmp/venv/bin:$PATH" DEPS=0 PIP_DISABLE_PIP_VERSION_CHECK=1
    failed=0
    for document in $documents; do
        [ -z "$(commands_of "$document")" ] || sh tests/integration/commands.sh --document "$document" || failed=1
    done
    exit $failed
fi

# --- here --------------------------------------------------------------------------------------------

[ -z "${SANITIZE-}" ] || tap_skip_all "the documents are about the build without a sanitizer"

# stale EXCEPTION...: no command fits.
stale()
{
    commands_of $documents >"$TAP_WORK/all"
    sed -n '/^[^#]/s/ | .*//p' "$exceptions" | while IFS= read -r pattern; do
        while IFS= read -r command; do
            case $command in
            $pattern) continue 2 ;;
            esac
        done <"$TAP_WORK/all"
        echo "no document has such a command: $pattern"
    done
}

# without_reason: a line that is not PATTERN | REASON.
without_reason()
{
    sed '/^#/d; /^$/d; /^[^ ].* | [a-z0-9]/d' "$exceptions"
}

on_copy "the commands of the documents" sh tests/integration/commands.sh --inside
check "every block of a document has a language" commands_of $documents
check "what is not run has a reason" quiet without_reason
check "and is in a document" quiet stale

# The checks themselves notice.
printf '%s\n' '```' 'make nothing' '```' >"$TAP_WORK/bad.md"
check_fails_output "a block without a language" 'bad\.md:1: a block without a language' commands_of "$TAP_WORK/bad.md"
printf 'rm -rf / | it does harm\n' >"$TAP_WORK/exceptions"
exceptions=$TAP_WORK/exceptions
check_output "an exception for no command" '^no document has such a command: rm -rf /$' stale

tap_end
