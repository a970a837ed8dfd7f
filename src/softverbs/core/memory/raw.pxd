# SPDX-License-Identifier: MIT
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memmove, memset

ctypedef uint8_t* u8_p
ctypedef uint16_t* u16_p
ctypedef uint32_t* u32_p
ctypedef uint64_t* u64_p
ctypedef void* void_p
ctypedef char* char_p

cdef extern from "<endian.h>" nogil:
    uint16_t be16toh(uint16_t)
    uint32_t be32toh(uint32_t)
    uint64_t be64toh(uint64_t)
    uint16_t htobe16(uint16_t)
    uint32_t htobe32(uint32_t)
    uint64_t htobe64(uint64_t)

cdef extern from *:
    const int __ATOMIC_SEQ_CST
    uint64_t __atomic_fetch_add(uint64_t*, uint64_t, int) nogil
    const int __ATOMIC_ACQUIRE
    const int __ATOMIC_RELEASE
    uint64_t __atomic_load_n(uint64_t*, int) nogil
    void __atomic_thread_fence(int) nogil
    void __atomic_store_n(uint64_t*, uint64_t, int) nogil
    uint64_t __sync_val_compare_and_swap(uint64_t*, uint64_t, uint64_t) nogil

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <unistd.h>
    #include <sys/syscall.h>
    #include <sys/uio.h>
    /* The calls themselves: the C library declares them only under _GNU_SOURCE. */
    struct sv_process { int64_t pid, mem, reader; uint64_t guard, secret; };  /* PROCESS_* */
    /* The errno of a call that has done so many bytes, those of the guard included. */
    static inline int process_outcome(long done, size_t length) {
        if (done == (long)(length + 8))
            return 0;
        if (done >= 8)
            return EFAULT;
        return done >= 0 || errno == EFAULT ? ESTALE : errno;
    }
    static inline int move_by_descriptor(int64_t descriptor, int writes, struct iovec *here, int count,
                                         uintptr_t there, size_t length) {
        long number = writes ? SYS_pwritev : SYS_preadv;
        /* The position in two halves; where a long has 64 bits only the first counts. */
        long done = syscall(number, (long)descriptor, here, (long)count, (unsigned long)there, 0UL);
        if (done == (long)length)
            return 0;
        return done == 0 ? ESTALE : EFAULT;
    }
    static inline int place_in_process(uintptr_t record, uintptr_t pieces, int count, uintptr_t there, size_t length) {
        struct sv_process *process = (struct sv_process *)record;
        struct iovec *here = (struct iovec *)pieces;
        struct iovec remote[2] = {{(void *)(uintptr_t)process->guard, 8}, {(void *)there, length}};
        if (process->mem >= 0)
            return move_by_descriptor(process->mem, 1, here + 1, count, there, length);
        here[0].iov_base = &process->secret;
        here[0].iov_len = 8;
        return process_outcome(
            syscall(SYS_process_vm_writev, (long)process->pid, here, 1L + count, remote, 2UL, 0UL), length);
    }
    static inline int move_process(uintptr_t record, int writes, uintptr_t here, uintptr_t there, size_t length) {
        struct sv_process *process = (struct sv_process *)record;
        uint64_t guard = 0;
        struct iovec local[2] = {{&guard, 8}, {(void *)here, length}};
        struct iovec remote[2] = {{(void *)(uintptr_t)process->guard, 8}, {(void *)there, length}};
        long done;
        if (process->mem >= 0)
            return move_by_descriptor(process->mem, writes, local + 1, 1, there, length);
        if (writes)
            return place_in_process(record, (uintptr_t)local, 1, there, length);
        if (process->reader >= 0 && length <= 4096 && there != process->guard)  /* SHORT_READ */
            return move_by_descriptor(process->reader, 0, local + 1, 1, there, length);
        done = syscall(SYS_process_vm_readv, (long)process->pid, local, 2UL, remote, 2UL, 0UL);
        if (done >= 8 && guard != process->secret)
            return ESTALE;
        return process_outcome(done, length);
    }
    static inline long copy_own(uintptr_t here, uintptr_t there, size_t length) {
        struct iovec local = {(void *)here, length}, remote = {(void *)there, length};
        return syscall(SYS_process_vm_readv, (long)getpid(), &local, 1UL, &remote, 1UL, 0UL);
    }
    """
    int move_process(uintptr_t, int, uintptr_t, uintptr_t, size_t) noexcept nogil
    int place_in_process(uintptr_t, uintptr_t, int, uintptr_t, size_t) noexcept nogil
    long copy_own(uintptr_t, uintptr_t, size_t) noexcept nogil

cdef long PROCESS_PID
cdef long PROCESS_MEM
cdef long PROCESS_READER
cdef long PROCESS_GUARD
cdef long PROCESS_SECRET
cdef long PROCESS_SIZE
cdef size_t SHORT_READ
cdef int _WORD

cdef extern from "Python.h":
    const int PyBUF_WRITE
    object PyMemoryView_FromMemory(char*, Py_ssize_t, int)

# The same again, as C that the compiler sees through: what other modules cimport, under the names of the functions.
cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint8_t raw_load8(uintptr_t address) { return *(uint8_t *)address; }
    static inline uint16_t raw_load16(uintptr_t address) { return *(uint16_t *)address; }
    static inline uint32_t raw_load32(uintptr_t address) { return *(uint32_t *)address; }
    static inline uint64_t raw_load64(uintptr_t address) { return *(uint64_t *)address; }
    static inline void raw_store8(uintptr_t address, uint8_t value) { *(uint8_t *)address = value; }
    static inline void raw_store16(uintptr_t address, uint16_t value) { *(uint16_t *)address = value; }
    static inline void raw_store32(uintptr_t address, uint32_t value) { *(uint32_t *)address = value; }
    static inline void raw_store64(uintptr_t address, uint64_t value) { *(uint64_t *)address = value; }
    static inline void raw_copy(uintptr_t destination, uintptr_t source, size_t length) {
        memmove((void *)destination, (void *)source, length);
    }
    """
    uint8_t raw_load8(uintptr_t) noexcept nogil
    uint16_t raw_load16(uintptr_t) noexcept nogil
    uint32_t raw_load32(uintptr_t) noexcept nogil
    uint64_t raw_load64(uintptr_t) noexcept nogil
    void raw_store8(uintptr_t, uint8_t) noexcept nogil
    void raw_store16(uintptr_t, uint16_t) noexcept nogil
    void raw_store32(uintptr_t, uint32_t) noexcept nogil
    void raw_store64(uintptr_t, uint64_t) noexcept nogil
    void raw_copy(uintptr_t, uintptr_t, size_t) noexcept nogil

