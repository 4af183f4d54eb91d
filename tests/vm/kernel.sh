#!/bin/sh
# A Linux kernel to boot, with what it takes to build a module for it, from a newer Debian than the
# machine's: fetched through apt with a configuration of its own, so that signatures are checked and
# the machine's own apt is not touched; unpacked, never installed. A kernel that was fetched before
# is used again without asking the network.
#
# usage: kernel.sh VERSION     such as 7.2: the newest 7.2.x that there is
#
# Prints the folder, in which are: release (a file), image, headers, common (links), and libc where
# the kernel's build tools need a newer one than the machine has. Status 77 when there is no such
# kernel, with the reason on stderr.
#
# TCPX_VM_CACHE (build/vm) is where all of it is kept, TCPX_VM_SUITES where to look.

cache=${TCPX_VM_CACHE:-build/vm}
suites=${TCPX_VM_SUITES:-trixie-backports sid bookworm-backports trixie}
flavour=cloud-amd64
DOWNLOAD_SECONDS=180

say()
{
    echo "kernel.sh: $*" >&2
}

skip()
{
    say "$*"
    exit 77
}

# --- the archive ---------------------------------------------------------------------------------

# Where the machine gets its own release from, as "URI KEYRING" (KEYRING "-": apt's own). Sources
# come in two forms: a line each, and paragraphs of fields.
mirrors()
{
    codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
        sed -n 's/^deb *\(\[[^]]*\]\)\{0,1\} *\([^ ]*\) *\([^ ]*\) .*main.*/\2 \3 \1/p' |
        awk -v own="$codename" '$2 == own {
            keyring = match($0, /signed-by=[^] ]*/) ? substr($0, RSTART + 10, RLENGTH - 10) : "-"
            print $1, keyring
        }'
    # The empty line between two files ends a paragraph.
    for sources in /etc/apt/sources.list.d/*.sources; do
        cat "$sources" 2>/dev/null
        echo
    done | awk -v own="$codename" '
        function value() {
            sub(/^[^:]*:[ \t]*/, "")
            return $0
        }
        /^URIs:/ { uris = value() }
        /^Suites:/ { suites = value() }
        /^Components:/ { components = value() }
        /^Signed-By:/ { keyring = value() }
        /^[ \t]*$/ {
            if (index(" " suites " ", " " own " ") && index(" " components " ", " main ")) {
                count = split(uris, each, " ")
                for (i = 1; i <= count; i++)
                    print each[i], keyring ~ /^\// ? keyring : "-"
            }
            uris = suites = components = keyring = ""
        }'
}

# with_apt PROGRAM ARGUMENT...: one of apt that knows a single suite, the one opened last.
with_apt()
{
    with_apt_program=$1
    shift
    timeout $DOWNLOAD_SECONDS "$with_apt_program" \
        -o "Dir::Etc::sourcelist=$apt/sources" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o "Dir::State=$apt/state" -o Dir::State::status=/dev/null -o "Dir::Cache=$apt/cache" \
        -o "APT::Sandbox::User=$(id -un)" -o APT::Architecture=amd64 \
        -o Acquire::Languages=none -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
        -o Acquire::https::Timeout=20 "$@" </dev/null
}

# open_suite SUITE: from the first mirror that has it. An index that cannot be verified is none.
open_suite()
{
    while read -r uri keyring; do
        signed=
        [ "$keyring" = - ] || signed="[signed-by=$keyring] "
        echo "deb $signed$uri $1 main" >"$apt/sources"
        with_apt apt-get update -o APT::Update::Error-Mode=any >"$apt/log" 2>&1 && return 0
        say "the suite $1 cannot be read: $(grep '^[EW]:' "$apt/log" | head -n 1)"
    done <"$apt/mirrors"
    return 1
}

# newest VERSION: the release, such as 7.2.13+deb14, of which the open suite has everything.
newest()
{
    with_apt apt-cache pkgnames linux- | sort >"$apt/names"
    pattern=$(printf '%s\n' "$1" | sed 's/\./\\./g')
    sed -n "s/^linux-kbuild-\(${pattern}[.+].*\)$/\1/p" "$apt/names" | sort -rV |
        while read -r release; do
            if [ -n "$(image_package "$release")" ] && has "linux-headers-$release-common" &&
                has "linux-headers-$release-$flavour"; then
                echo "$release"
                break
            fi
        done
}

has()
{
    grep -qxF "$1" "$apt/names"
}

# image_package RELEASE: newer kernels have their image in a package without the modules.
image_package()
{
    for image_package in "linux-binary-$1-$flavour" "linux-image-$1-$flavour"; do
        if has "$image_package"; then
            echo "$image_package"
            return
        fi
    done
}

