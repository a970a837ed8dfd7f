// SPDX-License-Identifier: MIT
/* What librdmacm itself has to do right, whatever the device is: channels, threads, groups, refusals, forks, ends.
 *
 * One line for each part; the last is "done". With the argument "until-gone" it waits until the device is gone, and looks
 * that each identifier is told, once, and that nothing hangs.
 */
#include "pair.h"
#include "softverbs.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/un.h>
#include <sys/wait.h>

#define PORT 7471
#define REFUSED(call, code)                                                                                            \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		CHECK((call) == -1 && errno == (code), "%s: -1 and %s are expected", #call, #code);                    \
	} while (0)

static struct sockaddr *at(const char *ip, int port)
{
	static __thread struct sockaddr_in address;

	memset(&address, 0, sizeof(address));
	address.sin_family = AF_INET;
	address.sin_port = htons(port);
	CHECK(inet_pton(AF_INET, ip, &address.sin_addr) == 1, "%s is an address", ip);
	return (struct sockaddr *)&address;
}

static bool readable(struct rdma_event_channel *channel)
{
	struct pollfd look = {.fd = channel->fd, .events = POLLIN};

	return poll(&look, 1, 0) == 1;
}

/* The next event of a channel, which must be of a kind. */
static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event), "there is an event");
	CHECK(event->event == kind, "%s instead of %s", rdma_event_str(event->event), rdma_event_str(kind));
	return event;
}

/* -- channels */

static void channels(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *first, *second;

	CHECK(channel && other, "there are two channels");
	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK), "a channel need not block");
	REFUSED(rdma_get_cm_event(channel, &event), EAGAIN);
	CHECK(!rdma_create_id(channel, &first, channel, RDMA_PS_TCP), "an identifier");
	CHECK(!rdma_create_id(channel, &second, NULL, RDMA_PS_TCP), "and another");
	CHECK(first->channel == channel && first->context == channel && first->ps == RDMA_PS_TCP && !first->verbs,
	      "an identifier is what it was made with");
	CHECK(!rdma_resolve_addr(first, NULL, at("127.0.0.1", PORT), 1000), "an address is looked for");
	CHECK(readable(channel), "an event can be waited for");
	CHECK(!rdma_destroy_id(first), "an identifier goes with an event that nobody has taken");
	CHECK(!readable(channel), "and takes it along");
	REFUSED(rdma_get_cm_event(channel, &event), EAGAIN);
	CHECK(!rdma_resolve_addr(second, NULL, at("127.0.0.1", PORT), 1000), "another address is looked for");
	CHECK(!rdma_migrate_id(second, other) && second->channel == other, "an identifier moves");
	CHECK(!readable(channel) && readable(other), "and its event with it");
	event = next(other, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(event->id == second && second->verbs && second->pd && second->port_num == 1, "it has a device now");
	CHECK(rdma_get_src_port(second) && rdma_get_dst_port(second) == htons(PORT), "and ports");
	CHECK(!rdma_ack_cm_event(event), "the event is acknowledged");
	CHECK(!rdma_destroy_id(second), "and the identifier ends");
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	puts("channels");
}

static void *acknowledge_late(void *event)
{
	usleep(50000);
	rdma_ack_cm_event(event);
	return NULL;
}

/* Ends an identifier whose event another thread acknowledges later. */
static void end_while_acknowledged(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct timespec before, after;
	pthread_t thread;
	double took;

	clock_gettime(CLOCK_MONOTONIC, &before);
	CHECK(!pthread_create(&thread, NULL, acknowledge_late, event), "a thread");
	CHECK(!rdma_destroy_id(id), "the identifier ends");
	clock_gettime(CLOCK_MONOTONIC, &after);
	took = (after.tv_sec - before.tv_sec) + (after.tv_nsec - before.tv_nsec) / 1e9;
	CHECK(took > 0.045, "not before its event was acknowledged: %f s", took);
	pthread_join(thread, NULL);
}

