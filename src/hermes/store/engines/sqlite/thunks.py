"""Two functions in machine code that SQLite calls instead of `fcntl` and `close`.

SQLite lets an application replace its system calls. A replacement written in Python would need the interpreter's lock
six times an append and inside SQLite's own mutexes, so these two are written for the processor: some twenty
instructions each, without a stack, that look into a table and jump to the C library. The table has one number for each
descriptor; locks.py fills it:

     0   not seen yet               -1   a -shm file (noted here when SQLite first locks it)
    >0   a database file: lock this descriptor instead          -2   a -shm file of ours: stays open
    -3   leave alone

    fcntl(fd, cmd, lock):                              close(fd):
        if cmd is F_GETLK, F_SETLK or F_SETLKW             kept = table[fd] > 0 or table[fd] == -2
           and fd < SIZE:                                  table[fd] = 0
            if lock.l_start < 0x40000000:  # -shm          if not kept:
                if table[fd] == -3: go on below                return close(fd)
                if table[fd] == 0: table[fd] = -1          parked[fd] = 1
            elif table[fd] > 0:            # database      return 0
                fd = table[fd]
            else: go on below
            lock.l_pid = 0
            cmd += F_OFD_SETLK - F_SETLK
        return fcntl(fd, cmd, lock)

thunks_x86_64.s and thunks_aarch64.s are the sources; a test assembles them and compares.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys

SIZE = 65536  # descriptors

# (code, where `close` begins in it); behind the code are the addresses of table, parked, fcntl and close.
_X86_64 = (
    "f30f1efa"  # fcntl: endbr64
    "8d46fb83f8027746"  # lea eax,[rsi-5]; cmp eax,2; ja plain
    "81ff00000100733e"  # cmp edi,SIZE; jae plain
    "4c8b058500000089f8458b0c80"  # mov r8,[table]; mov eax,edi; mov r9d,[r8+rax*4]
    "48817a08000000407d15"  # cmp qword [rdx+8],0x40000000; jge base
    "4183f9fd74214585c97512"  # cmp r9d,-3; je plain; test r9d,r9d; jnz ofd
    "41c70480ffffffffeb08"  # mov dword [r8+rax*4],-1; jmp ofd
    "4585c97e0d4489cf"  # base: test r9d,r9d; jle plain; mov edi,r9d
    "c742180000000083c61f"  # ofd: mov dword [rdx+24],0; add esi,31
    "31c0ff2556000000"  # plain: xor eax,eax; jmp [fcntl]
    "f30f1efa"  # close: endbr64
    "81ff000001007320"  # cmp edi,SIZE; jae really
    "4c8b053300000089f8458b0c80"  # mov r8,[table]; mov eax,edi; mov r9d,[r8+rax*4]
    "41c7048000000000"  # mov dword [r8+rax*4],0
    "4585c97f0c4183f9fe7406"  # test r9d,r9d; jg park; cmp r9d,-2; je park
    "ff252c000000"  # really: jmp [close]
    "4c8b051500000041c604000131c0c3"  # park: mov r8,[parked]; mov byte [r8+rax],1; xor eax,eax; ret
    "cccccccccc",
    0x5A,
)
_AARCH64 = (
    "281400511f09007188020054"  # fcntl: sub w8,w1,#5; cmp w8,#2; b.hi plain
    "087c105348020035"  # lsr w8,w0,#16; cbnz w8,plain
    "690400582a5960b8"  # ldr x9,table; ldr w10,[x9,w0,uxtw #2]
    "4b0440f90c00a8527f010cebea000054"  # ldr x11,[x2,#8]; mov w12,#0x40000000; cmp x11,x12; b.ge base
    "5f0d003140010054ea000035"  # cmn w10,#3; b.eq plain; cbnz w10,ofd
    "0b0080122b5920b804000014"  # mov w11,#-1; str w11,[x9,w0,uxtw #2]; b ofd
    "5f0100718d000054e0030a2a"  # base: cmp w10,#0; b.le plain; mov w0,w10
    "5f1800b9217c0011"  # ofd: str wzr,[x2,#24]; add w1,w1,#31
    "d002005800021fd6"  # plain: ldr x16,fcntl; br x16
    "087c105308010035"  # close: lsr w8,w0,#16; cbnz w8,really
    "c90100582a5960b83f5920b8"  # ldr x9,table; ldr w10,[x9,w0,uxtw #2]; str wzr,[x9,w0,uxtw #2]
    "5f010071ac0000545f09003160000054"  # cmp w10,#0; b.gt park; cmn w10,#2; b.eq park
    "b001005800021fd6"  # really: ldr x16,close; br x16
    "e9000058280080522849203800008052c0035fd6",  # park: ldr x9,parked; mov w8,#1; strb w8,[x9,w0,uxtw]; mov w0,#0; ret
    0x60,
)
CODES = {"x86_64": _X86_64, "aarch64": _AARCH64}


class Thunks:
    """The two functions, ready to call, and their tables. They stay in memory until the process ends."""

    def __init__(self, real_fcntl: int, real_close: int) -> None:
        """Raises OSError where there is no code for this machine, or it may not be executed here."""
        if sys.platform != "linux" or sys.byteorder != "little" or os.uname().machine not in CODES:
            raise OSError(f"not for {sys.platform} on {os.uname().machine}")
        # Private: a forked child has descriptors of its own, and notes about them must not reach the parent's tables.
        # Pages that are never touched take no memory.
        self._memory = mmap.mmap(-1, SIZE * 5, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.table = (ctypes.c_int32 * SIZE).from_buffer(self._memory)
        self.parked = (ctypes.c_ubyte * SIZE).from_buffer(self._memory, SIZE * 4)
        digits, close_at = CODES[os.uname().machine]
        code = bytes.fromhex(digits) + struct.pack("<4Q", start, start + SIZE * 4, real_fcntl, real_close)
        self.fcntl = _executable(code)
        self.close = self.fcntl + close_at

    def parked_descriptors(self) -> list[int]:
        """Descriptors that SQLite has closed and that are still open."""
        found = []
        place = self._memory.find(b"\x01", SIZE * 4)
        while place >= 0:
            found.append(place - SIZE * 4)
            place = self._memory.find(b"\x01", place + 1)
        return found


def _executable(code: bytes) -> int:
    """Put code into memory that can be executed (and no longer written); returns its address."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "no memory for code")
    ctypes.memmove(address, code, len(code))
    if libc.mprotect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "code in memory may not be executed here")
    return int(address)
