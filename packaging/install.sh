#!/usr/bin/env bash
# Builds libvma and installs it from source: what the packages libvma, libvma-utils and libvma-dev
# (libvma-devel) hold. Say the same --prefix and --destdir to uninstall.
#
# usage: packaging/install.sh [options]
#     --prefix DIR      for libraries, programs and manual pages (/usr/local)
#     --libdir DIR      for the libraries (PREFIX/lib)
#     --sysconfdir DIR  for configuration and the init script (/etc; with a prefix other than /usr and
#                       /usr/local PREFIX/etc)
#     --docdir DIR      for documents (PREFIX/share/doc/libvma)
#     --destdir DIR     an image of a system to install into, instead of this one
#     --no-build        install what "cargo build" left in the target folder
#     --uninstall       remove what was installed; edited configuration files stay
#     --help
#
# A configuration file that somebody edited is never written to: the new one comes beside it, with the
# suffix .new.
#
# environment: CARGO_TARGET_DIR, PRJ_RELEASE, SOURCE_DATE_EPOCH, as for ci/build-packages
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=/usr/local libdir='' sysconfdir='' docdir='' destdir='' build=true uninstall=false
target=${CARGO_TARGET_DIR:-$root/target}

main() {
	umask 022
	options "$@"
	# What is installed, one a line, for the next installation and for the end: "file PATH",
	# "folder PATH", "configuration SHA256 PATH". Paths are those of the installed system.
	manifest=$prefix/share/libvma/manifest
	if $uninstall; then
		uninstall
		return
	fi
	if $build; then
		check_tools
		build_programs
	fi
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	stage "$work"
	: >"$work/manifest"
	install_all
	remove_obsolete
	put_manifest
	tell_system
	say_how
}

options() {
	local name value
	while [ $# -gt 0 ]; do
		name=${1%%=*}
		case $name in
		--prefix | --libdir | --sysconfdir | --docdir | --destdir)
			case $1 in
			*=*) value=${1#*=} ;;
			*)
				[ $# -ge 2 ] || die "$name needs a folder"
				value=$2
				shift
				;;
			esac
			# They are written into the unit and the init script, where other characters mean something.
			[[ $value =~ ^/[A-Za-z0-9._/+@~-]*$ ]] ||
				die "$name $value: a path that begins with / and has only letters, digits and . _ / + @ ~ -"
			[ "$value" = / ] || value=${value%/}
			printf -v "${name#--}" %s "$value"
			;;
		--no-build) build=false ;;
		--uninstall) uninstall=true ;;
		--help)
			usage
			exit 0
			;;
		*)
			usage >&2
			exit 2
			;;
		esac
		shift
	done
	[ "$destdir" != / ] || destdir=''
	[ "$prefix" != / ] || prefix=''
	[ -n "$libdir" ] || libdir=$prefix/lib
	[ -n "$docdir" ] || docdir=$prefix/share/doc/libvma
	case $prefix in
	/usr | /usr/local | '') [ -n "$sysconfdir" ] || sysconfdir=/etc ;;
	*) [ -n "$sysconfdir" ] || sysconfdir=$prefix/etc ;;
	esac
}

# --- build ---------------------------------------------------------------------------------------

check_tools() {
	local tool
	for tool in cargo:'a Rust toolchain' clang:'compiles the XDP program' cc:'the linker; the package gcc'; do
		command -v "${tool%%:*}" >/dev/null ||
			die "no ${tool%%:*} here (${tool#*:}); docs/installation.md lists what building needs, ci/setup installs it on Debian"
	done
}

build_programs() {
	cd "$root"
	[ -n "${SOURCE_DATE_EPOCH:-}" ] ||
		SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
	export SOURCE_DATE_EPOCH
	cargo build --locked --release --package libvma --package libvma-utils
	cargo build --locked --profile debug-library --package libvma --features fine-log
}