static void acknowledgements(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) && id->qp_type == IBV_QPT_UD, "an identifier");
	CHECK(!rdma_resolve_addr(id, NULL, at("127.0.0.1", PORT), 1000), "an address is looked for");
	end_while_acknowledged(id, next(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	rdma_destroy_event_channel(channel);
	puts("acknowledgements");
}

/* -- identifiers that end while events of others come */

static void *take_events(void *channel)
{
	struct rdma_cm_event *event;
	bool last;

	do {
		CHECK(!rdma_get_cm_event(channel, &event), "there is an event");
		last = event->id->context == channel;
		rdma_ack_cm_event(event);
	} while (!last);
	return NULL;
}

static void *ask_for_address(void *id)
{
	CHECK(!rdma_resolve_addr(id, NULL, at("127.0.0.1", PORT), 1000), "an address is looked for");
	return NULL;
}

static void threads(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	for (int i = 0; i < 100; i++) {
		struct rdma_cm_id *first, *last;
		pthread_t taker, other;

		CHECK(!rdma_create_id(channel, &first, NULL, RDMA_PS_TCP), "an identifier");
		CHECK(!rdma_create_id(channel, &last, channel, RDMA_PS_TCP), "and another");
		CHECK(!pthread_create(&taker, NULL, take_events, channel), "a thread");
		ask_for_address(first);
		CHECK(!pthread_create(&other, NULL, ask_for_address, last), "a thread");
		CHECK(!rdma_destroy_id(first), "one ends");
		pthread_join(other, NULL);
		pthread_join(taker, NULL); /* the event of the other was told */
		CHECK(!rdma_destroy_id(last), "the other ends");
	}
	rdma_destroy_event_channel(channel);
	puts("threads");
}

/* -- multicast groups */

static void groups(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK), "a channel need not block");
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_UDP), "an identifier");
	REFUSED(rdma_join_multicast(id, at("239.1.1.1", 0), NULL), EINVAL);
	CHECK(!rdma_resolve_addr(id, NULL, at("239.1.1.1", 0), 1000), "a group is looked for");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	REFUSED(rdma_join_multicast(id, at("127.0.0.1", 0), NULL), EINVAL);
	CHECK(!rdma_join_multicast(id, at("239.1.1.1", 0), &event), "it is joined");
	event = next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->param.ud.private_data == &event && !event->param.ud.private_data_len, "with the program's word");
	CHECK(event->param.ud.ah_attr.grh.dgid.raw[12] == 239, "the event tells the group");
	rdma_ack_cm_event(event);
	CHECK(!rdma_leave_multicast(id, at("239.1.1.1", 0)), "it is left");
	CHECK(!rdma_join_multicast(id, at("239.1.1.1", 0), &id), "it is joined again");
	CHECK(!rdma_leave_multicast(id, at("239.1.1.1", 0)), "and left before that is told");
	REFUSED(rdma_get_cm_event(channel, &event), EAGAIN);
	CHECK(!rdma_join_multicast(id, at("239.1.1.1", 0), &id), "it is joined");
	CHECK(!rdma_join_multicast(id, at("239.1.1.1", 0), &id), "twice");
	CHECK(!rdma_leave_multicast(id, at("239.1.1.1", 0)), "it is left");
	CHECK(!rdma_leave_multicast(id, at("239.1.1.1", 0)), "twice");
	REFUSED(rdma_leave_multicast(id, at("239.1.1.1", 0)), EADDRNOTAVAIL);
	CHECK(!rdma_destroy_id(id), "the identifier ends");
	rdma_destroy_event_channel(channel);
	puts("groups");
}

/* -- a connection of synchronous identifiers */

static struct rdma_addrinfo *look_up(const char *node, int flags)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP};
	struct rdma_addrinfo *found;

	CHECK(!rdma_getaddrinfo(node, "7471", &hints, &found), "%s is found", node);
	return found;
}

static struct ibv_qp_init_attr usual(void)
{
	struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 16}, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};

	return init;
}

