/* The transcript: how results, addresses, bytes and messages are written. */
#include "prober.h"

#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <stdarg.h>

char room[ROOM];

static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

void line(const char *format, ...)
{
	char text[4096];
	int length = snprintf(text, sizeof text, "%s | ", case_name);
	va_list arguments;
	va_start(arguments, format);
	length += vsnprintf(text + length, sizeof text - length - 1, format, arguments);
	va_end(arguments);
	if (length > (int)sizeof text - 2)
		length = sizeof text - 2;
	text[length++] = '\n';
	int before = errno;
	pthread_mutex_lock(&writing);
	if (write(1, text, length) != length)
		_exit(3);
	pthread_mutex_unlock(&writing);
	errno = before;
}

const char *error_name(int error)
{
	const char *name = strerrorname_np(error);
	return name ? name : "?";
}

static const char *result_text(long result, int error)
{
	static __thread char text[64];
	if (result == -1)
		snprintf(text, sizeof text, "-1 %s", error_name(error));
	else
		snprintf(text, sizeof text, "%ld%s", result, error == UNTOUCHED ? "" : " (errno changed)");
	return text;
}

long report(const char *call, long result)
{
	int error = errno;
	line("%s = %s", call, result_text(result, error));
	errno = error;
	return result;
}

static __thread long watch;

long milliseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void watch_start(void)
{
	watch = milliseconds();
}

long report_timed(const char *call, long result, int expected)
{
	int error = errno;
	long spent = milliseconds() - watch;
	/* The machine may be busy, so late by much is still on time; early is only what the peer or
	 * a timer, started before, brings. */
	char time[64];
	if (spent >= expected + 60 + expected / 4)
		snprintf(time, sizeof time, "%ld ms, not %d", spent, expected);
	else if (spent < expected - 2 - expected / 20)
		snprintf(time, sizeof time, "before %d ms", expected);
	else if (expected == 0)
		snprintf(time, sizeof time, "at once");
	else
		snprintf(time, sizeof time, "about %d ms", expected);
	line("%s = %s, %s", call, result_text(result, error), time);
	errno = error;
	return result;
}

static char *storage(void)
{
	static __thread char texts[8][256];
	static __thread unsigned turn;
	return texts[turn++ % 8];
}

const char *text_of(const void *bytes, size_t length)
{
	char *text = storage();
	const unsigned char *from = bytes;
	bool plain = length <= 64;
	for (size_t i = 0; i < length && plain; i++)
		plain = from[i] >= ' ' && from[i] < 127;
	if (plain) {
		snprintf(text, 256, "'%.*s'", (int)length, (const char *)bytes);
		return text;
	}
	uint32_t hash = 2166136261u;
	for (size_t i = 0; i < length; i++)
		hash = (hash ^ from[i]) * 16777619u;
	snprintf(text, 256, "%zu bytes #%08x", length, hash);
	return text;
}

const char *name_of(const struct sockaddr_in *address)
{
	char *text = storage(), ip[INET_ADDRSTRLEN];
	if (address->sin_family == AF_INET6) {
		/* The address itself lies behind. */
		int port = ntohs(address->sin_port);
		snprintf(text, 256, "family 10 port %d, flow label %#x", port >= EPHEMERAL ? EPHEMERAL : port,
			 ((const struct sockaddr_in6 *)address)->sin6_flowinfo);
		return text;
	}
	if (address->sin_family != AF_INET) {
		snprintf(text, 256, "family %d", address->sin_family);
		return text;
	}
	inet_ntop(AF_INET, &address->sin_addr, ip, sizeof ip);
	int port = ntohs(address->sin_port);
	if (port >= EPHEMERAL)
		snprintf(text, 256, "%s:ephemeral", ip);
	else
		snprintf(text, 256, "%s:%d", ip, port);
	bool zero = true;
	for (int i = 0; i < 8; i++)
		zero = zero && address->sin_zero[i] == 0;
	if (!zero)
		strcat(text, " (padding not zero)");
	return text;
}

void show_bytes(const char *what, const void *bytes, long length)
{
	if (length >= 0)
		line("  %s %s", what, text_of(bytes, length));
}

void show_address(const char *what, const struct sockaddr_in *address, socklen_t length)
{
	line("  %s %s, length %d", what, name_of(address), (int)length);
}