# unpack FOLDER PACKAGE...: from the open suite.
unpack()
{
    unpack_to=$1
    shift
    mkdir -p "$work/packages" "$work/$unpack_to" || return 1
    if ! (cd "$work/packages" && with_apt apt-get download "$@") >"$apt/log" 2>&1; then
        say "cannot download $*: $(grep '^[EW]:' "$apt/log" | head -n 1)"
        return 1
    fi
    for package in "$work"/packages/*.deb; do
        dpkg-deb -x "$package" "$work/$unpack_to" || return 1
    done
    rm -rf "$work/packages"
}

# --- the folder ----------------------------------------------------------------------------------

# fetch SUITE RELEASE: into $work.
fetch()
{
    # One word each.
    # shellcheck disable=SC2046
    unpack root $(image_package "$2") "linux-headers-$2-$flavour" "linux-headers-$2-common" \
        "linux-kbuild-$2" || return 1
    echo "$2-$flavour" >"$work/release"
    ln -s "root/usr/src/linux-headers-$2-$flavour" "$work/headers"
    ln -s "root/usr/src/linux-headers-$2-common" "$work/common"
    for image in "usr/lib/modules/$2-$flavour/vmlinuz" "boot/vmlinuz-$2-$flavour"; do
        [ ! -f "$work/root/$image" ] || ln -s "root/$image" "$work/image"
    done
    if [ ! -e "$work/image" ] || [ ! -e "$work/headers/.config" ] ||
        [ ! -e "$work/common/Makefile" ]; then
        say "the packages of $2 do not have an image and headers where they are expected"
        return 1
    fi
    fetch_libc "${1%-backports}"
}

# The tools of the kernel's build, those that the machine's libc is too old for.
tools_too_new()
{
    find "$work/root/usr/lib" -type f -path '*/linux-kbuild-*' -perm -100 |
        while read -r tool; do
            if ldd "$tool" 2>&1 | grep -q "version .GLIBC_.* not found"; then
                echo "$tool"
            fi
        done
}

# fetch_libc SUITE: and starts those tools with it.
fetch_libc()
{
    tools=$(tools_too_new)
    [ -n "$tools" ] || return 0
    { open_suite "$1" && unpack libc libc6; } || return 1
    loader=$(cd "$work" && find libc -name 'ld-linux-x86-64.so.2' -type f | head -n 1)
    for tool in $tools; do
        mv "$tool" "$tool.program"
        up=$(printf '%s\n' "${tool#"$work"/}" | sed 's|[^/]*$||; s|[^/]*/|../|g')
        cat >"$tool" <<END
#!/bin/sh
folder=\$(dirname "\$0")/$up
exec "\$folder/$loader" --library-path "\$folder/$(dirname "$loader")" --argv0 "\$0" \\
    "\$0.program" "\$@"
END
        chmod +x "$tool"
    done
}

# find_kernel VERSION: one that is there, the newest.
find_kernel()
{
    find "$cache/kernel" -mindepth 1 -maxdepth 1 -type d -name "$1[.+]*" 2>/dev/null |
        sort -rV | head -n 1
}

if [ $# -ne 1 ] || ! printf '%s\n' "$1" | grep -qE '^[0-9]+(\.[0-9]+)+$'; then
    echo "usage: kernel.sh VERSION, such as 7.2" >&2
    exit 2
fi
found=$(find_kernel "$1")
if [ -n "$found" ]; then
    echo "$found"
    exit 0
fi
for program in apt-get apt-cache dpkg-deb; do
    command -v $program >/dev/null || skip "$program is not installed: it takes Debian's packages"
done
mkdir -p "$cache/kernel" || exit 1
cache=$(cd "$cache" && pwd) || exit 1
# A folder gets its name when it is whole.
apt=$(mktemp -d "$cache/apt.XXXXXX") || exit 1
work=$(mktemp -d "$cache/unpacked.XXXXXX") || exit 1
trap 'rm -rf "$apt" "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial"
mirrors | sort -u >"$apt/mirrors"
[ -s "$apt/mirrors" ] || skip "the apt sources of this machine do not say where its release is from"
for suite in $suites; do
    open_suite "$suite" || continue
    release=$(newest "$1")
    [ -n "$release" ] || continue
    say "fetching $release from $suite"
    fetch "$suite" "$release" || exit 1
    chmod 755 "$work"
    mv -T "$work" "$cache/kernel/$release" || [ -e "$cache/kernel/$release/release" ] || exit 1
    find_kernel "$1"
    exit 0
done
skip "no kernel $1 with headers for $flavour in: $suites"
