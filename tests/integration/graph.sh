# The source keeps to src/rooms: calls go down only, files of a room do not need each other in circles,
# a room's private headers stay private, a function is declared in its file's header. The rules are
# also shown small sources that break them.
. tests/tap.sh

# judge FOLDER OBJECTS: what breaks the rules in the source of FOLDER, in $TAP_WORK/verdict.
judge()
{
    sh scripts/graph/facts.sh "$1/src" "$1/include" "$2" >"$TAP_WORK/facts" &&
        awk -f scripts/graph/rules.awk "$1/src/rooms" "$TAP_WORK/facts" >"$TAP_WORK/verdict" &&
        grep -q '^done$' "$TAP_WORK/verdict"
}

# --- the source ----------------------------------------------------------------------------------

check "the source can be judged" judge . "$BUILD/obj/src"
cp "$TAP_WORK/verdict" "$TAP_WORK/source"

# none NAME RULE ROOM: no file of that room breaks that rule; the room . is any.
none()
{
    check "$1" quiet awk -v rule="$2" -v room="$3" '
        $1 == rule { from = $2; sub(/\/[^\/]*$/, "", from); if (room == "." || from == room) print }' \
        "$TAP_WORK/source"
}

none "every folder is a room" unlisted .
none "src/rooms has only what is there" stale .
for room in $(sed -n 's/^room //p' "$TAP_WORK/source"); do
    none "$room uses only the rooms that its line names" use "$room"
    none "$room includes no private header of another room" private "$room"
    none "$room has no files that need each other" cycle "$room"
    none "$room declares each function in its file's header" declared "$room"
done

check "docs/graph.svg shows the rooms as they are" scripts/make-graph.sh --check

# --- sources that break the rules ------------------------------------------------------------------

tree=$TAP_WORK/tree

# A source of two rooms, low and high, without a fault, and its objects.
clean=$TAP_WORK/clean
mkdir -p "$clean/include" "$clean/src/low" "$clean/src/high" "$clean/obj/low" "$clean/obj/high"
echo 'int fake_open(void);' >"$clean/include/fake.h"
printf '%s\n' 'room low shows low.h' 'room high uses low' >"$clean/src/rooms"
echo 'int low(void);' >"$clean/src/low/low.h"
echo 'int inner(void);' >"$clean/src/low/inner.h"
echo 'int high(void);' >"$clean/src/high/high.h"
printf '%s\n' '#include "low/low.h"' '#include "low/inner.h"' 'int low(void) { return inner(); }' \
    >"$clean/src/low/low.c"
printf '%s\n' '#include "inner.h"' 'int inner(void) { return 1; }' >"$clean/src/low/inner.c"
printf '%s\n' '#include "high/high.h"' '#include "low/low.h"' '#include <fake.h>' \
    'int high(void) { return low(); }' 'int fake_open(void) { return high(); }' >"$clean/src/high/high.c"

plant()
{
    rm -rf "$tree"
    cp -a "$clean" "$tree"
}

# add FILE LINE...: more lines of a file.
add()
{
    file=$tree/src/$1
    shift
    printf '%s\n' "$@" >>"$file"
}

