/* What the prober and its peer say to each other: peer.c for datagrams, peer_streams.c for TCP. */
#ifndef PEER_H
#define PEER_H

#include "prober.h"

#define SOCKETS 64

enum operation {
	OPEN, CLOSE, SEND, SET, JOIN, HEAR, COUNT, BARRIER,
	/* peer_streams.c: */
	LISTEN, ACCEPT, CONNECT, WRITE, READ, SHUT, RESET, SHOW, END, FORGET, LAST,
};

struct order {
	enum operation operation;
	int socket, port, length, count, delay, level, name, value;
	char ip[20];
	char text[128]; /* if empty, `length` bytes of a pattern */
};

struct answer {
	int result, error;
	long length;
	int ttl, tos;
	struct sockaddr_in from;
	char shown[256];
};

/* In the prober. */
struct order peer_order(enum operation operation, int socket, const char *ip, int port);
struct answer peer_ask(struct order order);

/* In the peer. */
int peer_slot(int *sockets, int fd);
void peer_streams(int commands, int *sockets, const struct order *order);

#endif
