#!/usr/bin/env bash
# promtool.sh - prints where promtool is: on the PATH, in the cache, or taken out of Debian's package `prometheus`, which is not installed: that
# would start services. The release's own version is taken. Exit status 1 and a reason on stderr where it cannot be had.
set -euo pipefail

if command -v promtool; then exit 0; fi
cache=${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}
# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "$ID-${VERSION_ID:-}")
case $release in
debian-12) version=2.42.0 ;;
*) echo "promtool is taken from the package of Debian 12 only; on $release install promtool" >&2 && exit 1 ;;
esac
folder=$cache/promtool-$release-$version
if [ ! -x "$folder/promtool" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    cd "$scratch"
    apt-get download prometheus >log 2>&1 || { echo "apt-get download prometheus: $(tail -n 1 log)" >&2 && exit 1; }
    ls prometheus_"$version"*.deb >/dev/null 2>&1 || { echo "apt has another prometheus than $version: $(ls)" >&2 && exit 1; }
    dpkg-deb -x prometheus_*.deb out
    mkdir -p "$folder"
    mv out/usr/bin/promtool "$folder/promtool.$$" # another may be doing the same
    mv "$folder/promtool.$$" "$folder/promtool"
fi
echo "$folder/promtool"