static void *serve(void *unused)
{
	struct rdma_addrinfo *info = look_up("127.0.0.1", RAI_PASSIVE);
	struct ibv_qp_init_attr init = usual();
	struct rdma_conn_param param = {.private_data = "welcome", .private_data_len = 8};
	struct rdma_cm_id *listener, *id;
	char memory[64];
	struct ibv_wc wc;
	struct ibv_mr *mr;

	CHECK(!rdma_create_ep(&listener, info, NULL, &init), "an endpoint that is asked");
	CHECK(!rdma_listen(listener, 0), "it listens");
	rdma_freeaddrinfo(info);
	atomic_store((atomic_bool *)unused, true);
	CHECK(!rdma_get_request(listener, &id), "a request comes");
	CHECK(id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && id->event->listen_id == listener, "it is one");
	CHECK(!strcmp(id->event->param.conn.private_data, "hello") && id->event->param.conn.private_data_len == 56,
	      "with its words");
	mr = rdma_reg_msgs(id, memory, sizeof(memory));
	CHECK(mr && !rdma_post_recv(id, NULL, memory, sizeof(memory), mr), "a receive waits");
	CHECK(!rdma_accept(id, &param), "the request is accepted");
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && !wc.status && !strcmp(memory, "message"), "a message comes");
	CHECK(!rdma_disconnect(id), "the connection ends");
	CHECK(!rdma_dereg_mr(mr), "its memory is free");
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	return NULL;
}

static void synchronous(void)
{
	struct rdma_conn_param param = {.private_data = "hello", .private_data_len = 6, .retry_count = 7};
	struct ibv_qp_init_attr init = usual();
	atomic_bool listens = false;
	struct rdma_addrinfo *info = look_up("127.0.0.1", 0);
	char memory[64] = "message";
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	struct ibv_mr *mr;
	pthread_t server;

	CHECK(!pthread_create(&server, NULL, serve, &listens), "a thread");
	while (!listens)
		usleep(1000);
	CHECK(!rdma_create_ep(&id, info, NULL, &init) && id->qp && id->route.num_paths == 1, "an endpoint that asks");
	rdma_freeaddrinfo(info);
	CHECK(id->qp->state == IBV_QPS_INIT, "its queue pair can receive");
	mr = rdma_reg_msgs(id, memory, sizeof(memory));
	CHECK(mr && !rdma_connect(id, &param), "it connects");
	CHECK(!strcmp(id->event->param.conn.private_data, "welcome"), "and is welcome");
	CHECK(!rdma_post_send(id, NULL, memory, sizeof(memory), mr, 0), "a message is sent");
	CHECK(rdma_get_send_comp(id, &wc) == 1 && !wc.status, "and arrives");
	CHECK(!rdma_disconnect(id), "the connection ends on this side too");
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
	pthread_join(server, NULL);
	puts("synchronous");
}

/* -- listeners, and requests that outlive them */

/* An identifier that has asked for a connection. */
static struct rdma_cm_id *ask(struct rdma_event_channel *channel)
{
	struct ibv_qp_init_attr init = usual();
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "an identifier that asks");
	CHECK(!rdma_resolve_addr(id, NULL, at("127.0.0.1", PORT), 1000), "an address is looked for");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!rdma_resolve_route(id, 1000), "a route is looked for");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(!rdma_create_qp(id, NULL, &init) && !rdma_connect(id, NULL), "it asks");
	return id;
}

