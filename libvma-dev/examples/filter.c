/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Receives the quotes of one symbol; the others are dropped by a receive callback before they are queued.
 *
 * usage: filter ADDRESS PORT SYMBOL        a quote is a datagram that begins with its symbol and a space
 *
 * It ends when the quote is "end". Without libvma it works as well, and looks after each receive call.
 * Compile with: cc $(pkg-config --cflags libvma) filter.c -o filter
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

struct wanted {
	const char *symbol;
	unsigned long dropped;
};

static int is_of(const char *symbol, const char *quote, size_t len)
{
	size_t size = strlen(symbol);
	return len > size && !memcmp(quote, symbol, size) && quote[size] == ' ';
}

/* A fragment of UDP may be short, but not so short that the symbol is in two of them. */
static vma_recv_callback_retval_t judge(int fd, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
					void *context)
{
	struct wanted *wanted = context;

	(void)fd;
	(void)info;
	if (sz_iov > 0 && is_of(wanted->symbol, iov[0].iov_base, iov[0].iov_len))
		return VMA_PACKET_RECV;
	wanted->dropped++;
	return VMA_PACKET_DROP;
}

int main(int count, char **words)
{
	struct vma_api_t *vma = vma_get_api();
	struct sockaddr_in own = {.sin_family = AF_INET};
	struct wanted wanted = {NULL, 0};
	unsigned long others = 0;
	char quote[2048];
	ssize_t len;
	int fd;

	if (count != 4 || inet_pton(AF_INET, words[1], &own.sin_addr) != 1) {
		fprintf(stderr, "usage: filter ADDRESS PORT SYMBOL\n");
		return 2;
	}
	own.sin_port = htons((uint16_t)atoi(words[2]));
	wanted.symbol = words[3];
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&own, sizeof(own))) {
		perror("filter: bind");
		return 1;
	}
	if (vma && (vma->vma_extra_supported_mask & VMA_EXTRA_API_REGISTER_RECV_CALLBACK) &&
	    vma->register_recv_callback(fd, judge, &wanted)) {
		perror("filter: register_recv_callback");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		len = recv(fd, quote, sizeof(quote), 0);
		if (len < 0) {
			perror("filter: recv");
			return 1;
		}
		if (!is_of(wanted.symbol, quote, (size_t)len)) {
			others++;
			continue;
		}
		printf("%.*s\n", (int)len, quote);
		fflush(stdout);
		if (len >= 4 && !memcmp(quote + len - 4, " end", 4))
			break;
	}
	if (vma)
		printf("%lu dropped, %lu others\n", wanted.dropped, others);
	else
		printf("%lu others, without libvma\n", others);
	close(fd);
	return 0;
}
