#!/bin/sh
# Prints what the source is made of, a line each, for rules.awk and picture.awk:
#   file PATH              a source or header, relative to src
#   include PATH HEADER    as it is written, found or not
#   defines PATH SYMBOL    what the object of a .c file shows to others
#   needs PATH SYMBOL      what it takes from others
#   word HEADER WORD       outside of comments; what a header of include/ or a version script of src
#                          names is public: public/NAME
# Usage: facts.sh SRC INCLUDE OBJECTS, folders: the sources, the public headers, the objects of src.
set -eu

src=$1
include=$2
objects=$(cd "$3" && pwd)

cd "$include"
public=$(find . -name '*.h' | sed 's|^\./||' | LC_ALL=C sort)
# Words of headers. A comment ends on its line or on a later one; a // in a string does no harm here.
words='
    FNR == 1 { path = prefix FILENAME; comment = 0 }
    {
        code = ""
        rest = $0
        while (rest != "") {
            if (comment) {
                at = index(rest, "*/")
                if (at == 0)
                    break
                rest = substr(rest, at + 2)
                comment = 0
            } else {
                at = index(rest, "/*")
                slashes = index(rest, "//")
                if (slashes && (!at || slashes < at)) {
                    code = code substr(rest, 1, slashes - 1)
                    break
                }
                if (at == 0) {
                    code = code rest
                    break
                }
                code = code substr(rest, 1, at - 1) " "
                rest = substr(rest, at + 2)
                comment = 1
            }
        }
        gsub(/[^A-Za-z0-9_]+/, " ", code)
        count = split(code, word, " ")
        for (i = 1; i <= count; i++)
            if (!((path, word[i]) in seen)) {
                seen[path, word[i]] = 1
                print "word", path, word[i]
            }
    }'
[ -z "$public" ] || awk -v prefix=public/ "$words" $public
cd "$OLDPWD"

cd "$src"
files=$(find . -name '*.[ch]' -o -name '*.cu' | sed 's|^\./||' | LC_ALL=C sort)
headers=$(printf '%s\n' "$files" | grep '\.h$' || true)
sources=$(printf '%s\n' "$files" | grep '\.c$' || true)
printf 'file %s\n' $files
grep -HE '^[ 	]*#[ 	]*include[ 	]*["<]' $files /dev/null |
    sed -E 's/^([^:]*):[^"<]*["<]([^">]*).*/include \1 \2/'
[ -z "$headers" ] || awk "$words" $headers
maps=$(find . -name '*.map' | LC_ALL=C sort)
[ -z "$maps" ] || awk -v prefix=public/ "$words" $maps

# Only objects of sources that are there: those of deleted ones stay in the folder.
cd "$objects"
symbols=
[ -z "$sources" ] || symbols=$("${NM:-nm}" -A -P -g $(printf '%s\n' "$sources" | sed 's/c$/o/'))
printf '%s\n' "$symbols" | awk '{
    path = $1
    sub(/\.o:$/, ".c", path)
    # A sanitizer has symbols of its own in every object.
    if ($2 !~ /^__(asan|odr_asan|tsan|ubsan|msan|sancov|start|stop)/ && $2 !~ /\./ && NF > 2)
        print ($3 ~ /^[Uvw]$/ ? "needs" : "defines"), path, $2
}'