static void listeners(void)
{
	struct rdma_event_channel *mine = rdma_create_event_channel(), *theirs = rdma_create_event_channel();
	struct pollfd second = {.fd = mine->fd, .events = POLLIN};
	struct ibv_qp_init_attr init = usual();
	struct rdma_cm_id *listener, *first, *late, *child;
	struct rdma_cm_event *event;

	CHECK(!rdma_create_id(mine, &listener, NULL, RDMA_PS_TCP), "an identifier");
	CHECK(!rdma_bind_addr(listener, at("127.0.0.1", PORT)) && !rdma_listen(listener, 4), "it listens");
	first = ask(theirs);
	event = next(mine, RDMA_CM_EVENT_CONNECT_REQUEST);
	child = event->id;
	rdma_ack_cm_event(event);
	late = ask(theirs);
	CHECK(poll(&second, 1, 10000) == 1, "a second request waits");
	CHECK(!rdma_destroy_id(listener), "the listener ends");
	event = next(theirs, RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == late && event->status == 28 && event->param.conn.private_data_len == 148,
	      "with the request that nobody has taken");
	rdma_ack_cm_event(event);
	CHECK(!rdma_create_qp(child, NULL, &init) && !rdma_accept(child, NULL), "the other is accepted");
	event = next(theirs, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == first && event->param.conn.private_data_len == 196, "who asked has the data of the answer");
	rdma_ack_cm_event(event);
	event = next(mine, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == child && !event->param.conn.private_data && !event->param.conn.private_data_len,
	      "who was asked has none");
	rdma_ack_cm_event(event);
	REFUSED(rdma_notify(child, IBV_EVENT_COMM_EST), EISCONN);
	rdma_destroy_ep(late);
	rdma_destroy_ep(first);
	rdma_destroy_ep(child);
	rdma_destroy_event_channel(mine);
	rdma_destroy_event_channel(theirs);
	puts("listeners");
}

/* All addresses of IPv4 and all of IPv6 are two, if each is for its own only; the device has none of IPv6. */
static void wildcards(void)
{
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(PORT)};
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *both, *four, *only;
	int yes = 1;

	CHECK(!rdma_create_id(channel, &both, NULL, RDMA_PS_TCP) && !rdma_create_id(channel, &four, NULL, RDMA_PS_TCP) &&
		      !rdma_create_id(channel, &only, NULL, RDMA_PS_TCP), "three identifiers");
	CHECK(!rdma_set_option(only, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof(yes)), "one of IPv6 only");
	CHECK(!rdma_bind_addr(both, (struct sockaddr *)&six) && !both->verbs, "one of all addresses");
	CHECK(rdma_get_local_addr(both)->sa_family == AF_INET6, "as it says");
	REFUSED(rdma_bind_addr(four, at("0.0.0.0", PORT)), EADDRNOTAVAIL);
	REFUSED(rdma_bind_addr(only, (struct sockaddr *)&six), EADDRNOTAVAIL);
	CHECK(!rdma_destroy_id(both), "it ends");
	CHECK(!rdma_bind_addr(only, (struct sockaddr *)&six) && !rdma_listen(only, 1), "one listens on ::");
	CHECK(!rdma_bind_addr(four, at("0.0.0.0", PORT)) && !rdma_listen(four, 1), "and one on 0.0.0.0");
	CHECK(!rdma_destroy_id(only) && !rdma_destroy_id(four), "they end");
	rdma_destroy_event_channel(channel);
	puts("wildcards");
}

/* -- refusals */