static void show_control(const struct cmsghdr *control)
{
	const unsigned char *data = CMSG_DATA(control);
	size_t length = control->cmsg_len - CMSG_LEN(0);
	if (control->cmsg_len < CMSG_LEN(0)) {
		line("  control of impossible length %zu", (size_t)control->cmsg_len);
		return;
	}
	char value[200] = "";
	if (control->cmsg_level == SOL_SOCKET &&
	    (control->cmsg_type == SCM_TIMESTAMP || control->cmsg_type == SCM_TIMESTAMPNS ||
	     control->cmsg_type == SCM_TIMESTAMPING)) {
		/* Which of the stamps are set, and that the first is of this minute. */
		for (size_t i = 0; i + 16 <= length; i += 16) {
			int64_t pair[2];
			memcpy(pair, data + i, 16);
			long age = time(NULL) - pair[0];
			bool small = pair[1] >= 0 &&
				pair[1] < (control->cmsg_type == SCM_TIMESTAMP ? 1000000 : 1000000000);
			strcat(value, pair[0] == 0 && pair[1] == 0 ? " unset"
				: age >= -1 && age < 60 && small ? " now" : " wrong");
		}
	} else if (control->cmsg_level == IPPROTO_IP && control->cmsg_type == IP_PKTINFO &&
		   length == sizeof(struct in_pktinfo)) {
		struct in_pktinfo info;
		memcpy(&info, data, sizeof info);
		char device[IF_NAMESIZE] = "?", specific[20], destination[20];
		if_indextoname(info.ipi_ifindex, device);
		inet_ntop(AF_INET, &info.ipi_spec_dst, specific, sizeof specific);
		inet_ntop(AF_INET, &info.ipi_addr, destination, sizeof destination);
		snprintf(value, sizeof value, " %s %s %s", device, specific, destination);
	} else if (control->cmsg_level == IPPROTO_IP && control->cmsg_type == IP_ORIGDSTADDR &&
		   length == sizeof(struct sockaddr_in)) {
		struct sockaddr_in address;
		memcpy(&address, data, sizeof address);
		snprintf(value, sizeof value, " %s", name_of(&address));
	} else {
		for (size_t i = 0; i < length && i < 48; i++)
			sprintf(value + strlen(value), " %02x", data[i]);
	}
	line("  control level %d type %d length %zu:%s", control->cmsg_level, control->cmsg_type,
	     (size_t)control->cmsg_len, value);
}

void show_message(const struct msghdr *message)
{
	line("  namelen %d, controllen %zu, flags %#x", (int)message->msg_namelen,
	     (size_t)message->msg_controllen, message->msg_flags);
	if (message->msg_name && message->msg_namelen == sizeof(struct sockaddr_in))
		line("  from %s", name_of(message->msg_name));
	if (message->msg_controllen < sizeof(struct cmsghdr))
		return;
	struct msghdr copy = *message;
	for (struct cmsghdr *at = CMSG_FIRSTHDR(&copy); at; at = CMSG_NXTHDR(&copy, at))
		show_control(at);
}

void show_events(const struct epoll_event *events, int count)
{
	for (int i = 0; i < count; i++)
		line("  event %#x data %llx", events[i].events, (unsigned long long)events[i].data.u64);
}

void show_poll(const struct pollfd *fds, int count)
{
	for (int i = 0; i < count; i++)
		line("  [%d] revents %#x", i, (unsigned)(unsigned short)fds[i].revents);
}

void wipe(void)
{
	memset(room, 0xee, sizeof room);
}

static void show_received(long result, size_t length)
{
	size_t in_place = result < 0 ? 0 : (size_t)result < length ? (size_t)result : length;
	if (result >= 0)
		show_bytes("bytes", room, in_place);
	for (size_t i = in_place; i < in_place + 64 && i < sizeof room; i++)
		if ((unsigned char)room[i] != 0xee) {
			line("  byte %zu behind the datagram was written", i - in_place);
			break;
		}
}

bool receive_shown(int fd, size_t length, int flags)
{
	wipe();
	char call[80];
	snprintf(call, sizeof call, "recv(%d, %zu, %#x)", fd, length, flags);
	errno = UNTOUCHED;
	long result = report(call, recv(fd, room, length, flags));
	show_received(result, length);
	return result >= 0;
}

bool receive_from_shown(int fd, size_t length, int flags)
{
	struct sockaddr_in from = { 0 };
	socklen_t size = sizeof from;
	wipe();
	char call[80];
	snprintf(call, sizeof call, "recvfrom(%d, %zu, %#x)", fd, length, flags);
	errno = UNTOUCHED;
	long result = report(call, recvfrom(fd, room, length, flags, (struct sockaddr *)&from, &size));
	show_received(result, length);
	if (result >= 0)
		show_address("from", &from, size);
	return result >= 0;
}

void must(const char *what, long result)
{
	if (result < 0) {
		line("! the test itself failed: %s: %s", what, error_name(errno));
		_exit(4);
	}
}

struct sockaddr_in at(const char *ip, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, ip, &address.sin_addr);
	return address;
}

int udp_at(const char *ip, int port)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	must("socket", fd);
	must("bind", bind(fd, ADDRESS(ip, port)));
	return fd;
}

int udp(int port)
{
	return udp_at("0.0.0.0", port);
}