# Lays into $1 what is installed and is not a file of the source tree.
stage() {
	local name built
	for name in libvma.so udp_lat vma_conf vma_stats vmad; do
		built=$target/release/$name
		[ -e "$built" ] || die "no $built: without --no-build it is built"
		cp "$built" "$1/$name"
		# Without the symbols that only a debugger reads, where there is what takes them away.
		! command -v strip >/dev/null || strip --strip-unneeded --remove-section=.comment "$1/$name"
	done
	built=$target/debug-library/libvma.so
	[ -e "$built" ] || die "no $built: without --no-build it is built"
	cp "$built" "$1/libvma-debug.so"

	# The library says itself which version it is.
	LC_ALL=C grep --text --only-matching --max-count=1 '^VMA_VERSION: .*' "$1/libvma.so" >"$1/VMA_VERSION" ||
		die "$target/release/libvma.so does not tell its version"
	version=$(sed 's/^VMA_VERSION: \([0-9.]*\).*/\1/' "$1/VMA_VERSION")
	sed -e '/^#/d' -e "s/@VERSION@/$version/" -e "s|@INCLUDEDIR@|$prefix/include|" \
		"$root/packaging/libvma.pc" >"$1/libvma.pc"

	# The daemon where it is, with the configuration where that is.
	local option=''
	[ "$sysconfdir" = /etc ] || option="--config $sysconfdir/vma/vmad.toml"
	sed "s|^ExecStart=/usr/sbin/vmad --console|ExecStart=$prefix/sbin/vmad --console${option:+ $option}|" \
		"$root/init/vma.service" >"$1/vma.service"
	sed -e "s|^DAEMON=.*|DAEMON=$prefix/sbin/vmad|" -e "s|^OPTIONS=.*|OPTIONS='$option'|" \
		-e "s|^CONFIG=.*|CONFIG=$sysconfdir/vma/vmad.toml|" "$root/init/vma.init" >"$1/vma.init"
}

# --- install -------------------------------------------------------------------------------------

install_all() {
	local tool page document example
	[ -z "$destdir" ] || mkdir -p "$destdir"
	put 644 "$work/libvma.so" "$libdir/libvma.so.$version"
	link "libvma.so.$version" "$libdir/libvma.so.${version%%.*}"
	link "libvma.so.$version" "$libdir/libvma.so"
	put 644 "$work/libvma-debug.so" "$libdir/libvma-debug.so"
	put 644 "$root/libvma-dev/include/mellanox/vma_extra.h" "$prefix/include/mellanox/vma_extra.h"
	put 644 "$work/libvma.pc" "$libdir/pkgconfig/libvma.pc"
	put 755 "$work/vmad" "$prefix/sbin/vmad"
	for tool in udp_lat vma_conf vma_stats; do
		put 755 "$work/$tool" "$prefix/bin/$tool"
	done
	put_configuration "$root/libvma/libvma.conf" "$sysconfdir/libvma.conf"
	put_configuration "$root/init/vmad.toml" "$sysconfdir/vma/vmad.toml"
	put_configuration "$root/init/30-libvma-limits.conf" "$sysconfdir/security/limits.d/30-libvma-limits.conf"
	put 755 "$work/vma.init" "$sysconfdir/init.d/vma"
	put 644 "$work/vma.service" "$prefix/lib/systemd/system/vma.service"
	put 644 "$root/docs/README.txt" "$docdir/README.txt"
	for document in architecture.md compatibility.md containers.md extra-api.md installation.md interposition.md monitoring.md parameters.md \
		performance.md performance.svg release-notes.md socket-options.md user-manual.md; do
		put 644 "$root/docs/$document" "$docdir/$document"
	done
	for example in "$root"/libvma-dev/examples/*; do
		put 644 "$example" "$docdir/examples/${example##*/}"
	done
	put 644 "$work/VMA_VERSION" "$docdir/VMA_VERSION"
	put 644 "$root/LICENSE-APACHE" "$docdir/LICENSE-APACHE"
	put 644 "$root/LICENSE-MIT" "$docdir/LICENSE-MIT"
	gzip -9n <"$root/CHANGELOG.md" >"$work/changelog.gz"
	put 644 "$work/changelog.gz" "$docdir/changelog.gz"
	for page in vma.7 vmad.8 udp_lat.8 vma_conf.8 vma_stats.8; do
		gzip -9n <"$root/docs/$page" >"$work/$page.gz"
		put 644 "$work/$page.gz" "$prefix/share/man/man${page##*.}/$page.gz"
	done
}

# put MODE FILE PATH. The old file is not written into: a program may be executing it.
put() {
	make_folder "${3%/*}"
	install -m "$1" "$2" "$destdir$3.installing"
	mv -f "$destdir$3.installing" "$destdir$3"
	echo "file $3" >>"$work/manifest"
}

link() {
	ln -sfn "$1" "$destdir$2"
	echo "file $2" >>"$work/manifest"
}

