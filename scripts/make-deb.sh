#!/bin/sh
# Makes Debian's packages. DEB_BUILD_OPTIONS is Debian's: nocheck leaves the tests out.
#
# usage: make-deb.sh FOLDER SOURCES     of these sources, into the folder
set -eu

fail()
{
    echo "make-deb.sh: $*" >&2
    exit 1
}

folder=$1 sources=$2 log=$2/../log
command -v dpkg-buildpackage >/dev/null || fail "dpkg-buildpackage is not installed (Debian: dpkg-dev)"
export DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS-} parallel=$(nproc)"
# An outer make and its settings are not this one's.
if ! (cd "$sources" && env -u MAKEFLAGS -u MAKELEVEL -u BUILD -u SANITIZE -u WERROR \
    dpkg-buildpackage -us -uc -b) >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    fail "dpkg-buildpackage failed: $log has all that it said"
fi
rm -f "$folder"/*.deb "$folder"/*.changes "$folder"/*.buildinfo
mv "$sources"/../*.deb "$sources"/../*.changes "$sources"/../*.buildinfo "$folder"
ls "$folder"/*.deb