# compile FOLDER: the sources that have changed.
compile()
{
    for source in "$1"/src/*/*.c; do
        object=${source#"$1/src/"}
        object=$1/obj/${object%c}o
        [ "$object" -nt "$source" ] ||
            "${CC:-cc}" -I "$1/src" -I "$1/include" -c "$source" -o "$object" || return 1
    done
}
check "the source without a fault compiles" compile "$clean"

# verdict: of the planted source, but for the lines that are always there.
verdict()
{
    compile "$tree" && judge "$tree" "$tree/obj" && grep -v -e '^room ' -e '^done$' "$TAP_WORK/verdict"
    return 0
}

# finds NAME LINE: the planted source has one fault, which is found and named; then one without is there.
finds()
{
    finds_also "$@"
    plant
}

# finds_also NAME LINE: the same, and it stays as it is.
finds_also()
{
    tap_run verdict
    [ "$(cat "$TAP_OUTPUT")" = "$2" ]
    tap_judge $? "$1" "only: $2"
}

plant
finds "a source without a fault" ''

plant
add low/low.c 'int high(void);' 'int up(void) { return high(); }'
add low/low.h 'int up(void);'
finds "a call upwards" 'use low/low.c high/high.c: needs high, but room low may not use high'

add high/high.h 'extern int counter;'
add high/high.c 'int counter;'
add low/inner.c 'extern int counter;' 'int count(void) { return counter; }'
add low/inner.h 'int count(void);'
finds "data of a room above" 'use low/inner.c high/high.c: needs counter, but room low may not use high'

sed -i 's/^room high/& shows high.h/' "$tree/src/rooms"
add low/inner.h '#include "high/high.h"'
finds "an include upwards" 'use low/inner.h high/high.h: includes it, but room low may not use high'

add low/inner.c '#include "low/low.h"' 'int again(void) { return low(); }'
add low/inner.h 'int again(void);'
finds "two files that call each other" 'cycle low/low.c low/inner.c: needs inner of low/inner.c, low/inner.c needs low of low/low.c'

echo 'int third(void);' >"$tree/src/low/third.h"
printf '%s\n' '#include "third.h"' '#include "low.h"' 'int third(void) { return low(); }' >"$tree/src/low/third.c"
add low/inner.c '#include "third.h"' 'int again(void) { return third(); }'
add low/inner.h 'int again(void);'
finds "a circle of three files" 'cycle low/low.c low/inner.c: needs inner of low/inner.c, low/inner.c needs third of low/third.c, low/third.c needs low of low/low.c'

add low/inner.h '#ifndef INNER' '#define INNER' '#include "low/low.h"' '#endif'
add low/low.h '#ifndef LOW' '#define LOW' '#include "low/inner.h"' '#endif'
finds "two headers that include each other" 'cycle low/low.h low/inner.h: includes low/inner.h, low/inner.h includes low/low.h'

add high/high.c '# include "low/inner.h"'
finds "a private header of another room" 'private high/high.c low/inner.h: room low does not show this header'

add low/inner.c 'int foreign(void);' 'int foreign(void) { return 2; }'
echo 'int foreign(void);' >"$tree/src/low/other.h"
finds "a function that another file's header declares" \
    'declared low/inner.c low/other.h: foreign is not declared in low/inner.h'

add low/inner.c 'int lonely(void);' 'int lonely(void) { return 2; }'
add low/inner.h '/* lonely() */ // lonely()' '/*' 'lonely()' '*/'
finds "a function that only a comment names" 'declared low/inner.c -: lonely is not declared in low/inner.h'

mkdir "$tree/src/new" "$tree/obj/new"
echo 'static int nothing;' >"$tree/src/new/new.c"
finds "a folder that is no room" 'unlisted new/new.c new: its folder is not a room of src/rooms'

sed -i 's/^room low/& uses high/' "$tree/src/rooms"
check_output "a room that may use one above it" 'room low uses high, which is not a room below it' verdict
plant

sed -i 's/^room high.*/room high/' "$tree/src/rooms"
check_output "a use that its line does not name" '^use high/high.c low/low.c: ' verdict
add rooms 'known use high/high.c low/low.c' 'known use high/high.c low/low.h'
finds_also "known edges are left alone" ''
add rooms 'known cycle low/low.c low/inner.c'
finds "a known edge that is gone" "stale low/low.c low/inner.c: remove the line 'known cycle low/low.c low/inner.c'"

add low/inner.c '#include "low/low.h"' 'int again(void) { return low(); }'
add low/inner.h 'int again(void);'
add rooms 'known cycle low/inner.c low/low.c'
finds "a known edge that closes a circle" ''

rm "$tree/src/high/high.c" "$tree/src/high/high.h"
finds_also "objects of deleted sources do not count; a use that is gone does" \
    'stale high low: src/rooms lists this use, and nothing needs it'

rm "$tree/obj/low/inner.o"
check_fails "an object that is missing" judge "$tree" "$tree/obj"

tap_end