# put_configuration FILE PATH: replaces only what nobody has edited since we installed it.
put_configuration() {
	local ours new present=''
	new=$(sum "$1")
	ours=$(recorded "$2")
	make_folder "${2%/*}"
	[ ! -e "$destdir$2" ] || present=$(sum "$destdir$2")
	case $present in
	'' | "$ours" | "$new")
		[ "$present" = "$new" ] || install -m 644 "$1" "$destdir$2"
		echo "configuration $new $2" >>"$work/manifest"
		rm -f "$destdir$2.new"
		;;
	*)
		# What it was when it was ours: it stays an edited one.
		echo "configuration ${ours:-none} $2" >>"$work/manifest"
		put 644 "$1" "$2.new"
		echo "install.sh: $destdir$2 was edited and stays; the new one is $destdir$2.new"
		;;
	esac
}

# The checksum with which a configuration file was installed the last time; nothing if it was not.
recorded() {
	[ ! -e "$destdir$manifest" ] ||
		sed -n "s|^configuration \([^ ]*\) $1\$|\1|p" "$destdir$manifest"
}

sum() {
	sha256sum <"$1" | cut -d ' ' -f 1
}

# Makes a folder and those above it, and notes each that was not there.
make_folder() {
	[ -n "$1" ] && [ ! -d "$destdir$1" ] || return 0
	make_folder "${1%/*}"
	mkdir "$destdir$1"
	echo "folder $1" >>"$work/manifest"
}

# What an earlier version had and this one has not.
remove_obsolete() {
	[ -e "$destdir$manifest" ] || return 0
	local kind path
	while read -r kind path; do
		[ "$kind" = file ] || continue
		grep -qxF "file $path" "$work/manifest" || rm -f "$destdir$path"
	done <"$destdir$manifest"
	# They are still ours to remove in the end.
	grep '^folder ' "$destdir$manifest" >>"$work/manifest" || true
}

put_manifest() {
	make_folder "${manifest%/*}"
	install -m 644 "$work/manifest" "$destdir$manifest"
}

# --- uninstall -----------------------------------------------------------------------------------

uninstall() {
	[ -e "$destdir$manifest" ] ||
		die "no $destdir$manifest: nothing was installed with this --prefix and --destdir"
	stop_daemon
	local kind path
	while read -r kind path; do
		case $kind in
		file) rm -f "$destdir$path" ;;
		configuration) remove_configuration "${path%% *}" "${path#* }" ;;
		esac
	done <"$destdir$manifest"

	local folders
	# Those inside first. One with something else in it stays.
	folders=$(sed -n 's/^folder //p' "$destdir$manifest" | LC_ALL=C sort -ru)
	rm -f "$destdir$manifest"
	while read -r path; do
		[ -z "$path" ] || rmdir "$destdir$path" 2>/dev/null || true
	done <<<"$folders"
	[ -n "$destdir" ] || ! is_root || ldconfig
}

# remove_configuration SUM PATH
remove_configuration() {
	[ -e "$destdir$2" ] || return 0
	if [ "$(sum "$destdir$2")" = "$1" ]; then
		rm -f "$destdir$2"
	else
		echo "install.sh: $destdir$2 was edited and stays"
	fi
}

# The daemon is ours only where this system's own one was installed.
stop_daemon() {
	local script
	[ -z "$destdir" ] && is_root || return 0
	script=$(sed -n 's/^file \(.*\/init\.d\/vma\)$/\1/p' "$manifest")
	if [ -d /run/systemd/system ]; then
		systemctl --quiet disable --now vma.service || true
	elif [ -x "$script" ]; then
		"$script" stop || true
	fi
}

# --- after ---------------------------------------------------------------------------------------

tell_system() {
	[ -z "$destdir" ] && is_root || return 0
	ldconfig
	[ ! -d /run/systemd/system ] || systemctl daemon-reload
}

say_how() {
	[ -z "$destdir" ] || return 0
	local library=$libdir/libvma.so
	# Where the loader finds it by itself, the name is enough.
	if is_root && ldconfig -p | grep -qF "=> $libdir/libvma.so"; then library=libvma.so; fi
	echo "Run a program over libvma:   LD_PRELOAD=$library program"
	[ "$sysconfdir" = /etc ] || echo "with this configuration:     VMA_CONFIG_FILE=$sysconfdir/libvma.conf"
	! is_root || echo "Start the daemon:            $sysconfdir/init.d/vma start"
}

is_root() {
	[ "$(id -u)" = 0 ]
}

die() {
	echo "install.sh: $*" >&2
	exit 1
}

usage() {
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
}

main "$@"
