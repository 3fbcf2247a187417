#!/usr/bin/env bash
# Two interfaces of one host in one network: prints the MAC addresses that another host learns for their two
# addresses, without and with the sysctls given as arguments. Needs root; everything is in namespaces of its own.
#
# usage: arp_flux.sh SYSCTL=VALUE ...     eth1 and eth2 are the two interfaces, 192.168.1.1 and .2 their addresses
set -euo pipefail

peer=vma-arp-$$-peer host=vma-arp-$$-host switch=vma-arp-$$-switch
trap 'for name in "$peer" "$host" "$switch"; do ip netns delete "$name" 2>/dev/null || true; done' EXIT
for name in "$peer" "$host" "$switch"; do ip netns add "$name"; done
ip -n "$switch" link add br0 type bridge
ip -n "$switch" link set br0 up

# plug <namespace> <interface> <address>
plug() {
	ip -n "$1" link add "$2" type veth peer "p-$2" netns "$switch"
	ip -n "$switch" link set dev "p-$2" master br0 up
	ip -n "$1" address add "$3/24" dev "$2"
	ip -n "$1" link set "$2" up
}
plug "$peer" eth0 192.168.1.5
plug "$host" eth1 192.168.1.1
plug "$host" eth2 192.168.1.2

# Asks for both addresses and prints what was learnt, the word before it.
learnt() {
	ip -n "$peer" neigh flush all
	for _ in $(seq 50); do
		ip netns exec "$peer" python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for address in ("192.168.1.1", "192.168.1.2"): s.sendto(b"", (address, 9))'
		sleep 0.1
		[ "$(ip -n "$peer" neigh show | grep -c lladdr)" = 2 ] && break
	done
	ip -n "$peer" neigh show | awk -v word="$1" '$4 == "lladdr" { print word, $1, $5 }'
}
learnt before
ip netns exec "$host" sysctl -qw "$@"
learnt after
