#!/bin/sh
# Installs Debian's packages while an image is built.
#
#   debian.sh PACKAGE...      without a package, nothing is done
#
# Where the base image names no package sources, build.sh puts this machine's own beside this file.
set -eu

if [ $# = 0 ]; then exit 0; fi
here=$(cd "$(dirname "$0")" && pwd)
sources=/etc/apt/sources.list.d/build.sources
if [ -s "$here/apt.conf" ]; then export APT_CONFIG="$here/apt.conf"; fi
if [ -s "$here/debian.sources" ]; then cp "$here/debian.sources" $sources; fi

export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install --yes --no-install-recommends "$@" >/dev/null
apt-get clean
rm -rf $sources /var/lib/apt/lists/*

# No program of the image gives the rights of its owner.
find / -xdev -perm /6000 -type f -exec chmod a-s {} +