cpdef uint8_t load8(uintptr_t address) noexcept
cpdef uint16_t load16(uintptr_t address) noexcept
cpdef uint32_t load32(uintptr_t address) noexcept
cpdef uint64_t load64(uintptr_t address) noexcept
cpdef void store8(uintptr_t address, uint8_t value) noexcept
cpdef void store16(uintptr_t address, uint16_t value) noexcept
cpdef void store32(uintptr_t address, uint32_t value) noexcept
cpdef void store64(uintptr_t address, uint64_t value) noexcept
cpdef uint16_t load16be(uintptr_t address) noexcept
cpdef uint32_t load32be(uintptr_t address) noexcept
cpdef uint64_t load64be(uintptr_t address) noexcept
cpdef void store16be(uintptr_t address, uint16_t value) noexcept
cpdef void store32be(uintptr_t address, uint32_t value) noexcept
cpdef void store64be(uintptr_t address, uint64_t value) noexcept
cpdef void copy(uintptr_t destination, uintptr_t source, size_t length) noexcept
cpdef void fill(uintptr_t destination, int value, size_t length) noexcept
cpdef uint64_t fetch_add64(uintptr_t address, uint64_t value) noexcept
cpdef uint64_t compare_swap64(uintptr_t address, uint64_t compare, uint64_t swap) noexcept
cpdef uint64_t load_acquire64(uintptr_t address) noexcept
cpdef void store_release64(uintptr_t address, uint64_t value) noexcept
cpdef void barrier() noexcept
cpdef int copy_process(uintptr_t process, bint writes, uintptr_t local, uintptr_t remote, size_t length) noexcept
cpdef int place_process(uintptr_t process, uintptr_t pieces, int count, uintptr_t remote, size_t length) noexcept
cpdef bint copy_checked(uintptr_t destination, uintptr_t source, size_t length) noexcept
cpdef object view(uintptr_t address, Py_ssize_t length)
cpdef uint32_t crc32(uintptr_t address, Py_ssize_t length, uint32_t value) except? 0

cdef class Block:
    cdef object _buffer
    cdef object _holder
    cdef readonly size_t size
    cdef readonly uintptr_t address
