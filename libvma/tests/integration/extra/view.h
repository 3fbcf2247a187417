/* What recvfrom_zcopy() writes: one packet of one fragment. */
struct view {
	size_t count;
	struct record {
		void *id;
		size_t fragments;
		char *bytes;
		size_t len;
	} packet;
};
