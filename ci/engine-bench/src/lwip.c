/* Two endpoints of lwIP on one thread, over its raw API: two interfaces of one stack (its state is
 * global), joined by a link in memory.
 *
 * Debian builds the library for sockets and threads, with MSS 1460 and a window of 65 535 bytes.
 * Without tcpip_init() there is no thread and no lock is checked. What else the build fixes is
 * undone here, in lwIP's favour: segments as large as the MTU allows, larger windows, checksums
 * that can be off, no mutex around its counters, and a clock that need not be read. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lwip/inet_chksum.h>
#include <lwip/init.h>
#include <lwip/ip4.h>
#include <lwip/netif.h>
#include <lwip/pbuf.h>
#include <lwip/priv/tcp_priv.h>
#include <lwip/sys.h>
#include <lwip/tcp.h>
#include <lwip/timeouts.h>

/* Stops at a call that failed, at which point no number would mean anything. */
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "lwip.c:%d: %s\n", __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

enum { PORT = 7 };

/* --- the library's functions that are replaced ----------------------------------------------- */

static int checksums;
static uint64_t now_us;

u32_t sys_now(void)
{
	return (u32_t)(now_us / 1000);
}

sys_prot_t sys_arch_protect(void)
{
	return 0;
}

void sys_arch_unprotect(sys_prot_t before)
{
	(void)before;
}

