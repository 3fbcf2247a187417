# shellcheck shell=bash disable=SC2154
# The part of ci/demo within one host, which ci/demo sources: two processes on 127.0.0.1, by the
# kernel's loopback and by libvma through shared memory, and the floor: a cache line that two processes
# hand each other. Needs no privilege; where an ordinary user may have a network namespace, it gets one, as
# then nobody else's packets are on its lo. Starting, stopping and recording are ci/demo's,
# and so is how each is measured, here on ports that nobody else is likely to use.

# Packets that may pass over lo in a run under libvma: of the handshakes, and of the moments before two
# processes have found each other. A run has a hundred times as many messages.
lo_slack=20000

local_part() {
	local ip_b=127.0.0.1 in_a=() in_b=() scope=local- sockperf_port=17111 iperf3_port=17201 redis_port=17379
	local time=$local_time round=0 bulk_time=1 client_cpu server_cpu lo_packets=0 lo_end
	read -r client_cpu server_cpu _ < <(allowed_cpus)
	[ -n "$server_cpu" ] || die "needs two CPUs: one for each end"
	begin
	private_lo
	for round in $(seq "$rounds"); do
		progress "round $round of $rounds: latency within this host"
		local_latency_round
		progress "round $round of $rounds: bulk within this host"
		local_bulk_round
		progress "round $round of $rounds: redis within this host"
		local_redis_round 1 10000 60000
		local_redis_round 50 60000 150000
	done
	finish "Within this host, between two processes, on 127.0.0.1."
	! $with_libvma || echo "packets on lo during the libvma rounds: $lo_packets"
	clean_up
}

# A network namespace in which there is only lo, without any privilege for who enters it, if we may have
# one.
private_lo() {
	mkfifo "$work/lo"
	# shellcheck disable=SC2016 # the shell in the namespace expands it
	unshare --user --map-root-user --net sh -c \
		'PATH=$PATH:/usr/sbin:/sbin; ip link set lo up && echo ready && read -r _' \
		<"$work/lo" >"$work/lo.log" 2>&1 &
	lo_of=$!
	exec {lo_end}>"$work/lo"
	for _ in $(seq 100); do
		if grep -q ready "$work/lo.log"; then
			in_a=(nsenter --preserve-credentials --user --net --target "$lo_of"
				setpriv --bounding-set=-all --inh-caps=-all --no-new-privs)
			in_b=("${in_a[@]}")
			return
		fi
		kill -0 "$lo_of" 2>/dev/null || break
		sleep 0.02
	done
	lo_of=
}

# The CPUs that we may use.
allowed_cpus() {
	awk '/^Cpus_allowed_list/ {
		count = split($2, ranges, ",")
		for (i = 1; i <= count; i++) {
			ends = split(ranges[i], range, "-")
			for (cpu = range[1]; cpu <= range[ends]; cpu++)
				printf "%d ", cpu
		}
		print ""
	}' /proc/self/status
}

# --- what competes ---

local_latency_round() {
	local protocol options
	for protocol in "" --tcp; do
		local kind=local-latency
		[ -z "$protocol" ] || kind=local-tcp-latency
		for options in "" --nonblocked; do
			# shellcheck disable=SC2086 # none or one word each
			sockperf_ping_pong $kind "kernel${options:+-spin}" 64 "" $options $protocol
			stop_server
		done
		if $with_libvma; then
			# shellcheck disable=SC2086
			past_lo sockperf_ping_pong $kind libvma 64 "$libvma" $protocol
			stop_server
		fi
	done
	shared_memory_latency
}

local_bulk_round() {
	bulk local-bulk kernel 65536 "" ""
	if $with_libvma; then
		past_lo bulk local-bulk libvma 65536 "$libvma" "$libvma"
	fi
}

# <connections> <requests to the kernel's> <requests to libvma's>
local_redis_round() {
	redis_requests=$2 redis kernel "$1" ""
	if $with_libvma; then
		redis_requests=$3 past_lo redis libvma "$1" "$libvma"
	fi
}

# The floor: one cache line each way, both ends spinning.
shared_memory_latency() {
	local percentile
	timeout --foreground $((${time%.*} + 30)) "$bin/shm-ping-pong" --time "$time" --cpus "$client_cpu,$server_cpu" \
		>"$work/client.log" 2>&1 || die "the shared memory ping-pong failed"
	for percentile in p50 p99 p99.9; do
		record local-latency floor 64 "$percentile" "$(value "$percentile" "$work/client.log")"
	done
}

# Runs a measurement and fails if it went over lo.
past_lo() {
	local before passed
	before=$(packets_on_lo)
	"$@"
	passed=$(($(packets_on_lo) - before))
	lo_packets=$((lo_packets + passed))
	[ "$passed" -le "$lo_slack" ] ||
		die "NOT OFFLOADED: $passed packets went over lo while '$*' ran under $libvma"
}

packets_on_lo() {
	awk '$1 == "lo:" { print $3 }' "/proc/${lo_of:-self}/net/dev"
}
