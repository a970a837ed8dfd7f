/* SPDX-License-Identifier: MIT */
/* What softverbs' libibverbs.so.1 has besides verbs. */
#ifndef SOFTVERBS_H
#define SOFTVERBS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Why the last call of this thread that failed did: a line for people, "" where there is none. It stays until the next
 * call that fails. With SOFTVERBS_EXPLAIN=1 in the environment each is printed to stderr as well.
 */
const char *softverbs_last_reason(void);

#ifdef __cplusplus
}
#endif

#endif
