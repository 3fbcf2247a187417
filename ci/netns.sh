# shellcheck shell=bash
# Two network namespaces, a cable between them, nothing else: a private network for tests
# and measurements. To be sourced by a bash script that runs as root:
#
#     . ci/netns.sh
#     netns_make                       # cleaned up when the script ends, however it ends
#     "${in_a[@]}" ping 10.99.0.2      # in_a, in_b: the words that run a command there
#     netns_splice                     # from here on a program of ours in the cable, in_relay
#
# No packet leaves the namespaces.

ip_a=10.99.0.1 dev_a=veth0 mac_a=02:00:00:99:00:01
ip_b=10.99.0.2 dev_b=veth1 mac_b=02:00:00:99:00:02

# Makes the namespaces `vma-<pid>-a` and `-b`. Sets ns_a, ns_b, in_a, in_b and the exit trap.
netns_make() {
	ns_a=vma-$$-a ns_b=vma-$$-b ns_relay=vma-$$-relay
	in_a=(ip netns exec "$ns_a") in_b=(ip netns exec "$ns_b")
	trap netns_remove EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM

	ip netns add "$ns_a"
	ip netns add "$ns_b"
	ip -n "$ns_a" link add "$dev_a" address "$mac_a" type veth peer "$dev_b" address "$mac_b" netns "$ns_b"
	netns_end "$ns_a" "$dev_a" "$ip_a" "$ip_b" "$mac_b"
	netns_end "$ns_b" "$dev_b" "$ip_b" "$ip_a" "$mac_a"
}

# Brings up one end, with the other end as a permanent neighbour, so that nobody needs ARP.
netns_end() {
	local ns=$1 dev=$2 ip=$3 peer_ip=$4 peer_mac=$5
	ip -n "$ns" link set lo up
	ip -n "$ns" address add "$ip/24" dev "$dev"
	# No IPv6 address on the cable, hence no duplicate address detection, no router solicitation.
	ip -n "$ns" link set "$dev" addrgenmode none up
	ip -n "$ns" neighbour replace "$peer_ip" lladdr "$peer_mac" nud permanent dev "$dev"
	# A program that looks up names would ask the machine's name server, which a namespace
	# cannot reach, and wait. `ip netns exec` puts these files over /etc/hosts and the like.
	mkdir -p "/etc/netns/$ns"
	printf '127.0.0.1 localhost\n%s a\n%s b\n' "$ip_a" "$ip_b" >"/etc/netns/$ns/hosts"
	printf 'options timeout:1 attempts:1\n' >"/etc/netns/$ns/resolv.conf"
}

# Gives both ends an IPv6 address, ip6_a and ip6_b, with the other end as a permanent neighbour.
netns_ipv6() {
	ip6_a=fd00:99::1 ip6_b=fd00:99::2
	ip -n "$ns_a" address replace "$ip6_a/64" dev "$dev_a" nodad
	ip -n "$ns_b" address replace "$ip6_b/64" dev "$dev_b" nodad
	ip -n "$ns_a" neighbour replace "$ip6_b" lladdr "$mac_b" nud permanent dev "$dev_a"
	ip -n "$ns_b" neighbour replace "$ip6_a" lladdr "$mac_a" nud permanent dev "$dev_b"
}

# Sets the MTU of both ends.
netns_mtu() {
	ip -n "$ns_a" link set "$dev_a" mtu "$1"
	ip -n "$ns_b" link set "$dev_b" mtu "$1"
}

# Cuts the cable for good and leads both ends into a third namespace, as `relay-a` and `relay-b`, for
# a program that forwards frames between them. Sets in_relay.
netns_splice() {
	# shellcheck disable=SC2034 # for the caller
	in_relay=(ip netns exec "$ns_relay")
	ip netns add "$ns_relay"
	ip -n "$ns_a" link delete "$dev_a"
	ip -n "$ns_a" link add "$dev_a" address "$mac_a" type veth peer relay-a netns "$ns_relay"
	ip -n "$ns_b" link add "$dev_b" address "$mac_b" type veth peer relay-b netns "$ns_relay"
	# Nobody in the cable could compute a checksum or cut a super-frame.
	"${in_a[@]}" ethtool -K "$dev_a" tx off tso off gro off >/dev/null
	"${in_b[@]}" ethtool -K "$dev_b" tx off tso off gro off >/dev/null
	netns_end "$ns_a" "$dev_a" "$ip_a" "$ip_b" "$mac_b"
	netns_end "$ns_b" "$dev_b" "$ip_b" "$ip_a" "$mac_a"
	ip -n "$ns_relay" link set relay-a addrgenmode none up
	ip -n "$ns_relay" link set relay-b addrgenmode none up
}

# Ends everything in the namespaces and removes them. Safe to call twice.
netns_remove() {
	local ns pids
	for ns in "$ns_a" "$ns_b" "$ns_relay"; do
		[ -e "/run/netns/$ns" ] || continue
		pids=$(ip netns pids "$ns")
		# shellcheck disable=SC2086 # one word per process
		[ -z "$pids" ] || { kill -KILL $pids && wait $pids; } 2>/dev/null || true
		ip netns delete "$ns"
		rm -rf "/etc/netns/${ns:?}"
	done
	rmdir /etc/netns 2>/dev/null || true
}

# The number of UDP datagrams that the kernels of both namespaces received and sent.
netns_kernel_datagrams() {
	{ "${in_a[@]}" cat /proc/net/snmp /proc/net/snmp6 && "${in_b[@]}" cat /proc/net/snmp /proc/net/snmp6; } |
		awk '$1 == "Udp:" && $2 ~ /^[0-9]/ { sum += $2 + $5 }
			$1 ~ /^Udp6(In|Out)Datagrams$/ { sum += $2 }
			END { print sum }'
}

# The number of TCP segments that the kernels of the given sides (`a`, `b`) received and sent.
netns_kernel_segments() {
	local side
	for side in "$@"; do
		ip netns exec "vma-$$-$side" cat /proc/net/snmp
	done | awk '$1 == "Tcp:" && $2 ~ /^[0-9]/ { sum += $11 + $12 + $13 } END { print sum }'
}