/* The library's own definition of a function that is replaced. */
#define ITS_OWN(name) \
	static __typeof__(name) *own; \
	if (!own) \
		CHECK(own = (__typeof__(name) *)dlsym(RTLD_NEXT, #name))

u16_t inet_chksum(const void *bytes, u16_t len)
{
	ITS_OWN(inet_chksum);
	return checksums ? own(bytes, len) : 0;
}

u16_t inet_chksum_pseudo(struct pbuf *p, u8_t protocol, u16_t len, const ip4_addr_t *from,
			 const ip4_addr_t *to)
{
	ITS_OWN(inet_chksum_pseudo);
	return checksums ? own(p, protocol, len, from, to) : 0;
}

u16_t inet_chksum_pseudo_partial(struct pbuf *p, u8_t protocol, u16_t len, u16_t part,
				 const ip4_addr_t *from, const ip4_addr_t *to)
{
	ITS_OWN(inet_chksum_pseudo_partial);
	return checksums ? own(p, protocol, len, part, from, to) : 0;
}

u16_t lwip_chksum_copy(void *to, const void *from, u16_t len)
{
	ITS_OWN(lwip_chksum_copy);
	if (checksums)
		return own(to, from, len);
	memcpy(to, from, len);
	return 0;
}

/* --- the link ------------------------------------------------------------------------------------ */

struct packet {
	struct pbuf_custom custom; /* first: a pbuf is its packet */
	struct packet *next;
	u8_t bytes[];
};

static u16_t mtu;
static size_t packet_size;
/* The one given back last is taken first, while the cache still has it. */
static struct packet *free_packets;

struct endpoint {
	struct netif netif;
	struct endpoint *peer;
	/* Packets on their way to this endpoint. */
	struct packet *first, **last;
	struct tcp_pcb *pcb;
	/* Where the program reads to, over and over. */
	u8_t *sink;
	size_t sink_len, sink_position;
	uint64_t received;
	int echoes;
};

static struct endpoint client, server;

static void give_back(struct pbuf *p)
{
	struct packet *packet = (struct packet *)p;
	packet->next = free_packets;
	free_packets = packet;
}

/* pbuf_copy_partial(), but as fast as libvma's link copies: see net/bulk_copy.rs. */
static void copy_to_link(u8_t *to, const struct pbuf *p)
{
	enum { STEP = 2048 };
	for (; p; to += p->len, p = p->next) {
		const u8_t *from = p->payload;
		size_t distance = ((uintptr_t)to - (uintptr_t)from) % 4096;
		int is_slow = distance > 0 && distance < 64;
		u16_t step = p->len > 2 * STEP && !is_slow ? p->len : STEP;
		for (u16_t at = 0, count; at < p->len; at += count) {
			count = LWIP_MIN(p->len - at, step);
			memcpy(to + at, from + at, count);
		}
	}
}

static err_t output(struct netif *netif, struct pbuf *p, const ip4_addr_t *to)
{
	struct endpoint *peer = ((struct endpoint *)netif->state)->peer;
	struct packet *packet = free_packets;
	(void)to;
	CHECK(p->tot_len <= mtu);
	if (packet)
		free_packets = packet->next;
	else
		CHECK(packet = malloc(packet_size));
	packet->custom.custom_free_function = give_back;
	packet->next = NULL;
	CHECK(pbuf_alloced_custom(PBUF_RAW, p->tot_len, PBUF_REF, &packet->custom, packet->bytes,
				  mtu));
	copy_to_link(packet->bytes, p);
	*peer->last = packet;
	peer->last = &packet->next;
	return ERR_OK;
}

static void deliver_to(struct endpoint *endpoint)
{
	struct packet *packet;
	while ((packet = endpoint->first)) {
		endpoint->first = packet->next;
		if (!packet->next)
			endpoint->last = &endpoint->first;
		ip4_input(&packet->custom.pbuf, &endpoint->netif);
	}
}

static void discard_for(struct endpoint *endpoint)
{
	struct packet *packet;
	while ((packet = endpoint->first)) {
		endpoint->first = packet->next;
		pbuf_free(&packet->custom.pbuf);
	}
}

static void pass_time(void)
{
	now_us += 1;
	if (now_us % 1000 == 0)
		sys_check_timeouts();
}

/* --- the program -------------------------------------------------------------------------------- */

static uint32_t window;

/* tcp_recved(), but for windows beyond the one that the library is built for. */
static void open_window(struct tcp_pcb *pcb, u16_t len)
{
	pcb->rcv_wnd += len;
	if (tcp_update_rcv_ann_wnd(pcb) >= LWIP_MIN(window / 4, 4u * pcb->mss)) {
		tcp_ack_now(pcb);
		tcp_output(pcb);
	}
}

static err_t on_received(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t error)
{
	struct endpoint *endpoint = arg;
	size_t position = endpoint->sink_position;
	u16_t len, before_end;
	CHECK(p && error == ERR_OK);
	len = p->tot_len;
	before_end = (u16_t)LWIP_MIN(len, endpoint->sink_len - position);
	pbuf_copy_partial(p, endpoint->sink + position, before_end, 0);
	if (before_end < len)
		pbuf_copy_partial(p, endpoint->sink, len - before_end, before_end);
	endpoint->sink_position = (position + len) % endpoint->sink_len;
	endpoint->received += len;
	pbuf_free(p);
	open_window(pcb, len);
	if (endpoint->echoes) /* sent when tcp_input() is through */
		CHECK(tcp_write(pcb, endpoint->sink, len, TCP_WRITE_FLAG_COPY) == ERR_OK);
	return ERR_OK;
}

static err_t on_connected(void *arg, struct tcp_pcb *pcb, err_t error)
{
	(void)arg, (void)pcb;
	return error;
}

static err_t on_accepted(void *arg, struct tcp_pcb *pcb, err_t error)
{
	CHECK(error == ERR_OK);
	((struct endpoint *)arg)->pcb = pcb;
	return ERR_OK;
}

/* Segments as large as the MTU and a window as large as asked, whatever the library is built for. */
static void widen(struct endpoint *endpoint)
{
	struct tcp_pcb *pcb = endpoint->pcb;
	tcp_arg(pcb, endpoint);
	tcp_recv(pcb, on_received);
	tcp_nagle_disable(pcb);
	pcb->mss = mtu - 40;
	pcb->snd_buf += window - TCP_SND_BUF;
	pcb->rcv_wnd += window - TCP_WND;
	while (window >> pcb->rcv_scale > 0xffff)
		pcb->rcv_scale++;
	pcb->snd_scale = pcb->rcv_scale; /* the peer's, which is the same */
	pcb->snd_wnd = pcb->snd_wnd_max = pcb->cwnd = pcb->ssthresh = window;
	tcp_update_rcv_ann_wnd(pcb);
}

void lwip_connect(u16_t port)
{
	struct tcp_pcb *pcb = tcp_new();
	CHECK(pcb);
	tcp_bind_netif(pcb, &client.netif);
	CHECK(tcp_bind(pcb, netif_ip_addr4(&client.netif), port) == ERR_OK);
	server.pcb = NULL;
	CHECK(tcp_connect(pcb, netif_ip_addr4(&server.netif), PORT, on_connected) == ERR_OK);
	deliver_to(&server);
	deliver_to(&client);
	deliver_to(&server);
	client.pcb = pcb;
	CHECK(pcb->state == ESTABLISHED && server.pcb && server.pcb->state == ESTABLISHED);
	widen(&client);
	widen(&server);
}

static err_t add_output(struct netif *netif)
{
	netif->output = output;
	netif->mtu = mtu;
	return ERR_OK;
}

static void open_endpoint(struct endpoint *endpoint, struct endpoint *peer, u8_t host)
{
	ip4_addr_t address, mask, gateway;
	memset(endpoint, 0, sizeof *endpoint);
	endpoint->peer = peer;
	endpoint->last = &endpoint->first;
	IP4_ADDR(&address, 10, 0, 0, host);
	IP4_ADDR(&mask, 255, 255, 255, 0);
	IP4_ADDR(&gateway, 0, 0, 0, 0);
	CHECK(netif_add(&endpoint->netif, &address, &mask, &gateway, endpoint, add_output, ip4_input));
	netif_set_up(&endpoint->netif);
	netif_set_link_up(&endpoint->netif);
}

static struct tcp_pcb *listener;

void lwip_open(u16_t its_mtu, u32_t its_window, int with_checksums)
{
	static int initialised;
	if (!initialised++)
		lwip_init();
	mtu = its_mtu;
	window = its_window;
	checksums = with_checksums;
	packet_size = sizeof(struct packet) + mtu;
	open_endpoint(&client, &server, 1);
	open_endpoint(&server, &client, 2);

	struct tcp_pcb *pcb = tcp_new();
	CHECK(pcb);
	tcp_bind_netif(pcb, &server.netif);
	CHECK(tcp_bind(pcb, netif_ip_addr4(&server.netif), PORT) == ERR_OK);
	CHECK(listener = tcp_listen(pcb));
	tcp_arg(listener, &server);
	tcp_accept(listener, on_accepted);
}

void lwip_close(void)
{
	struct packet *packet;
	while (tcp_active_pcbs)
		tcp_abort(tcp_active_pcbs);
	tcp_close(listener);
	discard_for(&client);
	discard_for(&server);
	netif_remove(&client.netif);
	netif_remove(&server.netif);
	while ((packet = free_packets)) {
		free_packets = packet->next;
		free(packet);
	}
}

static void read_to(struct endpoint *endpoint, u8_t *sink, size_t len)
{
	endpoint->sink = sink;
	endpoint->sink_len = len;
	endpoint->sink_position = 0;
	endpoint->received = 0;
}

void lwip_round_trip(const u8_t *message, u8_t *reply, u16_t len)
{
	static u8_t in_between[0xffff];
	pass_time();
	read_to(&server, in_between, len);
	read_to(&client, reply, len);
	server.echoes = 1;
	CHECK(tcp_write(client.pcb, message, len, TCP_WRITE_FLAG_COPY) == ERR_OK);
	CHECK(tcp_output(client.pcb) == ERR_OK);
	deliver_to(&server);
	deliver_to(&client);
	CHECK(client.received == len);
}

void lwip_bulk(const u8_t *source, size_t source_len, u8_t *sink, size_t sink_len, uint64_t total)
{
	size_t position = 0;
	uint64_t left = total;
	struct tcp_pcb *pcb = client.pcb;
	read_to(&server, sink, sink_len);
	server.echoes = 0;
	while (server.received < total) {
		pass_time();
		for (;;) {
			uint64_t len = LWIP_MIN(left, source_len - position);
			len = LWIP_MIN(len, LWIP_MIN(tcp_sndbuf(pcb), 0xffff));
			if (len == 0 ||
			    tcp_write(pcb, source + position, (u16_t)len,
				      TCP_WRITE_FLAG_COPY | TCP_WRITE_FLAG_MORE) != ERR_OK)
				break;
			position = (position + len) % source_len;
			left -= len;
		}
		CHECK(tcp_output(pcb) == ERR_OK);
		deliver_to(&server);
		deliver_to(&client);
	}
	CHECK(server.received == total);
}
