# The source of the code in thunks.py for x86-64, where the two functions are described. A test assembles it and compares.
    .intel_syntax noprefix
    .text
fcntl_thunk:                            # (edi: descriptor, esi: command, rdx: struct flock)
    endbr64
    lea     eax, [rsi - 5]              # F_GETLK, F_SETLK, F_SETLKW are 5, 6, 7
    cmp     eax, 2
    ja      plain
    cmp     edi, 65536
    jae     plain
    mov     r8, [rip + table]
    mov     eax, edi
    mov     r9d, [r8 + rax*4]
    cmp     qword ptr [rdx + 8], 0x40000000   # l_start: SQLite's locks on a database begin here
    jge     database
    cmp     r9d, -3
    je      plain
    test    r9d, r9d
    jnz     description
    mov     dword ptr [r8 + rax*4], -1
    jmp     description
database:
    test    r9d, r9d
    jle     plain
    mov     edi, r9d
description:
    mov     dword ptr [rdx + 24], 0     # l_pid must be 0
    add     esi, 31                     # F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW are 36, 37, 38
plain:
    xor     eax, eax                    # a function with variable arguments: no vector registers
    jmp     [rip + real_fcntl]
close_thunk:                            # (edi: descriptor)
    endbr64
    cmp     edi, 65536
    jae     really
    mov     r8, [rip + table]
    mov     eax, edi
    mov     r9d, [r8 + rax*4]
    mov     dword ptr [r8 + rax*4], 0
    test    r9d, r9d
    jg      park
    cmp     r9d, -2
    je      park
really:
    jmp     [rip + real_close]
park:
    mov     r8, [rip + parked]
    mov     byte ptr [r8 + rax], 1
    xor     eax, eax
    ret
    .balign 16, 0xcc
table:
    .quad   0
parked:
    .quad   0
real_fcntl:
    .quad   0
real_close:
    .quad   0
