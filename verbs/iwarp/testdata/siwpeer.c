/* An RDMA program over librdmacm and libibverbs that plays the other side of TestSIWBothWays: it moves as much as it is
 * told in every way that there is, in both directions at once, and judges by the bytes.
 *
 * siwpeer listen|dial ADDRESS PORT SIZE PIECES
 *
 * Each side has four areas of SIZE bytes: its pattern, which the other side READs; what the other side WRITEs; where its
 * own READs go; and where the message of SIZE bytes goes that the other side ends with.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct info {
	uint64_t addr;
	uint32_t rkey, size; /* big-endian, all */
};

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static uint8_t pattern(size_t i, unsigned seed)
{
	return (uint8_t)(i * 131 + (i >> 8) * 7 + seed);
}

static void check(const char *what, const uint8_t *area, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++) {
		if (area[i] != pattern(i, seed)) {
			fprintf(stderr, "%s: byte %zu is %u; want %u\n", what, i, area[i], pattern(i, seed));
			exit(1);
		}
	}
}

static void await(struct rdma_cm_id *id, int send, uint32_t bytes)
{
	struct ibv_wc wc;
	int n = send ? rdma_get_send_comp(id, &wc) : rdma_get_recv_comp(id, &wc);

	if (n != 1)
		fail("completion");
	if (wc.status != IBV_WC_SUCCESS || (!send && wc.byte_len != bytes)) {
		fprintf(stderr, "completion: status %d, %u bytes; want %u\n", wc.status, wc.byte_len, bytes);
		exit(1);
	}
}

/* endpoint gives a connection's ID, with a queue pair and not yet connected. */
static struct rdma_cm_id *endpoint(int passive, char *addr, char *port)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = passive ? RAI_PASSIVE : 0}, *res;
	struct ibv_qp_init_attr attr = {
		.cap = {.max_send_wr = 128, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id, *listener;

	if (rdma_getaddrinfo(addr, port, &hints, &res))
		fail("rdma_getaddrinfo");
	if (rdma_create_ep(passive ? &listener : &id, res, NULL, &attr))
		fail("rdma_create_ep");
	if (passive) {
		if (rdma_listen(listener, 1))
			fail("rdma_listen");
		if (rdma_get_request(listener, &id))
			fail("rdma_get_request");
	}
	return id;
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	int passive = !strcmp(argv[1], "listen");
	size_t size = strtoul(argv[4], NULL, 10), pieces = strtoul(argv[5], NULL, 10), piece = size / pieces;
	uint8_t *mem = aligned_alloc(4096, 4 * size);
	struct info in, out;

	if (!mem)
		fail("memory");
	memset(mem, 0, 4 * size);
	for (size_t i = 0; i < size; i++)
		mem[i] = pattern(i, 1);
	struct rdma_cm_id *id = endpoint(passive, argv[2], argv[3]);
	struct ibv_mr *mr = ibv_reg_mr(id->pd, mem, 4 * size,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_mr *inmr = rdma_reg_msgs(id, &in, sizeof in), *outmr = rdma_reg_msgs(id, &out, sizeof out);

	if (!mr || !inmr || !outmr)
		fail("register");
	if (rdma_post_recv(id, NULL, &in, sizeof in, inmr) || rdma_post_recv(id, NULL, mem + 3 * size, size, mr))
		fail("rdma_post_recv");
	struct rdma_conn_param param = {.responder_resources = 8, .initiator_depth = 8};

	if (passive ? rdma_accept(id, &param) : rdma_connect(id, &param))
		fail("connect");
	out = (struct info){htobe64((uintptr_t)mem), htobe32(mr->rkey), htobe32(4 * size)};
	if (passive)
		await(id, 0, sizeof in);
	if (rdma_post_send(id, NULL, &out, sizeof out, outmr, 0))
		fail("rdma_post_send");
	await(id, 1, 0);
	if (!passive)
		await(id, 0, sizeof in);
	uint64_t addr = be64toh(in.addr);
	uint32_t rkey = be32toh(in.rkey);

	for (size_t i = 0; i < pieces; i++) {
		size_t off = i * piece;

		if (rdma_post_read(id, NULL, mem + 2 * size + off, piece, mr, 0, addr + off, rkey) ||
		    rdma_post_write(id, NULL, mem + off, piece, mr, 0, addr + size + off, rkey))
			fail("post");
	}
	for (size_t i = 0; i < 2 * pieces; i++)
		await(id, 1, 0);
	if (rdma_post_send(id, NULL, mem, size, mr, 0))
		fail("rdma_post_send");
	await(id, 1, 0);
	await(id, 0, size);
	check("what was written", mem + size, size, 2);
	check("what was read", mem + 2 * size, size, 2);
	check("the message", mem + 3 * size, size, 2);
	rdma_disconnect(id);
	printf("done\n");
	return 0;
}
