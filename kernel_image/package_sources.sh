#!/bin/sh
# Prints this machine's sources of Debian packages in the form of a `.sources` file.
#
#   package_sources.sh [FOLDER]      the folder of apt's settings, /etc/apt
#
# Debian's installer writes the older form, with a line for each source. Options in it are left out. Source: sources.list(5).
set -eu

folder=${1:-/etc/apt}
if [ -f "$folder/sources.list.d/debian.sources" ]; then exec cat "$folder/sources.list.d/debian.sources"; fi
awk '$1 == "deb" && $2 !~ /^cdrom:/ {
  sub(/ \[[^]]*\]/, "")
  print "Types: deb\nURIs: " $2 "\nSuites: " $3
  $1 = $2 = $3 = ""
  sub(/^ +/, "")
  print "Components: " $0 "\n"
}' "$folder/sources.list"
