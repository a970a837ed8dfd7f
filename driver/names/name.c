// SPDX-License-Identifier: MIT
/* A library without code, under the name that developers know (libibverbs.so), which programs give to dlopen(3). It needs
 * the real one (libibverbs.so.1), where dlsym(3) then finds the symbols: so both names lead to one library. Elsewhere it
 * is a symbolic link, but a wheel has none, and a copy would be a second library in the process.
 */
extern const char sv_name;
__attribute__((visibility("hidden"))) const char sv_name = 0; /* ISO C wants something to be here */
