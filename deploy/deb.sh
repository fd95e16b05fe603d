#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs what make left in BUILD for the release of Debian or Ubuntu on which it
# was built: deploy/deb.sh BUILD
#
# Makes BUILD/capstan_VERSION-1_ARCH.deb and BUILD/libcapstan-dev_VERSION-1_ARCH.deb,
# and prints their paths. DEBFULLNAME and DEBEMAIL name the maintainer.
set -eu
cd "$(dirname "$0")/.."
export TREE=$PWD BUILD
BUILD=$(realpath "${1:?the folder that make built}")
version=$(sed -n 's/.*VERSION_TEXT "\(.*\)"/\1/p' core/base/version.h)
maintainer="${DEBFULLNAME:-Capstan} <${DEBEMAIL:-capstan@users.noreply.github.com}>"
work=$BUILD/deb/capstan-$version
rm -rf "$BUILD/deb"
mkdir -p "$work"
cp -r deploy/packaging/debian "$work/debian"
control=$(< "$work/debian/control")
printf '%s\n' "${control//@MAINTAINER@/"$maintainer"}" > "$work/debian/control"
cat > "$work/debian/changelog" << END
capstan ($version-1) unstable; urgency=medium

  * Release $version; changelog.gz says what is new.

 -- $maintainer  $(git log -1 --format=%cD 2> /dev/null || date -R)
END
# The build's dependencies are those of deploy/packages.txt.
(cd "$work" && DEB_BUILD_OPTIONS=noautodbgsym MAKEFLAGS='' \
    dpkg-buildpackage -d -b -us -uc > ../log 2>&1) || {
    cat "$BUILD/deb/log" >&2
    exit 1
}
mv "$BUILD"/deb/*.deb "$BUILD"
ls "$BUILD"/{capstan,libcapstan-dev}_"$version"-1_*.deb