static void refusals(void)
{
	struct rdma_cm_join_mc_attr_ex join = {.comp_mask = 8};
	struct sockaddr_un elsewhere = {.sun_family = AF_UNIX};
	struct rdma_addrinfo xrc = {.ai_qp_type = IBV_QPT_XRC_SEND, .ai_port_space = RDMA_PS_IB};
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_qp_init_attr init = usual();
	struct rdma_conn_param param = {0};
	struct rdma_addrinfo *info;
	struct rdma_cm_id *id, *made;
	struct ibv_context **all;
	int count;

	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), "a synchronous identifier");
	REFUSED(rdma_create_id(NULL, &made, NULL, 5), EINVAL);
	REFUSED(rdma_create_ep(&made, &xrc, NULL, NULL), EOPNOTSUPP);
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&elsewhere), EINVAL);
	REFUSED(rdma_resolve_addr(id, NULL, NULL, 100), EINVAL);
	REFUSED(rdma_bind_addr(id, at("203.0.113.1", PORT)), EADDRNOTAVAIL);
	REFUSED(rdma_resolve_route(id, 100), EINVAL);
	REFUSED(rdma_create_qp(id, NULL, &init), EINVAL);
	REFUSED(rdma_disconnect(id), EINVAL);
	REFUSED(rdma_leave_multicast(id, at("239.1.1.1", 0)), EADDRNOTAVAIL);
	REFUSED(rdma_join_multicast_ex(id, &join, NULL), ENOTSUP);
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &init, 64), EOPNOTSUPP);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, 77, &init, 1), ENOSYS);
	REFUSED(rdma_migrate_id(id, NULL), EINVAL);
	REFUSED(rdma_ack_cm_event(NULL), EINVAL);
	REFUSED(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);
	REFUSED(rsocket(AF_INET, SOCK_STREAM, 0), EOPNOTSUPP);
	CHECK(!rdma_resolve_addr(id, NULL, at("127.0.0.1", 7999), 100) && !rdma_resolve_route(id, 100), "there is a route");
	REFUSED(rdma_connect(id, NULL), EINVAL);
	CHECK(strstr(softverbs_last_reason(), "queue pair"), "a reason is given: %s", softverbs_last_reason());
	CHECK(!rdma_create_qp(id, NULL, &init) && id->send_cq && id->recv_cq && id->send_cq_channel, "queues are made");
	REFUSED(rdma_create_qp(id, NULL, &init), EINVAL);
	REFUSED(rdma_establish(id), EINVAL);
	param.initiator_depth = 200;
	REFUSED(rdma_connect(id, &param), EINVAL);
	REFUSED(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 8, "nobody listens there");
	CHECK(id->qp->state == IBV_QPS_ERR, "the queue pair is of no use any more");
	rdma_destroy_ep(id);
	all = rdma_get_devices(&count);
	CHECK(all && count == 1 && all[0] && !all[1], "there is one device");
	rdma_free_devices(all);
	rdma_destroy_event_channel(channel);
	puts("refusals");
}

/* -- forks */

static void forks(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int status;
	pid_t child;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "an identifier of the parent");
	fflush(stdout);
	child = fork();
	if (!child) {
		struct rdma_cm_id *own;

		REFUSED(rdma_resolve_addr(id, NULL, at("127.0.0.1", PORT), 100), EIO);
		REFUSED(rdma_get_cm_event(channel, &event), EIO);
		CHECK(!rdma_create_id(NULL, &own, NULL, RDMA_PS_TCP), "the child has its own");
		CHECK(!rdma_resolve_addr(own, NULL, at("127.0.0.1", PORT), 100), "which work");
		CHECK(!rdma_destroy_id(own), "and end");
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && !status, "the child ends well: %#x", status);
	CHECK(!rdma_resolve_addr(id, NULL, at("127.0.0.1", PORT), 100), "the parent's still works");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	puts("forks");
}

/* -- the end of the device */

static void until_gone(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event, *more;
	struct rdma_cm_id *bound, *unbound;

	CHECK(!rdma_create_id(channel, &bound, NULL, RDMA_PS_TCP), "an identifier");
	CHECK(!rdma_create_id(channel, &unbound, NULL, RDMA_PS_TCP), "and one that is bound to nothing");
	CHECK(!rdma_bind_addr(bound, at("127.0.0.1", 0)) && !rdma_listen(bound, 1), "it listens");
	puts("waiting");
	fflush(stdout);
	event = next(channel, RDMA_CM_EVENT_DEVICE_REMOVAL);
	CHECK(event->id == bound, "of the one that was bound");
	REFUSED(rdma_get_cm_event(channel, &more), EIO);
	REFUSED(rdma_listen(bound, 1), EIO);
	end_while_acknowledged(bound, event);
	CHECK(!rdma_destroy_id(unbound), "what is left can be tidied up");
	rdma_destroy_event_channel(channel);
	puts("gone");
}

int main(int count, char **words)
{
	alarm(60);
	if (count > 1 && !strcmp(words[1], "until-gone")) {
		until_gone();
		return 0;
	}
	channels();
	acknowledgements();
	threads();
	groups();
	synchronous();
	listeners();
	wildcards();
	refusals();
	forks();
	puts("done");
	return 0;
}
