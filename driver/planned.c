// SPDX-License-Identifier: MIT
/* Faults on demand: what the driver does without a command, it asks the device about where a plan has rules for it. */
#include "driver.h"

int sv_ask_post(struct sv_connection *connection, unsigned int verb, uint32_t handle, uint64_t wr_id, uint32_t opcode,
		uint64_t size)
{
	struct sv_ask_request request = {
		.verb = verb, .handle = handle, .wr_id = wr_id, .opcode = opcode, .size = size};

	if (__builtin_expect(!sv_is_planned(connection, verb), 1))
		return 0;
	return sv_call(connection, SV_ASK, &request, sizeof(request), NULL, 0);
}

int sv_ask(struct sv_connection *connection, unsigned int verb, uint32_t handle, uint64_t size)
{
	return sv_ask_post(connection, verb, handle, 0, 0, size);
}
