# shellcheck shell=bash disable=SC2154
# The TCP part of ci/demo, which sources this file: what competes, how it is measured, and whether
# the kernel's TCP stood still meanwhile. Starting, stopping and recording are ci/demo's.

# Segments that the kernel may see of a connection under libvma. With the process, or by a reset, a
# connection falls back to the kernel, which receives what the peer still sends (an ACK, a FIN) and
# answers with RST. And a few for each run.
segments_of_an_end=3 stray_segments=2

# --- what competes ---

tcp_latency_round() {
	local size=$1
	tcp_latency kernel "$size" ""
	tcp_latency kernel-spin "$size" "" --nonblocked
	if $with_libvma; then
		tcp_offloaded 1 "a b" tcp_latency libvma "$size" "$libvma"
	fi
}

bulk_round() {
	local mtu=$1
	netns_mtu "$mtu"
	bulk bulk kernel "$mtu" "" ""
	if $with_libvma; then
		tcp_offloaded 2 "a b" bulk bulk libvma "$mtu" "$libvma" "$libvma"
		tcp_offloaded 2 a bulk bulk sender "$mtu" "$libvma" ""
		tcp_offloaded 2 b bulk bulk receiver "$mtu" "" "$libvma"
	fi
	netns_mtu 1500
}

redis_round() {
	local connections=$1
	redis kernel "$connections" ""
	if $with_libvma; then
		# And one that asks for the server's configuration.
		tcp_offloaded $((connections + 1)) "a b" redis libvma "$connections" "$libvma"
	fi
}

# The same measurements by IPv6, and by IPv4 beside them: with so many connections of redis, in bulk, and by UDP.
ipv6_round() {
	local connections=$1 scope ip_b=$ip_b iperf3_family
	netns_ipv6
	for scope in ipv4- ipv6-; do
		iperf3_family=-4
		if [ $scope = ipv6- ]; then
			ip_b=$ip6_b iperf3_family=-6
		fi
		udp_lat kernel ""
		if $with_libvma; then
			offloaded udp_lat libvma "$libvma"
		fi
		# Redis last: what its connections leave when the server ends would be counted with the measurement behind it.
		bulk "${scope}bulk" kernel 1500 "" ""
		if $with_libvma; then
			tcp_offloaded 2 "a b" bulk "${scope}bulk" libvma 1500 "$libvma" "$libvma"
		fi
		redis kernel "$connections" ""
		if $with_libvma; then
			tcp_offloaded $((connections + 1)) "a b" redis libvma "$connections" "$libvma"
		fi
	done
}

loss_rounds() {
	local round
	netns_splice
	cc -O2 -o "$work/relay" "$root/libvma/tests/harness/relay.c"
	for round in $(seq "$rounds"); do
		progress "round $round of $rounds: bulk over a lossy cable"
		lossy_bulk kernel "" ""
		if $with_libvma; then
			# What iperf3 leaves unacknowledged when it exits is the kernel's to repeat over this
			# cable: more segments than the two connections themselves leave.
			tcp_offloaded 20 a lossy_bulk sender "$libvma" ""
			tcp_offloaded 20 "a b" lossy_bulk libvma "$libvma" "$libvma"
		fi
	done
}

# --- how each is measured ---

tcp_latency() {
	sockperf_ping_pong tcp-latency "$@" --tcp
	stop_server
}

# bulk <kind of result> <contestant> <MTU> <library at the sender> <at the receiver> [options]: one
# connection of iperf3; -4, as its sockets would be IPv6 ones, unless that is wanted.
bulk() {
	local kind=$1 name=$2 mtu=$3 sender=$4 receiver=$5 options=("${iperf3_family:--4}" "${@:6}")
	start_server 'Server listening' env LD_PRELOAD="$receiver" \
		iperf3 --forceflush "${iperf3_family:--4}" -s -1 -B "$ip_b" -p "$iperf3_port"
	run_client env LD_PRELOAD="$sender" iperf3 -c "$ip_b" -p "$iperf3_port" -t "$bulk_time" -f m "${options[@]}"
	await_server
	record "$kind" "$name" "$mtu" mbps "$(awk '$NF == "receiver" { print $(NF - 2) }' "$work/client.log")"
}

# Half of a round trip of 64 bytes.
udp_lat() {
	local name=$1 preload=$2
	start_server 'listen on' env LD_PRELOAD="$preload" "$bin/udp_lat" -s -i "$ip_b"
	run_client env LD_PRELOAD="$preload" "$bin/udp_lat" -c -i "$ip_b" -m 64
	stop_server
	record "${scope}udp" "$name" 64 us "$(sed -n 's/.*latency=\([0-9.]*\) .*/\1/p' "$work/client.log")"
}

redis() {
	local name=$1 connections=$2 preload=$3 requests
	# A second or so.
	requests=${redis_requests:-$((connections == 1 ? 50000 : 150000))}
	start_server 'Ready to accept connections' env LD_PRELOAD="$preload" redis-server \
		--bind "$ip_b" --port "$redis_port" --protected-mode no --save '' --appendonly no --dir "$work"
	run_client env LD_PRELOAD="$preload" \
		redis-benchmark -h "$ip_b" -p "$redis_port" -c "$connections" -n "$requests" -t get --csv
	stop_server
	record "${scope}redis" "$name" "$connections" rps "$(redis_column 2)"
	record "${scope}redis" "$name" "$connections" p50 "$(redis_column 5)"
}

# The column of redis-benchmark's row of GET.
redis_column() {
	tr -d '"' <"$work/client.log" | awk -F, -v column="$1" '$1 == "GET" { print $column }'
}

# lossy_bulk <contestant> <library at the sender> <at the receiver>: 1 % of the frames lost each way
# and a quarter of a millisecond of delay, CUBIC everywhere. In a round all have the same losses.
lossy_bulk() {
	local relay
	"${in_relay[@]}" "$work/relay" relay-a relay-b "seed=$round" loss=1 delay=250 >"$work/relay.log" 2>&1 &
	relay=$!
	until grep -q ready "$work/relay.log"; do
		kill -0 "$relay" 2>/dev/null || die "the relay did not start: $(cat "$work/relay.log")"
		sleep 0.02
	done
	bulk_time=$((2 * bulk_time)) bulk loss "$1" 1500 "$2" "$3" -C cubic
	kill "$relay"
	wait "$relay" || die "the relay failed: $(cat "$work/relay.log")"
	record loss "$1" 1500 overrun "$(awk '{ sum += $NF } END { print sum }' "$work/relay.log")"
}

# tcp_offloaded <connections> "<side> ..." <measurement...>: runs the measurement and fails unless the
# kernel's TCP counters stood still on the sides, which are those under libvma.
tcp_offloaded() {
	local connections=$1 sides before passed allowed
	read -ra sides <<<"$2"
	before=$(netns_kernel_segments "${sides[@]}")
	"${@:3}"
	passed=$(($(netns_kernel_segments "${sides[@]}") - before))
	allowed=$(((segments_of_an_end * connections + stray_segments) * ${#sides[@]}))
	kernel_segments=$((kernel_segments + passed))
	kernel_segments_allowed=$((kernel_segments_allowed + allowed))
	[ "$passed" -le "$allowed" ] ||
		die "NOT OFFLOADED: $passed TCP segments went through the kernel while '${*:3}' ran under $libvma" \
			"($allowed of connections that end are allowed)"
}
