# The man pages of the library agree with its header: every function has a page and every page only
# what there is, with the prototypes of the header, the same sections, and examples that compile.
. tests/tap.sh

# The header as one line, without comments, attributes and bodies.
sed -e 's/TCPX_API//; s/TCPX_CHECK//; s/static inline//' -e '/^#/d' include/tcpx.h | tr '\n' ' ' |
    sed -e 's|/\*|\x01|g' -e 's|\*/|\x02|g' -e 's/\x01[^\x02]*\x02//g' -e 's/)  *{/);/g' \
        >"$TAP_WORK/header"

functions=$(grep -oE '[ *]tcpx_[a-z0-9_]+\(' "$TAP_WORK/header" | tr -d ' *(')
links=$(grep -l '^\.so ' man/*.3)
pages=$(grep -L '^\.so ' man/*.3)

# section PAGE NAME: what is in it.
section()
{
    awk -v name=".SH $2" '/^\.SH / { inside = $0 == name; next } inside' "$1"
}

# prototype FILE FUNCTION: as the file has it, without spaces.
prototype()
{
    grep -oE "[a-z][a-z *]*[ *]$2\([^()]*\);" "$1" | tr -d ' '
}

# --- the functions ---------------------------------------------------------------------------

for page in $pages; do
    name=$TAP_WORK/${page##*/}
    section "$page" NAME >"$name.name"
    # What the macros put together.
    section "$page" SYNOPSIS | sed -e '/^\.[^B]/d' -e 's/^\.[A-Z]* //' -e 's/"//g' | tr '\n' ' ' |
        sed -E 's/ +([,)])/\1/g' >"$name.synopsis"
    awk '/^\.SH / { inside = $2 != "NAME" && $2 != "SYNOPSIS" && $2 != "THREADS" } inside' "$page" \
        >"$name.text"
done

# wrong_with FUNCTION: one line for each thing.
wrong_with()
{
    target=$(sed -n 's|^\.so man3/||p' "man/$1.3")
    page=$TAP_WORK/${target:-$1.3}
    grep -qw "$1" "$page.name" || echo "it is not in the NAME of ${page##*/}"
    grep -q "^\.BR $1 ()" "$page.text" || echo "${page##*/} does not explain it"
    declared=$(prototype "$TAP_WORK/header" "$1")
    written=$(prototype "$page.synopsis" "$1")
    [ "$declared" = "$written" ] || echo "declared as '$declared', but written '$written'"
}

missing_functions()
{
    for function in $(sed -n 's/^ *\(tcpx_[a-z0-9_]*\);$/\1/p' src/libtcpx.map); do
        echo "$functions" | grep -qx "$function" || echo "$function is exported and not in the header"
    done
}

wrong_links()
{
    for link in $links; do
        function=${link#man/}
        echo "$functions" | grep -qx "${function%.3}" || echo "$link: there is no such function"
        [ "$(wc -l <"$link")" -eq 1 ] || echo "$link has more than one line"
    done
}

check "the header has all that is exported" quiet missing_functions
for function in $functions; do
    check "$function has a page that agrees with the header" quiet wrong_with "$function"
done
check "every link is of a function" quiet wrong_links

# --- the pages -------------------------------------------------------------------------------

# Names that are not the header's: our pages, and the variables of the program.
{
    for page in $pages; do
        page=${page#man/}
        echo "${page%.3}"
    done
    "$BUILD/tcpx" env --json | sed -n 's/.*"name": "\([A-Z0-9_]*\)".*/\1/p'
} >"$TAP_WORK/known"

unknown_names()
{
    sed -e '/^\.TH/d' "$1" | grep -oE '(UCCL_|NCCL_)?(tcpx|TCPX)_[A-Za-z0-9_]+' | sort -u |
        while read -r name; do
            grep -qw "$name" include/tcpx.h || grep -qxF "$name" "$TAP_WORK/known" || echo "$name"
        done
}

# A page may say it of all its functions together.
functions_without_threads()
{
    section "$1" THREADS >"$TAP_WORK/threads"
    grep -q -e '^All of these' -e '^Every one of these' "$TAP_WORK/threads" && return
    for function in $(grep -oE 'tcpx_[a-z0-9_]+' "$TAP_WORK/${1##*/}.name"); do
        grep -qw "$function" "$TAP_WORK/threads" || echo "$function"
    done
}

missing_references()
{
    section "$1" 'SEE ALSO' | sed -n 's/\\-/-/g; s/^\.BR \([^ ]*\) (\([137]\)).*/\1.\2/p' |
        while read -r other; do
            test -f "man/$other" || echo "$other"
        done
}

for page in $pages; do
    check_output "$page has its sections in order" \
        '^NAME SYNOPSIS DESCRIPTION RETURN VALUE ERRORS THREADS EXAMPLE SEE ALSO $' \
        sh -c "sed -n 's/^\\.SH //p' $page | tr '\\n' ' '; echo"
    check "$page has only names that exist" quiet unknown_names "$page"
    check "$page says of each function which threads may call it" \
        quiet functions_without_threads "$page"
    check "$page refers to pages that exist" quiet missing_references "$page"
    section "$page" EXAMPLE | sed -e '/^\.E[XE]/d' -e 's/\\e/\\/g' -e 's/\\-/-/g' >"$TAP_WORK/example.c"
    check "the example of $page compiles" \
        "$CC" -std=c11 -Wall -Wextra -Werror -Iinclude -fsyntax-only "$TAP_WORK/example.c"
    with_program groff check "groff has no warning about $page" \
        quiet sh -c "groff -ww -man -Tutf8 $page >/dev/null"
done

tap_end
